"""From floats to codes: the inputs, in float64, which holds every step of a float32 exactly."""

from __future__ import annotations

from collections.abc import Sequence

from chop.integers import Codes, QuantizeInput, Word
from chop.onnx.integers.registry import writes
from chop.onnx.integers.writer import BOOL, DOUBLE, SINGLE, Writer, WrittenValue, numbers_dtype


@writes(QuantizeInput)
def quantize(
    w: Writer, op: QuantizeInput, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    (x,) = inputs
    scale = op.word.scale
    if scale.power_of_two:
        steps = w.op("Mul", w.cast(x, DOUBLE), w.constant(op.per_value, DOUBLE))
    else:  # as the float simulation divides
        steps = w.op("Div", x, w.constant(scale.value.float(), SINGLE))
    numbers = _overflown(w, _rounded(w, w.cast(steps, DOUBLE), op.word), op.word)
    return w.cast(numbers, numbers_dtype(codes[-1].lowest, codes[-1].highest))


def _rounded(w: Writer, steps: WrittenValue, word: Word) -> WrittenValue:
    if word.rounding == "floor":
        return w.op("Floor", steps)
    nearest = w.op("Round", steps)  # ties to even
    if word.rounding == "even":
        return nearest
    half = w.constant(0.5, DOUBLE)
    tie = w.op("Equal", w.op("Sub", steps, nearest), half, dtype=BOOL)
    return w.op("Add", nearest, w.cast(tie, DOUBLE))


def _overflown(w: Writer, whole: WrittenValue, word: Word) -> WrittenValue:
    low, high = (w.constant(end, DOUBLE) for end in (word.lows, word.highs))
    if not word.wraps:
        return w.op("Min", w.op("Max", whole, low), high)
    turn = w.constant(word.highs.double() - word.lows.double() + 1, DOUBLE)
    part = w.op("Mod", whole, turn, fmod=1)
    above = w.op("Greater", part, high, dtype=BOOL)
    part = w.op("Where", above, w.op("Sub", part, turn), part, dtype=DOUBLE)
    below = w.op("Less", part, low, dtype=BOOL)
    part = w.op("Where", below, w.op("Add", part, turn), part, dtype=DOUBLE)
    infinite = w.op("IsInf", whole, dtype=BOOL)
    positive = w.op("Greater", whole, w.constant(0.0, DOUBLE), dtype=BOOL)
    end = w.op("Where", positive, high, low, dtype=DOUBLE)
    return w.op("Where", infinite, end, part, dtype=DOUBLE)
