"""Sums of functions on edges, by way of the codes that an edge can take.

The input of an edge of m bits has 2^m codes, so its function is evaluated for these only, and a
sample looks its results up. As inputs are rounded down, the code on the finest grid of all edges
of an input determines the codes on the others: each sample has one index for each input, and
adds rows of one entry per output. Gradients go back in the same way: those of the results are
added up for each index, and pass through the functions for the codes only.

All tensors have the networks of a population as their first dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.methods.edge_tables import edge_rows
from chop.methods.edge_tables.edge_functions import EdgeFunction
from chop.methods.edge_tables.edge_sums import EPSILON, EdgeNumbers, Sums, normalized, rounded
from chop.numerics.fast.rules import LN2

MAX_FRAC_BITS = 100  # of either sign, as in edge_training.cpp; float32 holds their steps
MAX_INDEX_BITS = 12  # of the finest grid of an input; beyond, every sample is computed


@dataclass(frozen=True, eq=False)
class EdgeGrid:
    """The codes of all edges, and those on the finest grid of each input.

    Of the latter, the first and the last index stand for numbers below and above the range.
    """

    in_integer: Tensor  # [networks, inputs, outputs]
    in_frac: Tensor
    live: Tensor
    half: Tensor  # [networks, 1, inputs]: half of the codes of the finest grid
    frac: Tensor  # [networks, 1, inputs]: fraction bits of the finest grid
    size: int  # maximum codes of an edge
    num_indices: int

    @classmethod
    def of(cls, in_integer: Tensor, in_frac: Tensor) -> EdgeGrid | None:
        """Return the grid for integers of bits, or None if it would be too fine."""
        bits = in_integer + in_frac
        live = bits > 0
        far = torch.full_like(bits, -1000.0)
        most_integer, most_frac = (
            torch.where(live, each, far).amax(-1) for each in (in_integer, in_frac)
        )
        known = live.any(-1)
        frac = torch.where(known, most_frac, torch.zeros_like(most_frac))
        reach = torch.where(known, most_integer + most_frac, torch.zeros_like(most_frac))
        most = float(reach.max()) + 1
        far_off = not float(frac.abs().max()) < MAX_FRAC_BITS
        if far_off or not most <= MAX_INDEX_BITS:  # NaN included
            return None
        size = int(2 ** (float(torch.where(live, bits, torch.zeros_like(bits)).max()) + 1))
        half = torch.exp2(reach).unsqueeze(1)
        count = int(2**most) + 2
        return cls(in_integer, in_frac, live, half, frac.unsqueeze(1), size, count)

    @classmethod
    def of_edges(cls, in_integer: Tensor, in_frac: Tensor, size: int) -> EdgeGrid:
        """Return the codes of all edges, without a grid that their inputs have in common."""
        none = torch.zeros_like(in_frac[..., 0]).unsqueeze(1)
        return cls(in_integer, in_frac, in_integer + in_frac > 0, none, none, size, 0)

    def indices(self, x: Tensor) -> Tensor:
        """[networks, batch, inputs]: the index of each number."""
        codes = torch.floor(torch.nan_to_num(x) * torch.exp2(self.frac))
        low, high = -self.half - 1, self.half
        return (torch.minimum(torch.maximum(codes, low), high) - low).long()

    def left_ends(self) -> Tensor:
        """[networks, indices, inputs]: the lowest number of each index."""
        index = torch.arange(self.num_indices, device=self.half.device, dtype=self.half.dtype)
        return (index[:, None] - 1 - self.half) * torch.exp2(-self.frac)

    def codes_of_indices(self) -> Tensor:
        """[networks, indices, inputs, outputs]: the code, from 0, that an edge has at an index."""
        half = torch.exp2((self.in_integer + self.in_frac).clamp(min=0)).unsqueeze(1)
        codes = torch.floor(self.left_ends().unsqueeze(-1) * torch.exp2(self.in_frac).unsqueeze(1))
        codes = torch.minimum(torch.maximum(codes, -half), half - 1) + half
        return torch.where(self.live.unsqueeze(1), codes, torch.zeros_like(codes)).long()

    def centres(self) -> Tensor:
        """[networks, codes, inputs, outputs]: the centre of the cell of each code."""
        half = torch.exp2((self.in_integer + self.in_frac).clamp(min=0)).unsqueeze(1)
        code = torch.arange(self.size, device=half.device, dtype=half.dtype)[:, None, None]
        code = torch.minimum(code, 2 * half - 1) - half
        u = (code + 0.5) * torch.exp2(-self.in_frac).unsqueeze(1)
        return torch.where(self.live.unsqueeze(1), u, torch.zeros_like(u))


@dataclass(frozen=True, eq=False)
class _Lookup:
    """Where samples find the rows of their inputs."""

    grid: EdgeGrid
    index: Tensor  # [networks, batch, inputs]
    flat: Tensor  # [networks, batch, inputs]: rows of [networks · indices · inputs]
    shape: tuple[int, int, int]  # networks, indices, inputs

    @classmethod
    def of(cls, grid: EdgeGrid, x: Tensor) -> _Lookup:
        networks, _, inputs = x.shape
        index = grid.indices(x)
        network = torch.arange(networks, device=x.device)[:, None, None]
        place = (network * grid.num_indices + index) * inputs
        flat = place + torch.arange(inputs, device=x.device)
        return cls(grid, index, flat, (networks, grid.num_indices, inputs))

    def summed(self, rows: Tensor) -> Tensor:
        """[networks, batch, outputs]: sums over inputs of rows [networks, indices, inputs, o]."""
        return edge_rows.summed(rows.flatten(0, 2), self.flat)

    def counted(self, weights: Tensor | None = None) -> Tensor:
        """[networks, indices, inputs]: how many samples have an index, or sums of weights."""
        flat = None if weights is None else weights.flatten()
        counts = torch.bincount(self.flat.flatten(), flat, minlength=math.prod(self.shape))
        return counts.view(self.shape)

    def collected(self, grad: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """[networks, indices, inputs, o]: sums over samples of gradients [networks, batch, o].

        The second tensor has sums of gradients times weights [networks, batch, inputs].
        """
        found = edge_rows.collected(grad, weights, self.flat, math.prod(self.shape))
        total, weighted = (each.view(*self.shape, grad.shape[-1]) for each in found)
        return total, weighted

    def offsets(self, x: Tensor) -> Tensor:
        """[networks, batch, inputs]: distances from the middle of cells; beyond the range, 0."""
        cell = torch.exp2(-self.grid.frac)
        middle = self.grid.left_ends() + cell / 2
        offset = torch.nan_to_num(x) - middle.gather(1, self.index)
        return torch.where(offset.abs() <= cell, offset, torch.zeros_like(offset))


@dataclass(eq=False)
class _Tables:
    """The functions' values for all codes, [networks, codes, inputs, outputs], and statistics."""

    codes: Tensor  # of the indices
    counts: Tensor | None  # of samples for each code; None if statistics are known
    t: Tensor
    mean: Tensor
    var: Tensor

    @classmethod
    def of(cls, look: _Lookup, numbers: EdgeNumbers, t: Tensor) -> _Tables:
        codes = look.grid.codes_of_indices()
        if numbers.mean is not None and numbers.var is not None:
            return cls(codes, None, t, numbers.mean.clone(), numbers.var.clone())
        counted = look.counted().to(t.dtype).unsqueeze(-1).expand(codes.shape)
        counts = torch.zeros_like(t).scatter_add_(1, codes, counted)
        total = look.index.shape[1] * look.index.shape[2]
        with torch.no_grad():
            mean = (counts.double() * t).sum((1, 2)) / total
            var = (counts * (t - mean[:, None, None]) ** 2).sum((1, 2)) / (total - 1)
        return cls(codes, counts, t, mean.to(t.dtype), var.to(t.dtype))


def table_entries(grid: EdgeGrid, numbers: EdgeNumbers, function: EdgeFunction) -> Tensor:
    """[networks, codes, inputs, outputs]: results of the edges, for known statistics."""
    assert numbers.mean is not None
    assert numbers.var is not None
    t = function.values(grid.centres(), [p.unsqueeze(1) for p in numbers.parameters])
    return _results(t, numbers.mean, numbers.var, numbers)


def _results(t: Tensor, mean: Tensor, var: Tensor, numbers: EdgeNumbers) -> Tensor:
    wide = [each[:, None, None] for each in (mean, var, numbers.gain, numbers.shift)]
    z = normalized(t, wide)
    return rounded(z, numbers.out_integer.unsqueeze(1), numbers.out_frac.unsqueeze(1))


def code_sums(x: Tensor, numbers: EdgeNumbers, function: EdgeFunction) -> Sums | None:
    """Return the sums for samples [networks, batch, inputs], or None if a grid is too fine."""
    grid = EdgeGrid.of(numbers.in_integer, numbers.in_frac)
    if grid is None:
        return None
    look = _Lookup.of(grid, x)
    t = function.values(grid.centres(), [p.unsqueeze(1) for p in numbers.parameters])
    tables = _Tables.of(look, numbers, t)
    entries = _results(t, tables.mean, tables.var, numbers)
    y = look.summed(entries.gather(1, tables.codes))
    lost = x.isnan().any(-1)
    if bool(lost.any()):
        y = torch.where(lost.unsqueeze(-1), torch.full_like(y, math.nan), y)
        member = lost.any(-1, keepdim=True) & (numbers.mean is None)
        tables.mean = torch.where(member, torch.full_like(tables.mean, math.nan), tables.mean)
        y = torch.where(member.unsqueeze(-1), torch.full_like(y, math.nan), y)
    return y, tables.mean, tables.var


def code_gradients(
    grad: Tensor, x: Tensor, numbers: EdgeNumbers, function: EdgeFunction, *, for_x: bool
) -> tuple[Tensor | None, list[Tensor]]:
    """Return the gradients of x, and of all other numbers except the statistics."""
    grid = EdgeGrid.of(numbers.in_integer, numbers.in_frac)
    assert grid is not None, "the gradient of sums that were not computed by codes"
    look = _Lookup.of(grid, x)
    t, slope, of_parameters = function.differentiated(grid.centres(), numbers.parameters)
    tables = _Tables.of(look, numbers, t)
    offset = look.offsets(x)
    gradient, weighted = look.collected(grad, offset)
    by_code = torch.zeros_like(tables.t).scatter_add_(1, tables.codes, gradient)
    direct, shared, others = _through_norm(by_code, tables, numbers)
    total = by_code * direct
    if tables.counts is not None:
        total = total + tables.counts * shared
    for_parameters = of_parameters(total)
    per_gradient, per_sample = (
        (each * slope).gather(1, tables.codes) for each in (direct, shared.expand_as(slope))
    )
    at_input = _Inputs(look, offset, per_gradient, per_sample)
    for_bits = at_input.for_bits(gradient, weighted)
    x_grad = at_input.for_x(grad) if for_x else None
    return x_grad, [*for_bits, *others, *for_parameters]


def _through_norm(
    by_code: Tensor, tables: _Tables, numbers: EdgeNumbers
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return gradients of functions' values, and of output bits, gain and shift.

    The gradient of a sample's value is that of its result times the first tensor, plus the second,
    which comes from the statistics of the batch.
    """
    t, mean, var = tables.t, tables.mean, tables.var
    root = math.sqrt(t.shape[2])
    with torch.enable_grad():
        bits = [numbers.out_integer.detach(), numbers.out_frac.detach()]
        bits = [each.requires_grad_() for each in bits]
        wide = [each[:, None, None] for each in (mean, var, numbers.gain, numbers.shift)]
        z = normalized(t, wide).detach().requires_grad_()
        q = rounded(z, *(each.unsqueeze(1) for each in bits))
    for_bits = torch.autograd.grad(q, bits, by_code, retain_graph=True)
    (inside,) = torch.autograd.grad(q, z, torch.ones_like(z))
    inverse = torch.rsqrt(var + EPSILON)[:, None, None]
    gain = numbers.gain[:, None, None]
    at_z = by_code * inside / root
    for_gain = (at_z * (t - wide[0]) * inverse).sum((1, 2))
    direct = inside * gain * inverse / root
    shared = torch.zeros((), dtype=t.dtype, device=t.device)
    if tables.counts is not None:
        count = tables.counts[:, :, :, 0].sum((1, 2))[:, None, None, None]
        at_mean = -(by_code * direct).sum((1, 2), keepdim=True)
        at_var = (at_z * gain * (t - wide[0])).sum((1, 2), keepdim=True) * inverse**3 * -0.5
        shared = at_mean / count + at_var * 2 * (t - wide[0]) / (count - 1)
    return direct, shared, [*for_bits, for_gain, at_z.sum((1, 2))]


@dataclass(eq=False)
class _Inputs:
    """The gradients before the functions: for the numbers of bits of the inputs, and for x."""

    look: _Lookup
    offset: Tensor  # [networks, batch, inputs]
    per_gradient: Tensor  # [networks, indices, inputs, outputs]
    per_sample: Tensor

    def __post_init__(self) -> None:
        grid = self.look.grid
        self.left = grid.left_ends().unsqueeze(-1)
        top = torch.exp2(grid.in_integer).unsqueeze(1)
        live = grid.live.unsqueeze(1)
        self.above, self.below = (self.left >= top) & live, (self.left < -top) & live
        self.inside = ~(self.above | self.below) & live

    def for_bits(self, gradient: Tensor, weighted: Tensor) -> list[Tensor]:
        """Return the gradients of the integer and the fraction bits."""
        look, grid, dtype = self.look, self.look.grid, gradient.dtype
        counts, offsets = (each.to(dtype) for each in (look.counted(), look.counted(self.offset)))
        total = self.per_gradient * gradient + self.per_sample * counts.unsqueeze(-1)
        moved = self.per_gradient * weighted + self.per_sample * offsets.unsqueeze(-1)
        step, top = (torch.exp2(e).unsqueeze(1) for e in (-grid.in_frac, grid.in_integer))
        middle = self.left + torch.exp2(-grid.frac).unsqueeze(-1) / 2
        centre = grid.centres().gather(1, grid.codes_of_indices())
        within = (middle - centre) * total + moved
        ends = self.above.to(dtype) - self.below.to(dtype)
        for_frac = torch.where(self.inside, within, ends * step / 2 * total).sum(1)
        return [LN2 * (ends * top * total).sum(1), LN2 * for_frac]

    def for_x(self, grad: Tensor) -> Tensor:
        look = self.look
        inside = self.inside.to(grad.dtype)
        rows = (self.per_gradient * inside).flatten(0, 2)
        alone = (self.per_sample * inside).sum(-1)
        return edge_rows.multiplied(rows, grad, look.flat) + alone.gather(1, look.index)
