"""Roundings of ties that onnxruntime's optimiser would change.

Its 8-bit Add, Mul and AveragePool add the zero point before they round, so that ties go to even
codes instead of even multiples of the step: with an odd zero point, that is the other side. They
replace the float op between DequantizeLinear and QuantizeLinear, unless another node lies between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from chop.onnx import ModelBuilder

__all__ = ["NO_BOUND", "odd_ties"]

NO_BOUND = np.finfo(np.float32).min  # Max with it changes nothing, and is not optimised away
FUSED = ("Add", "Mul", "AveragePool")
# what the optimiser moves codes through
MOVED = ("Identity", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "Slice")
MAX_PRODUCT = 2**16  # of two codes; a step with another denominator has no ties


def odd_ties(builder: ModelBuilder, x: str, step: Any, zero: Any) -> bool:
    """Return whether quantising a value to 8 bits would round ties otherwise once it is fused."""
    if np.size(zero) > 1 or np.size(step) > 1 or np.asarray(zero).item() % 2 == 0:
        return False
    node = _maker(builder, x)
    if node is None or node.op_type not in FUSED:
        return False
    scales = [_scale(builder, name) for name in node.input]
    if not scales or None in scales:
        return False
    ratios = _ratios(node, scales, Fraction(np.asarray(step).item()))  # type: ignore[arg-type]
    return any(_has_ties(ratio) for ratio in ratios)


def _maker(builder: ModelBuilder, name: str) -> Any:
    """Return the node that computes a value, before ops that only move it; None for an input."""
    for node in reversed(builder.nodes):
        if name in node.output:
            if node.op_type not in MOVED:
                return node
            name = node.input[0]
    return None


def _scale(builder: ModelBuilder, name: str) -> Fraction | None:
    """Return the step of a value that comes from codes, or None."""
    from onnx import numpy_helper

    node = _maker(builder, name)
    if node is None or node.op_type != "DequantizeLinear":
        return None
    scale = numpy_helper.to_array(builder.constants[node.input[1]])
    return Fraction(scale.item()) if scale.size == 1 else None


def _ratios(node: Any, scales: Sequence[Fraction], step: Fraction) -> Iterator[Fraction]:
    """Yield the steps of what an op adds up, in steps of its result."""
    if node.op_type == "AveragePool":
        kernel = next(a.ints for a in node.attribute if a.name == "kernel_shape")
        yield from (scales[0] / (step * count) for count in range(1, math.prod(kernel) + 1))
    elif node.op_type == "Mul":
        yield math.prod(scales) / step
    else:
        yield from (scale / step for scale in scales)


def _has_ties(ratio: Fraction) -> bool:
    """Return whether whole multiples of a ratio may be halves of integers."""
    below = ratio.denominator
    odd = below // (below & -below)
    return below % 2 == 0 and odd <= MAX_PRODUCT
