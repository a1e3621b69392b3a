"""Scales and zero points that a config leaves to calibration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from chop.numerics import NumberFormat
from chop.numerics.affine import CALIBRATED, Affine
from chop.numerics.affine_rounding import MIN_SCALE, positive

Scales = tuple[Tensor, Tensor]  # scale and zero point

ACTIVATIONS = ("data_in", "data_out")


def require_scales(formats: Mapping[str, NumberFormat], operands: tuple[str, ...]) -> None:
    """Raise an error for an operand with a scale that is not known yet."""
    for operand in operands:
        fmt = formats.get(operand)
        if fmt is not None and (reason := fmt.why_not_calibrated(operand)):
            raise ValueError(reason)


def scales_of_values(name: str, values: Tensor, fmt: Affine) -> Scales:
    """Return the scale and zero point of a parameter: those of `fmt`, or from its extremes.

    The scale is the smallest that clips nothing; the range always contains 0.
    """
    fmt.check_shape(name, values.shape)
    if fmt.is_calibrated:
        return fmt.tensors(values.device)
    low, high = extremes(name, values.detach().float(), fmt.axis)
    if fmt.scale == CALIBRATED:
        return scales_of_range(low, high, fmt)
    scale, _ = dataclasses.replace(fmt, zero_point=0).tensors(values.device)
    return scale, _zero_point(low, scale, fmt)


def scales_of_range(low: Tensor, high: Tensor, fmt: Affine) -> Scales:
    """Return the scale and zero point with which the codes just hold the numbers in a range.

    `low` and `high` have one number per scale; a range without any other number than 0 gets the
    scale 1.
    """
    low, high = low.double().clamp(max=0), high.double().clamp(min=0)
    lowest, highest = fmt.codes
    if fmt.zero_point == CALIBRATED:
        exact = (high - low) / (highest - lowest)
    else:
        point = torch.tensor(fmt.zero_point, dtype=torch.float64, device=low.device)
        exact = torch.maximum(_steps(high, highest - point), _steps(low, lowest - point))
    exact = torch.where(exact > 0, exact, 1.0)
    scale = positive(exact.float().clamp(min=MIN_SCALE), fmt.power_of_two)
    if fmt.zero_point != CALIBRATED:
        point = torch.tensor(fmt.zero_point, dtype=torch.int32, device=low.device)
        return scale, point.expand(scale.shape).contiguous()
    return scale, _zero_point(low, scale, fmt)


def _steps(reach: Tensor, codes: Tensor) -> Tensor:
    """Return the scale with which that many codes reach a number; 0 where there are no codes."""
    return torch.where(codes == 0, 0.0, reach / torch.where(codes == 0, 1.0, codes))


def _zero_point(low: Tensor, scale: Tensor, fmt: Affine) -> Tensor:
    lowest, highest = fmt.codes
    point = lowest - (low.double().clamp(max=0) / scale.double()).round()
    return point.clamp(lowest, highest).to(torch.int32)


def extremes(name: str, values: Tensor, axis: int | None) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest number of a tensor, or of each channel."""
    if not values.is_meta and not bool(values.isfinite().all()):
        raise ValueError(
            f"{name} has NaN or infinite values, which have no scale; repair them, "
            f"or give {name}_scale"
        )
    if values.numel() == 0:
        shape = () if axis is None else (values.shape[axis],)
        return values.new_zeros(shape), values.new_zeros(shape)
    if axis is None:
        return values.amin(), values.amax()
    others = [dim for dim in range(values.dim()) if dim != axis % values.dim()]
    return (values.amin(others), values.amax(others)) if others else (values, values)
