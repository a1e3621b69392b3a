"""The sets of ops by MASE type, derived from the table in `chop.ir.ops`."""

from chop.ir.ops import MASE_TYPES, OPS, MaseType

__all__ = [
    "MASE_BUILTIN_FUNCS",
    "MASE_HARDWARE_TOOLCHAIN",
    "MASE_IMPLICIT_FUNCS",
    "MASE_MODULES",
    "MASE_MODULE_RELATED_FUNCS",
    "MASE_TYPES",
    "MASE_TYPE_MAP",
]


def _of_type(mase_type: MaseType) -> list[str]:
    return [op.name for op in OPS.values() if op.mase_type == mase_type]


MASE_IMPLICIT_FUNCS = _of_type("implicit_func")
MASE_MODULE_RELATED_FUNCS = _of_type("module_related_func")
MASE_MODULES = _of_type("module")
MASE_BUILTIN_FUNCS = _of_type("builtin_func")
MASE_TYPE_MAP = {op.name: {"type": op.mase_type} for op in OPS.values()}
_TOOLCHAINS = "INTERNAL_RTL EXTERNAL_RTL INTERNAL_HLS EXTERNAL_HLS MLIR_HLS"
MASE_HARDWARE_TOOLCHAIN = _TOOLCHAINS.split()
