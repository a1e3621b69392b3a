"""Histograms of tensors that arrive batch by batch, in memory that does not grow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

BINS = 2048
# the two points of a bin that stand for its values: they are never on a grid of powers of two
POINTS = (0.5 - math.sqrt(1 / 12), 0.5 + math.sqrt(1 / 12))


@dataclass
class Histogram:
    """Counts of nonzero values in equal bins from -limit to limit, one row for each channel.

    Limits are powers of two. A value beyond a limit doubles it, and pairs of bins are merged, so
    that zero stays between two bins. Zeros are counted apart, as every format can hold them.
    """

    counts: Tensor  # [channels, bins], integers
    limits: Tensor  # [channels]; 0 as long as there are only zeros
    zeros: Tensor  # [channels], integers
    low: Tensor  # [channels], the smallest value
    high: Tensor  # [channels], the largest value
    axis: int | None = None  # the dimension of the channels; None for one row for all values

    @classmethod
    def empty(cls, bins: int = BINS, channels: int = 1, axis: int | None = None) -> Self:
        """Return a histogram without values; `bins` must be a multiple of four."""
        if bins < 4 or bins % 4:
            raise ValueError(f"bins must be a positive multiple of 4, not {bins}")
        infinity = torch.full((channels,), math.inf, dtype=torch.float64)
        counts = torch.zeros(channels, bins, dtype=torch.int64)
        none = torch.zeros(channels, dtype=torch.int64)
        return cls(counts, torch.zeros_like(infinity), none, infinity, -infinity, axis)

    @classmethod
    def of(cls, x: Tensor, bins: int = BINS, axis: int | None = None) -> Self:
        """Return the histogram of one tensor."""
        new = cls.empty(bins, 1 if axis is None else x.shape[axis], axis)
        new.add(x)
        return new

    @property
    def bins(self) -> int:
        return self.counts.shape[1]

    @property
    def total(self) -> int:
        """The number of values."""
        return int(self.counts.sum() + self.zeros.sum())

    @property
    def is_non_negative(self) -> bool:
        """Whether there are values, and none of them is below zero."""
        return bool(self.low.min() >= 0) and self.total > 0

    def add(self, x: Tensor) -> None:
        """Count the values of a tensor; NaN and infinities are refused."""
        rows = x.detach().reshape(1, -1) if self.axis is None else _rows(x.detach(), self.axis)
        if len(rows) != len(self.counts):
            raise ValueError(f"it has {len(rows)} channels now, and had {len(self.counts)} before")
        if rows.numel() == 0:
            return
        rows = rows.double() if rows.dtype == torch.float64 else rows.float()
        low, high = rows.aminmax(dim=1)
        low, high = low.cpu().double(), high.cpu().double()
        if not (low.isfinite().all() and high.isfinite().all()):
            raise ValueError("it has NaN or infinite values")
        self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
        self._widen(_power_above(torch.maximum(low.abs(), high.abs())))
        zeros = (rows == 0).sum(1).cpu()
        self.zeros += zeros
        self.counts += self._counted(rows)
        self.counts[:, self.bins // 2] -= zeros

    def _widen(self, limits: Tensor) -> None:
        """Raise the limits of channels to at least these."""
        is_new = (self.limits == 0) & (limits > 0)
        self.limits = torch.where(is_new, limits, self.limits)
        while (narrow := (self.limits > 0) & (self.limits < limits)).any():
            pairs = self.counts[narrow].unflatten(1, (-1, 2)).sum(2)
            quarter = self.bins // 4
            self.counts[narrow] = torch.nn.functional.pad(pairs, (quarter, quarter))
            self.limits = torch.where(narrow, 2 * self.limits, self.limits)

    def _counted(self, rows: Tensor) -> Tensor:
        """Return how many values of each row are in each bin; zeros are in the one above zero."""
        half, size = self.bins // 2, self.bins
        limits = self.limits.to(rows.device, rows.dtype).clamp(min=torch.finfo(rows.dtype).tiny)
        places = (rows / limits[:, None] * half).floor_().clamp_(-half, half - 1).long().add_(half)
        if len(rows) > 1:
            places += torch.arange(len(rows), device=rows.device)[:, None] * size
        counted = torch.bincount(places.flatten(), minlength=len(rows) * size)
        return counted.reshape(len(rows), size).cpu()

    def channels(self) -> list[Self]:
        """Return a histogram for each channel."""
        return [
            replace(
                self,
                counts=self.counts[i : i + 1],
                limits=self.limits[i : i + 1],
                zeros=self.zeros[i : i + 1],
                low=self.low[i : i + 1],
                high=self.high[i : i + 1],
                axis=None,
            )
            for i in range(len(self.counts))
        ]

    def merged(self, *others: Histogram) -> Histogram:
        """Return one histogram of all channels, and of others with as many bins."""
        rows = [self, *others]
        merged = Histogram(
            torch.cat([h.counts for h in rows]),
            torch.cat([h.limits for h in rows]),
            torch.cat([h.zeros for h in rows]),
            torch.cat([h.low for h in rows]),
            torch.cat([h.high for h in rows]),
        )
        merged._widen(merged.limits.max().expand(len(merged.limits)))
        return Histogram(
            merged.counts.sum(0, keepdim=True),
            merged.limits.max().reshape(1),
            merged.zeros.sum().reshape(1),
            merged.low.min().reshape(1),
            merged.high.max().reshape(1),
        )

    def positive(self) -> Histogram:
        """Return a histogram of one channel in which negative values are zeros."""
        half, counts = self.bins // 2, self.counts.clone()
        zeros = self.zeros + counts[:, :half].sum(1)
        counts[:, :half] = 0
        return replace(
            self, counts=counts, zeros=zeros, low=self.low.clamp(min=0), high=self.high.clamp(min=0)
        )

    def edges(self) -> Tensor:
        """Return the edges of the bins of a histogram with one channel."""
        return torch.linspace(-1, 1, self.bins + 1, dtype=torch.float64) * self.limits[0]

    def points(self) -> tuple[Tensor, Tensor]:
        """Return values that stand for those of the one channel, and how many each stands for."""
        used = self.counts[0].nonzero()[:, 0]
        left, size = self.edges()[used], 2 * self.limits[0] / self.bins
        values = [left + part * size for part in POINTS]
        weights = self.counts[0, used].double() / len(POINTS)
        return (
            torch.cat([*values, torch.zeros(1, dtype=torch.float64)]),
            torch.cat([weights, weights, self.zeros.double()]),
        )

    def plain(self) -> dict[str, Any]:
        """Return it as metadata hold it; `from_plain` is the inverse."""
        fits = self.counts.max() < 2**31
        return {
            "axis": self.axis,
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "limits": self.limits.tolist(),
            "zeros": self.zeros.tolist(),
            "counts": self.counts.int() if fits else self.counts.clone(),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        numbers = [torch.tensor(plain[k], dtype=torch.float64) for k in ("limits", "low", "high")]
        zeros = torch.tensor(plain["zeros"], dtype=torch.int64)
        counts = plain["counts"].to("cpu", torch.int64)
        return cls(counts, numbers[0], zeros, numbers[1], numbers[2], plain["axis"])


def _rows(x: Tensor, axis: int) -> Tensor:
    return x.movedim(axis, 0).flatten(1) if x.ndim > 1 else x.reshape(-1, 1)


def _power_above(x: Tensor) -> Tensor:
    """Return the smallest power of two that is at least `x`; zero stays zero."""
    mantissa, exponent = torch.frexp(x)
    exponent = exponent - (mantissa == 0.5).to(exponent.dtype)
    return torch.where(x > 0, torch.ldexp(torch.ones_like(x), exponent), x)
