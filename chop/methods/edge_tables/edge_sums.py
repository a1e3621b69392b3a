"""Sums of functions on edges between two roundings, computed for every sample: the reference.

A layer computes y_o = Σ_i T_io(x_i). `EdgeNumbers` holds what it computes with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chop.methods.edge_tables.edge_functions import EdgeFunction
from chop.numerics.learned import learned_fixed

EPSILON = 1e-3  # added to variances


class EdgeNumbers(NamedTuple):
    """The numbers of a layer, or of several networks' layers, which then come first.

    The four numbers of bits are whole, and [inputs, outputs] like the first two dimensions of the
    functions' parameters; `gain` and `shift` are [outputs]. `mean` and `var` are those of the
    functions' values if they are known, and None if they are those of the batch.
    """

    in_integer: Tensor
    in_frac: Tensor
    out_integer: Tensor
    out_frac: Tensor
    gain: Tensor
    shift: Tensor
    mean: Tensor | None
    var: Tensor | None
    parameters: Sequence[Tensor]

    @classmethod
    def of(cls, tensors: Sequence[Any]) -> EdgeNumbers:
        """Return the numbers of tensors in this order, the parameters one by one."""
        return cls._make([*tensors[:8], tensors[8:]])

    @property
    def tensors(self) -> list[Tensor | None]:
        """All tensors in this order, the parameters one by one."""
        return [*self[:8], *self.parameters]


Sums = tuple[Tensor, Tensor, Tensor]  # the results, and the mean and the variance of the values


def cell_centres(x: Tensor, integer_bits: Tensor, frac_bits: Tensor) -> Tensor:
    """Return the centre of the cell of the input grid in which each number lies.

    A cell holds the numbers that have the same code after rounding down. Numbers beyond the range
    belong to the outermost cells. Gradients are those of `learned_fixed`; an edge of no bits
    always has the centre 0.
    """
    step, top = torch.exp2(-frac_bits), torch.exp2(integer_bits)
    inside = (x >= -top) & (x < top)
    steps = torch.where(inside, x, torch.zeros_like(x)) / step
    centre = torch.floor(steps.detach()) + 0.5
    within = (centre + (steps - steps.detach())) * step
    beyond = torch.where(x > 0, 1.0, -1.0).to(x.dtype) * (top - step / 2)
    values = torch.where(inside, within, beyond)
    values = torch.where(integer_bits + frac_bits > 0, values, torch.zeros_like(values))
    return torch.where(x.isnan(), x.detach(), values)


def direct_sums(x: Tensor, numbers: EdgeNumbers, function: EdgeFunction) -> Sums:
    """Return the sums for samples [batch, inputs], with the functions evaluated for each."""
    u = cell_centres(x.unsqueeze(-1), numbers.in_integer, numbers.in_frac)
    t = function.values(u, numbers.parameters)
    mean, var = numbers.mean, numbers.var
    if mean is None or var is None:
        mean = t.mean((0, 1))
        var = ((t - mean) ** 2).sum((0, 1)) / (t.shape[0] * t.shape[1] - 1)
    z = normalized(t, (mean, var, numbers.gain, numbers.shift))
    q = rounded(z, numbers.out_integer, numbers.out_frac)
    return q.sum(1), mean.detach().clone(), var.detach().clone()


def normalized(t: Tensor, norm: Sequence[Tensor]) -> Tensor:
    """Return values after batch normalisation, divided by the root of the number of inputs.

    `norm` is the mean, the variance, the gain and the shift.
    """
    mean, var, gain, shift = norm
    scale = gain * torch.rsqrt(var + EPSILON)
    return ((t - mean) * scale + shift) / math.sqrt(t.shape[-2])


def rounded(z: Tensor, integer_bits: Tensor, frac_bits: Tensor) -> Tensor:
    """Return values in the format of an edge's results."""
    return learned_fixed(z, integer_bits, frac_bits, overflow="symmetric")
