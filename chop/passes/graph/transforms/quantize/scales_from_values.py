"""Scales and zero points of affine operands, from histograms or from tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from chop.numerics import from_config
from chop.numerics.affine import CALIBRATED, Affine
from chop.numerics.histograms import Histogram
from chop.numerics.thresholds import Method, range_of, squared_error
from chop.passes.graph.transforms.quantize.calibrated import scales_of_range
from chop.passes.graph.transforms.quantize.observed import Observed

CANDIDATES = 64  # shares of the largest value of a channel that are tried as its range
POWERS = (1.0, 0.5, 0.25)  # of a power-of-two scale that clips nothing
BY_ERROR = ("mse", "output")

Config = dict[str, Any]


def affine_keys(known: Observed, config: Config) -> Config:
    """Return scale and zero point of an operand, and its sign if all values are positive.

    Parameters of a graph that has not been calibrated, and several that share an operand, are left
    to the layer, which takes the smallest and the largest value of each.
    """
    operand, signed = known.operand, {}
    given = any(key in config for key in (f"{operand}_signed", "signed"))
    fmt: Any = from_config(config, operand)
    if known.is_activation:
        if not given and fmt.zero_point == 0 and known.histogram().is_non_negative:
            signed = {} if known.drops_sign else {f"{operand}_signed": False}
            fmt = replace(fmt, signed=False, symmetric=False)
        pair = _of_activation(known, fmt)
    elif not known.is_noted or len(known.tensors) != 1 or known.method == "minmax":
        return {}
    else:
        pair = _of_tensor(operand, known.tensors[0].detach(), fmt)
    numbers = dict(zip(("scale", "zero_point"), (t.tolist() for t in pair), strict=True))
    open_keys = [key for key in numbers if getattr(fmt, key) == CALIBRATED]
    return signed | {f"{operand}_{key}": numbers[key] for key in open_keys}


def _of_activation(known: Observed, fmt: Affine) -> tuple[Tensor, Tensor]:
    if fmt.axis is None:
        histograms = [known.histogram()]
    else:
        histograms = known.by_channel(fmt.axis)
    method: Method = "mse" if known.method in BY_ERROR else known.method  # type: ignore[assignment]
    is_symmetric = fmt.zero_point != CALIBRATED
    ranges = [
        range_of(
            histogram,
            method,
            fmt.width,
            percent=known.percentile,
            signed=fmt.signed,
            symmetric=is_symmetric,
        )
        for histogram in histograms
    ]
    low, high = (torch.tensor(ends, dtype=torch.float64) for ends in zip(*ranges, strict=True))
    low, high = (low, high) if fmt.axis is not None else (low[0], high[0])
    pair = scales_of_range(low, high, fmt)
    is_open = fmt.power_of_two and fmt.axis is None and method == "mse"
    return _best_power(pair, histograms[0], fmt) if is_open else pair


def _best_power(
    pair: tuple[Tensor, Tensor], histogram: Histogram, fmt: Affine
) -> tuple[Tensor, Tensor]:
    """Return the power of two with the least squared error, of the one that covers and smaller."""
    values, weights = histogram.points()

    def error(share: float) -> float:
        numbers: Any = {"scale": share * float(pair[0]), "zero_point": int(pair[1])}
        return squared_error(replace(fmt, **numbers), values, weights)

    return pair[0] * min(POWERS, key=error), pair[1]


def _of_tensor(operand: str, values: Tensor, fmt: Affine) -> tuple[Tensor, Tensor]:
    """Return the scale and zero point with the least squared error, for each channel."""
    fmt.check_shape(operand, values.shape)
    whole = fmt.axis is None
    channels = values[None] if whole else values.movedim(fmt.axis or 0, 0)
    rows = channels.reshape(len(channels), -1).double()
    low, high = rows.amin(1).clamp(max=0), rows.amax(1).clamp(min=0)
    by_channel = replace(fmt, axis=0)
    best = torch.full_like(low, torch.inf)
    share = torch.ones_like(low)
    for step in range(CANDIDATES, 0, -1):
        part = step / CANDIDATES
        scale, point = scales_of_range(part * low, part * high, by_channel)
        error = _errors(rows, scale.double()[:, None], point.double()[:, None], fmt)
        is_better = error < best
        best, share = torch.where(is_better, error, best), torch.where(is_better, part, share)
    scale, point = scales_of_range(share * low, share * high, by_channel)
    return (scale[0], point[0]) if whole else (scale, point)


def _errors(rows: Tensor, scale: Tensor, point: Tensor, fmt: Affine) -> Tensor:
    lowest, highest = fmt.codes
    codes = ((rows / scale).round() + point).clamp(lowest, highest)
    return ((codes - point) * scale - rows).square().sum(1)
