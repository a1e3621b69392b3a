"""The range that a format should cover, chosen from a histogram by one of several methods."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chop.numerics.base import NumberFormat
from chop.numerics.histograms import Histogram

Range = tuple[float, float]
Counts = npt.NDArray[np.float64]
Method = Literal["minmax", "percentile", "mse", "entropy"]

PERCENTILE = 99.999
SMOOTHING = 1e-4  # the count that stands for an empty bin in a divergence
CHUNK = 128  # candidates that are compared at once
FRACTIONS = (-120, 120)


def minmax(histogram: Histogram) -> Range:
    """Return the smallest and the largest value."""
    return float(histogram.low.min()), float(histogram.high.max())


def percentile(histogram: Histogram, percent: float, symmetric: bool = True) -> Range:
    """Return the range of that share of the values, in percent.

    A symmetric one leaves out the largest magnitudes, any other the same share at either end. It is
    cut to the smallest and the largest value.
    """
    low, high = minmax(histogram)
    edges, counts = histogram.edges(), with_zeros(histogram)
    if symmetric:
        half = histogram.bins // 2
        magnitudes = counts[half:] + counts[:half].flip(0)
        threshold = float(edges[half:][_upper_edge(magnitudes, percent / 100)])
        return max(-threshold, low), min(threshold, high)
    cut = (1 - percent / 100) / 2
    left = float(edges[_upper_edge(counts, cut) - 1]) if cut > 0 else low
    return max(left, low), min(float(edges[_upper_edge(counts, 1 - cut)]), high)


def _upper_edge(counts: Tensor, share: float) -> int:
    """Return the index of the edge above the bin in which that share of all values is reached."""
    summed = counts.double().cumsum(0) / counts.sum()
    bin_above = int(torch.searchsorted(summed, torch.tensor(share, dtype=torch.float64)))
    return min(bin_above, len(counts) - 1) + 1


def with_zeros(histogram: Histogram) -> Tensor:
    """Return the counts of the one channel, with zeros in the bin that begins at zero."""
    counts = histogram.counts[0].clone()
    counts[histogram.bins // 2] += histogram.zeros[0]
    return counts


def entropy(histogram: Histogram, levels: int) -> Range:
    """Return the range with the least divergence of its values in `levels` steps from its values.

    Values outside count at its ends (TensorRT's calibration of 8-bit integers has 128 levels).
    """
    counts, edges = with_zeros(histogram).numpy().astype(np.float64), histogram.edges()
    middle, least = len(counts) // 2, levels // 2
    best, chosen = float("inf"), middle
    for i in range(least, middle + 1):
        divergence = _divergence(counts, middle - i, min(middle + i + 1, len(counts)), levels)
        if divergence < best:
            best, chosen = divergence, i
    start, stop = middle - chosen, min(middle + chosen + 1, len(counts))
    low, high = minmax(histogram)
    return max(float(edges[start]), low), min(float(edges[stop]), high)


def _divergence(counts: Counts, start: int, stop: int, levels: int) -> float:
    """Return the divergence of the counts from `start` to `stop` from themselves in few levels."""
    inside = counts[start:stop]
    wanted = inside.copy()
    wanted[0] += counts[:start].sum()
    wanted[-1] += counts[stop:].sum()
    size = len(inside) // levels  # bins of a level; the last level also has the rest
    whole = size * levels
    merged = inside[:whole].reshape(levels, size).sum(1)
    merged[-1] += inside[whole:].sum()
    filled = (wanted[:whole] != 0).reshape(levels, size).sum(1)
    spread = np.floor(merged / np.maximum(filled, 1)) * (filled > 0)
    coarse = np.zeros_like(wanted)
    coarse[:whole] = spread.repeat(size)
    p, q = _smoothed(wanted), _smoothed(coarse)
    if p is None or q is None:
        return float("inf")
    p, q = p / p.sum(), q / q.sum()
    return float((p * np.log(p / q)).sum())  # in float32, so that ties are those of onnxruntime


def _smoothed(counts: Counts) -> npt.NDArray[np.float32] | None:
    """Return counts without zeros and with the same sum; None if all are zero."""
    empty = (counts == 0).astype(np.float32)
    number = float(empty.sum())
    if number == len(counts):
        return None
    taken = SMOOTHING * number / (len(counts) - number)
    smoothed: npt.NDArray[np.float32] = counts.astype(np.float32)
    smoothed += SMOOTHING * empty - taken * (1 - empty)
    return smoothed


def mse(histogram: Histogram, width: int, *, signed: bool = True, symmetric: bool = True) -> Range:
    """Return the range of integers of `width` bits with the least squared error."""
    low, high = minmax(histogram)
    half = histogram.bins // 2
    edges = histogram.edges()[half + 1 :]
    inside = int((edges < max(-low, high)).sum()) + 1
    edges = edges[: max(inside, 1)]
    least, most = codes(width, signed)
    if symmetric:
        errors = _errors(histogram, edges / most, torch.zeros_like(edges), least, most)
        threshold = float(edges[int(errors.argmin())])
        return (-threshold if signed else 0.0), threshold
    low, high = min(low, 0.0), max(high, 0.0)
    shares = edges / edges[-1]
    steps = shares * (high - low) / (most - least)
    offsets = (least - (shares * low / steps).round()).clamp(least, most)
    best = float(shares[int(_errors(histogram, steps, offsets, least, most).argmin())])
    return best * low, best * high


def codes(width: int, signed: bool) -> tuple[int, int]:
    """Return the smallest and the largest integer of that width."""
    low = -(2 ** (width - 1)) if signed else 0
    return low, low + 2**width - 1


def _errors(histogram: Histogram, steps: Tensor, offsets: Tensor, least: int, most: int) -> Tensor:
    """Return the squared error with each of the step sizes and zero points."""
    values, weights = histogram.points()
    errors = []
    for some, zero in zip(steps.split(CHUNK), offsets.split(CHUNK), strict=True):
        step, zero = some[:, None], zero[:, None]
        whole = ((values / step).round() + zero).clamp(least, most)
        errors.append((((whole - zero) * step - values).square() * weights).sum(1))
    return torch.cat(errors)


def range_of(
    histogram: Histogram,
    method: Method,
    width: int,
    *,
    percent: float = PERCENTILE,
    signed: bool = True,
    symmetric: bool = True,
) -> Range:
    """Return the range that a method chooses for integers of `width` bits.

    The histogram has one channel.
    """
    if histogram.limits[0] == 0:  # only zeros
        return 0.0, 0.0
    if method == "minmax":
        return minmax(histogram)
    if method == "percentile":
        return percentile(histogram, percent, symmetric)
    if method == "entropy":
        return entropy(histogram, levels_of(width, histogram.bins))
    return mse(histogram, width, signed=signed, symmetric=symmetric)


def levels_of(width: int, bins: int) -> int:
    """Return the number of levels of a width: 128 for 8 bits, and never more than the bins show."""
    return int(min(max(2 ** (width - 1), 2), bins // 4))


def squared_error(fmt: NumberFormat, values: Tensor, weights: Tensor | None = None) -> float:
    """Return the sum of the squared errors of values in a format, each as often as its weight."""
    errors = (fmt.round(values) - values).square()
    return float((errors if weights is None else errors * weights).sum())
