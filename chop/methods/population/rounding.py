"""Rounding of stacked tensors: each candidate's slice in its number format."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor

from chop.numerics import NumberFormat, fused
from chop.numerics.integer import Integer

Extents = tuple[int, ...]  # size of a candidate's slice without padding
# a stack -> [candidates, …] with each slice in the layout of a single network, and back
View = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """The dimensions of a stack, and its conversion to the layout of a single network."""

    candidates: int  # dimension of the candidates
    channels: int  # dimension of the channels, once candidates come first
    seen: View
    back: View


def _same(x: Tensor) -> Tensor:
    return x


PARAMETER = Layout(0, 1, _same, _same)  # [K, …]
ROWS = Layout(0, 2, lambda x: x.transpose(1, 2), lambda x: x.transpose(1, 2))  # [K, C, B]
MAPS = Layout(1, 2, lambda x: x.transpose(0, 1), lambda x: x.transpose(0, 1))  # [B, K, C, …]


class Rounder:
    """Rounds one operand, each candidate in its format; None and float do not round."""

    def __init__(
        self,
        formats: Sequence[NumberFormat | None],
        extents: Sequence[Extents],
        layout: Layout,
        rank: int,
        like: Tensor,
    ) -> None:
        """`rank` is that of the stack; `extents` are in the layout of a single network."""
        chosen = [fmt if fmt is not None and fmt.rounds else None for fmt in formats]
        self.layout, self.rank = layout, rank
        self.groups = [
            _Group(rows, chosen, extents, self, like)
            for rows in _grouped(chosen, extents, like).values()
        ]
        self.idle = all(fmt is None for fmt in chosen)
        self.limits = self._limits(chosen, like)

    def _limits(
        self, formats: Sequence[NumberFormat | None], like: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """Return the range in which gradients pass; None if it is unlimited."""
        limits = [(fmt._limits if fmt else None) or (-math.inf, math.inf) for fmt in formats]
        if all(math.isinf(low) and math.isinf(high) for low, high in limits):
            return None
        low, high = zip(*limits, strict=True)
        return self.along(low, like), self.along(high, like)

    def along(self, numbers: Sequence[float], like: Tensor) -> Tensor:
        """Return one number per candidate, in a shape that broadcasts over a stack."""
        shape = [1] * self.rank
        shape[self.layout.candidates] = -1
        return torch.tensor(numbers, dtype=like.dtype, device=like.device).view(shape)

    def __call__(self, x: Tensor) -> Tensor:
        """Round `x`; the gradient passes straight through, within the limits."""
        if self.idle:
            return x
        if torch.is_grad_enabled() and x.requires_grad:
            rounded: Tensor = _StraightThrough.apply(x, self)
            return rounded
        return self.values(x)

    def values(self, x: Tensor) -> Tensor:
        if len(self.groups) == 1:
            return self.groups[0](x)
        dim, out = self.layout.candidates, torch.empty_like(x)
        for group in self.groups:
            out.index_copy_(dim, group.rows, group(x.index_select(dim, group.rows)))
        return out

    def within(self, grad: Tensor, x: Tensor) -> Tensor:
        assert self.limits is not None
        low, high = self.limits
        return torch.where((x < low) | (x > high), 0.0, grad)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rounder: Rounder) -> Tensor:
        ctx.rounder = rounder
        if rounder.limits is not None:
            ctx.save_for_backward(x)
        return rounder.values(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        if ctx.rounder.limits is None:
            return grads[0], None
        return ctx.rounder.within(grads[0], ctx.saved_tensors[0]), None


def _grouped(
    formats: Sequence[NumberFormat | None], extents: Sequence[Extents], like: Tensor
) -> dict[Any, list[int]]:
    """Return the rows of candidates that are rounded by the same operations."""
    groups: dict[Any, list[int]] = {}
    for row, (fmt, extent) in enumerate(zip(formats, extents, strict=True)):
        key: Any = fmt
        if fmt is not None and not _spares_padding(fmt, like.dtype):
            key = (fmt, extent)
        elif fmt is not None and (rule := fused.rule_of(fmt, like)) is not None:
            key = rule  # one kernel with a table of arguments
        elif _clamps_evenly(fmt):
            key = Integer  # rounded together, with widths as tensors
        groups.setdefault(key, []).append(row)
    return groups


class _Group:
    """Candidates of a stack that are rounded together."""

    def __init__(
        self,
        rows: list[int],
        formats: Sequence[NumberFormat | None],
        extents: Sequence[Extents],
        rounder: Rounder,
        like: Tensor,
    ) -> None:
        self.rows = torch.tensor(rows, device=like.device)
        fmt = formats[rows[0]]
        self._round: View
        if fmt is None:
            self._round = _same
        elif _spares_padding(fmt, like.dtype) and fused.rule_of(fmt, like) is not None:
            slices = fused.Slices([formats[row] for row in rows], like)  # type: ignore[misc]
            self._round = lambda x: slices(x, rounder.layout.candidates)
        elif _clamps_evenly(fmt):
            self._round = _integers([formats[row] for row in rows], rounder, like)  # type: ignore[misc]
        elif _spares_padding(fmt, like.dtype):
            self._round = lambda x: fused.rounded(fmt, x)
        else:
            self._round = _sliced(fmt, extents[rows[0]], rounder.layout)

    def __call__(self, x: Tensor) -> Tensor:
        return self._round(x)


@functools.cache
def _spares_padding(fmt: NumberFormat, dtype: torch.dtype) -> bool:
    """Whether padding with zeros does not change the result and stays zero."""
    return fmt.elementwise and not fmt.rounded(torch.zeros(1, dtype=dtype)).any()


def _clamps_evenly(fmt: NumberFormat | None) -> TypeGuard[Integer]:
    """Whether `_integers` rounds like the format."""
    return isinstance(fmt, Integer) and fmt.rounding == "even" and not fmt.wraps


def _integers(formats: Sequence[Integer], rounder: Rounder, like: Tensor) -> View:
    """Return `Integer.round`, ties to even and without wrapping, with a tensor per parameter."""
    edges = [fmt._edges[like.dtype] for fmt in formats]
    scale = rounder.along([2.0**fmt.frac_width for fmt in formats], like)
    back = rounder.along([2.0**-fmt.frac_width for fmt in formats], like)  # exact, as 1 / scale
    low = rounder.along([low for low, _ in edges], like)
    high = rounder.along([high for _, high in edges], like)
    return lambda x: (x * scale).round_().clamp_(low, high).mul_(back)


def _sliced(fmt: NumberFormat, extent: Extents, layout: Layout) -> View:
    """Return a function that rounds each slice separately, for formats of whole tensors."""
    each = torch.vmap(fmt.rounded)

    def rounded(x: Tensor) -> Tensor:
        seen = layout.seen(x)
        out = torch.zeros_like(seen)
        _unpadded(out, extent, layout).copy_(each(_unpadded(seen, extent, layout)))
        return layout.back(out)

    return rounded


def _unpadded(seen: Tensor, extent: Extents, layout: Layout) -> Tensor:
    for dim, size in enumerate(extent, start=layout.channels):
        if seen.shape[dim] != size:
            seen = seen.narrow(dim, 0, size)
    return seen
