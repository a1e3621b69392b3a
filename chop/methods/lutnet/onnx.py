"""Signs of codes in ONNX files."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chop.integers import Codes
from chop.methods.lutnet.ops import ResidualSigns
from chop.onnx.integers.registry import writes
from chop.onnx.integers.writer import BOOL, Writer, WrittenValue, numbers_dtype


@writes(ResidualSigns)
def residual_signs(
    w: Writer, op: ResidualSigns, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    x, _ = codes
    rest = [1] * len(x.shape)
    # a threshold beyond the codes is reached by none or by all of them
    thresholds = op.thresholds.clamp(x.lowest, x.highest + 1).reshape(-1, *rest)
    dtype = numbers_dtype(x.lowest, x.highest + 1)
    value = w.shaped("Unsqueeze", w.cast(inputs[0], dtype), [1])
    above = w.op("GreaterOrEqual", value, thresholds, dtype=BOOL)
    count = len(op.thresholds)
    reached = w.total(w.cast(above, numbers_dtype(count)), 1, count, count)
    levels = torch.arange(op.levels - 1, -1, -1).reshape(-1, *rest)
    return w.op("BitwiseAnd", w.op("Div", reached, torch.ones_like(levels) << levels), 1)
