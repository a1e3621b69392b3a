"""Activations and pools: their input is rounded, then the float layer runs."""

from __future__ import annotations

import functools
from typing import Any

from chop.ir.ops import OPS, OpSpec, drops_sign, module_op
from chop.numerics import NumberFormat
from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized, variants


class _QuantActivation(Quantized):
    operands = ("data_in",)

    def refine(self, operand: str, fmt: NumberFormat) -> NumberFormat:
        """Unsigned where negative inputs become 0, so that the sign bit can extend the range."""
        cls: Any = self.float_class
        op = module_op(cls)
        drops = op is not None and drops_sign(op.name, operand)
        return fmt.for_operand(operand, non_negative=drops)


@functools.cache
def _quantized(cls: Any) -> type[Quantized]:
    """QuantGELU for nn.GELU, without special behaviour."""
    body = {"__module__": __name__, "float_class": cls}
    return type(f"Quant{cls.__name__}", (_QuantActivation, cls), body)


def layers_of(op: OpSpec) -> list[type[Quantized]]:
    """Return the quantized layers of an op whose only operand is its input."""
    classes: tuple[Any, ...] = op.modules if op.quantized == ("data_in",) else ()
    return [_quantized(cls) for cls in classes]


def _layers() -> list[type[Quantized]]:
    return [layer for op in OPS.values() for layer in layers_of(op)]


LAYERS = _layers()


def __getattr__(name: str) -> type[Quantized]:
    return variants(*_layers())(name)  # of ops of yours as well
