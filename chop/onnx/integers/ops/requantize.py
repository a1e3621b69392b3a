"""From codes to codes of another format."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chop.integers import Codes, Requantize
from chop.integers.ops.requantize import LIMB, STICKY
from chop.onnx.integers.registry import writes
from chop.onnx.integers.rounding import Bounded, brought_back, multiplied, quotient, raised
from chop.onnx.integers.writer import BOOL, INT64, Writer, WrittenValue


@writes(Requantize)
def requantize(
    w: Writer, op: Requantize, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    numbers = _rounded(w, op, inputs[0], codes[0])
    return numbers.value if _stays_inside(op, codes[0]) else brought_back(w, numbers, op.word)


def _rounded(w: Writer, op: Requantize, value: WrittenValue, codes: Codes) -> Bounded:
    x = Bounded(value, codes.lowest, codes.highest)
    if op.multiplier is not None:
        product = _sticky_product if op.wide else multiplied
        x = product(w, x, op.multiplier)
    assert op.shift is not None
    assert op.divisor is not None
    x = raised(w, x, (-op.shift).clamp(min=0), op.word, int(op.divisor.max()))
    return quotient(w, x, op.divisor, op.shift.clamp(min=0), op.word.rounding)


def _stays_inside(op: Requantize, codes: Codes) -> bool:
    """Return whether no code leaves the range of the word before its overflow is applied."""
    assert op.shift is not None
    if op.word.wraps and codes.largest << max(0, -int(op.shift.min())) >= 2**62:
        return False
    low, high = (op.rounded(bound)[0] for bound in codes.bounds())
    return bool(((op.word.lows <= low) & (high <= op.word.highs)).all())


def _sticky_product(w: Writer, x: Bounded, multiplier: Tensor) -> Bounded:
    """Return x · multiplier / 2^29 with a last bit that tells whether bits below are lost."""
    one, limb, part = torch.tensor(1), torch.tensor(LIMB), (1 << LIMB) - 1
    long = Bounded(w.cast(x.value, INT64), x.low, x.high)
    upper = quotient(w, long, one, limb, "floor").value
    high = w.op("Mul", w.cast(upper, INT64), multiplier)
    low = w.op("Mul", w.op("BitwiseAnd", long.value, part), multiplier)
    low_bits = w.op("BitwiseAnd", low, part)
    high = w.op("Add", high, w.op("Div", low, 1 << LIMB))
    half = w.op("Div", low_bits, 1 << (LIMB - 1))
    rest = w.op("BitwiseAnd", low_bits, (1 << (LIMB - 1)) - 1)
    lost = w.cast(w.op("Greater", rest, 0, dtype=BOOL), INT64)
    sticky = w.op("Add", w.op("Mul", half, 2), lost)
    most = int(multiplier.max())
    low_end, high_end = ((end * most >> (LIMB - STICKY)) for end in (x.low, x.high))
    value = w.op("Add", w.op("Mul", high, 1 << STICKY), sticky)
    return Bounded(value, min(0, low_end) - 1, max(0, high_end) + (1 << STICKY))
