"""Which number formats each kind of file can hold exactly: the one home of that fact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chop.numerics import FORMATS, NumberFormat
from chop.onnx.targets import EXPORT_FORMATS, ExportFormat
from chop.passes.graph.interface.export_onnx.refusals import IN_FLOAT, REFUSALS
from chop.passes.graph.interface.export_onnx.values import ExportError

__all__ = ["EXPORTS", "LISTED", "Export", "check_format", "export_rows"]


@dataclass(frozen=True)
class Export:
    """Whether activations and weights of a format export exactly: "" or the reason why not."""

    activations: str = ""
    weights: str = ""

    @property
    def summary(self) -> str:
        """What a table says: exact, weights, or refused."""
        if not self.activations and not self.weights:
            return "exact"
        return "weights" if not self.weights else "refused"

    @property
    def reason(self) -> str:
        """Why a part is refused, and what to use instead."""
        return self.weights or self.activations


EXACT = Export()
AT_RUN_TIME = "has scales that depend on the data; use integer or affine for activations"
FLOATS = "is a float of its own; use integer, affine or fp8 for activations"
NO_STEP = "has no step of which all values are multiples; use integer or affine"
NOT_FIXED = "rounds by thresholds; use integer of 2 bits for activations"
SIGNS = "has no zero; use `format='qonnx'`, or integer for activations"
FP8 = "is a float; use `format='qdq'`"
UNROUNDED = "is not rounded to integers; use integer or affine"
NONE = "is quantised; use `format='qdq'`"

WEIGHTS = Export(activations=AT_RUN_TIME)
_IN_QDQ: dict[str, Export] = {
    "affine": EXACT,
    "binary": Export(activations=SIGNS),
    "binary_residual": Export(AT_RUN_TIME),
    "block_fp": WEIGHTS,
    "block_log": WEIGHTS,
    "block_minifloat": WEIGHTS,
    "float": EXACT,
    "fp8": EXACT,
    "integer": EXACT,
    "log": Export(activations=FLOATS),
    "minifloat_denorm": Export(activations=FLOATS),
    "minifloat_ieee": Export(activations=FLOATS),
    "mixed_integer": EXACT,
    "mxfp": WEIGHTS,
    "mxint": WEIGHTS,
    "scale_integer": Export(AT_RUN_TIME, NO_STEP),
    "ternary": Export(activations=NOT_FIXED),
}
_IN_QONNX = _IN_QDQ | {"binary": EXACT, "fp8": Export(FP8)}
_IN_INTEGER = {
    name: Export(UNROUNDED if name in ("float", "fp8") else rule.activations, rule.weights)
    for name, rule in _IN_QDQ.items()
} | {"float": Export(UNROUNDED, UNROUNDED)}

EXPORTS: dict[str, Mapping[ExportFormat, Export]] = {
    name: {
        "onnx": EXACT if name == "float" else Export(NONE, NONE),
        "qdq": _IN_QDQ[name],
        "qcdq": _IN_QDQ[name],
        "qonnx": _IN_QONNX[name],
        "integer": _IN_INTEGER[name],
    }
    for name in _IN_QDQ
}


# what `ch list exports` shows: formats, and what of them some files refuse
LISTED: Mapping[str, Mapping[ExportFormat, Export]] = EXPORTS | {
    each.what: {
        kind: Export(each.instead, each.instead) if kind in each.kinds else EXACT
        for kind in EXPORT_FORMATS
    }
    | ({} if key == IN_FLOAT else {"onnx": Export(NONE, NONE)})
    for key, each in REFUSALS.items()
}


def check_format(fmt: NumberFormat, target: ExportFormat, operand: str) -> None:
    """Refuse a format that files of a kind cannot hold."""
    name = fmt.name if fmt.name in EXPORTS or fmt.grid() is None else "integer"  # has codes too
    known = EXPORTS.get(name)
    if known is None:
        raise ExportError(f"rounds {operand} to {fmt.name}, which no file holds; use integer")
    rule = known[target]
    reason = rule.activations if operand.startswith("data_") else rule.weights
    if reason:
        raise ExportError(f"rounds {operand} to {fmt.name}, which {reason}")


def export_rows() -> list[dict[str, str]]:
    """Return a row per number format: what each kind of file holds of it."""
    names = list(dict.fromkeys(cls.name for cls in FORMATS.values()))
    return [
        {"format": name, **{target: EXPORTS[name][target].summary for target in EXPORT_FORMATS}}
        for name in sorted(names)
    ]
