"""Ops on several values."""

from __future__ import annotations

from collections.abc import Sequence

from chop.integers import AddCodes, Codes, ConcatCodes, IntegerOp, MultiplyCodes, SubtractCodes
from chop.onnx.integers.registry import writes
from chop.onnx.integers.writer import Writer, WrittenValue, numbers_dtype

KINDS: dict[type[IntegerOp], str] = {
    AddCodes: "Add",
    SubtractCodes: "Sub",
    MultiplyCodes: "Mul",
}


def _alike(w: Writer, inputs: Sequence[WrittenValue], codes: Sequence[Codes]) -> list[WrittenValue]:
    """Return the inputs in a dtype that holds them and the result."""
    dtype = numbers_dtype(*(x.lowest for x in codes), *(x.highest for x in codes))
    return [w.cast(x, dtype) for x in inputs]


@writes(*KINDS)
def combine(
    w: Writer,
    op: AddCodes | SubtractCodes | MultiplyCodes,
    inputs: Sequence[WrittenValue],
    codes: Sequence[Codes],
) -> WrittenValue:
    kind = next(kind for known, kind in KINDS.items() if isinstance(op, known))
    return w.op(kind, *_alike(w, inputs, codes))


@writes(ConcatCodes)
def concat(
    w: Writer, op: ConcatCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    return w.op("Concat", *_alike(w, inputs, codes), axis=op.dim)
