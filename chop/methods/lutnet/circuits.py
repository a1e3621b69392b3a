"""Signs of codes in unrolled circuits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.ops.tables import joined, looked_up
from chop.hardware.unrolled.registry import Array, unrolls
from chop.integers import Codes
from chop.methods.lutnet.ops import ResidualSigns

FEW_BITS = 8  # of a value whose signs are a table rather than comparisons


@unrolls(ResidualSigns)
def residual_signs(op: ResidualSigns, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    rows = [_signs(op, symbol) for symbol in symbols.flat(inputs[0])]
    return symbols.shaped([s for level in zip(*rows, strict=True) for s in level], codes[-1].shape)


def _signs(op: ResidualSigns, symbol: Any) -> list[Any]:
    """Return the sign of each level, the first first."""
    thresholds = op.thresholds.numpy()
    if sum(symbol.kif) <= FEW_BITS:
        index, (codes,) = joined([symbol])
        regions = np.searchsorted(thresholds, codes, side="right")
        reached = (codes >= symbol.low) & (codes <= symbol.high)
    else:  # one comparison per threshold: bits that are 1 up to some place
        distinct = [t for t in dict.fromkeys(thresholds.tolist()) if symbol.low < t <= symbol.high]
        if not distinct:
            region = int(np.searchsorted(thresholds, symbol.low, side="right"))
            return [symbols.constant((region >> i) & 1) for i in reversed(range(op.levels))]
        index, values = joined([symbol >= float(t) for t in distinct])
        count = np.sum(values, 0)
        reached = np.arange(len(count)) == (1 << count) - 1
        ends = np.array([int(symbol.low), *distinct])
        regions = np.searchsorted(thresholds, ends[count], side="right")
    return [looked_up(index, (regions >> i) & 1, reached) for i in reversed(range(op.levels))]
