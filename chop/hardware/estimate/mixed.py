"""Formulas for values whose widths differ by channel or element."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import torch

from chop.hardware.estimate import formula
from chop.hardware.estimate.cost import Cost
from chop.hardware.estimate.formula import CodeRange, Target
from chop.hardware.estimate.weights import effective_bits
from chop.integers import Codes, ConvCodes, IntegerNode, MixedWord, Word
from chop.integers.mixed import element_widths
from chop.integers.ops.weighted import WeightedOp

__all__ = ["own_widths", "product_bits", "rounded_by_element", "span_of", "without_dead_inputs"]


def span_of(codes: Codes, ready: float = 0.0, layer: str = "") -> CodeRange:
    """Return one range for all codes of a value, on the finest of their grids."""
    exponent = int(codes.scale.exponent.min())
    return CodeRange(codes.lowest, codes.highest, exponent, math.prod(codes.shape), ready, layer)


def own_widths(span: CodeRange, word: Word, codes: Codes) -> CodeRange:
    """Return a range with the widths of all codes, if these differ."""
    if not isinstance(word, MixedWord):
        return span
    return span._replace(widths=element_widths(codes).numpy())


def rounded_by_element(
    word: MixedWord, node: IntegerNode, x: CodeRange, period: float
) -> tuple[CodeRange, Cost]:
    """Return values rounded to formats of their own; those of no bits cost nothing."""
    each = zip(
        *(
            part.expand(node.codes.shape).flatten().tolist()
            for part in (word.low_codes, word.high_codes, word.scale.exponent)
        ),
        strict=True,
    )
    cost, ready = Cost(), x.ready
    for (low, high, exponent), count in Counter(each).items():
        if low == high:
            continue
        target = Target(low, high, exponent, word.rounding, word.wraps)
        new, more = formula.requantized(x._replace(size=count), target, period)
        cost, ready = cost.plus(more), max(ready, new.ready)
    return own_widths(span_of(node.codes, ready, x.layer), word, node.codes), cost


def product_bits(op: WeightedOp, x: CodeRange) -> float:
    """Return the sum over all products of the bits of the input times those of the weight."""
    bits = torch.from_numpy(effective_bits(op.weight.cpu().numpy())).double()
    inputs = torch.from_numpy(x.widths).double().unsqueeze(0)
    return float(op.products(inputs, bits).sum())


def without_dead_inputs(op: WeightedOp, x: CodeRange) -> WeightedOp:
    """Return a layer whose weights are zero where the input has no bits."""
    widths = torch.from_numpy(x.widths)
    convolves = isinstance(op, ConvCodes)
    rows = widths.flatten(1).mT if convolves else widths.reshape(-1, widths.shape[-1])
    channels = rows.amax(0)
    groups = op.groups if isinstance(op, ConvCodes) else 1
    live = (channels > 0).view(groups, 1, -1).expand(groups, len(op.weight) // groups, -1)
    live = live.reshape(len(op.weight), -1, *[1] * (op.weight.ndim - 2))
    return replace(op, weight=op.weight * live)
