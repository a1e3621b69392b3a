"""Steps of weights that hold the bias: codes of 32 bits in steps of input times weight.

A channel with small weights and a large bias, as folding a batch norm of a dead channel leaves it,
needs larger steps than its weights ask for: its bias would be clipped, or its sum would wrap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.numerics.affine import CALIBRATED, Affine
from chop.numerics.affine_rounding import MIN_SCALE, positive
from chop.numerics.scratch import is_plain

MAX_CODE = 2**31 - 2**7  # of a bias: float32 has no integer between it and 2^31
SLACK = 2**11  # codes by which float32 scales may miss the room
MIN_ROOM = 2**30  # for a bias beside products of any number and width
OWN_CODE = 2**48  # of a bias in steps of its own, on the grid of the products


@dataclass(frozen=True)
class Room:
    """How large the codes of a bias may be: steps grow to those of `kept` if one exceeds `most`."""

    most: int
    kept: int

    @classmethod
    def of(cls, layer: Any, formats: Any, bias: Tensor, is_product: bool, made: bool) -> Room:
        """Return the room beside the products; given scales change only if they must."""
        data, weight = formats["data_in"], formats["weight"]
        terms = layer._parameter("weight").numel() // bias.numel()
        kept = max(2**31 - 2 * SLACK - terms * 2**data.width * _largest(weight), MIN_ROOM)
        if not is_product:
            return cls(OWN_CODE, kept)
        made = made or weight.scale == CALIBRATED
        return cls(kept + SLACK if made else MAX_CODE, kept)


def _largest(weight: Affine) -> int:
    """Return the largest magnitude of a weight in steps."""
    low, high = weight.codes
    return high - low if weight.zero_point != 0 else max(-low, high)


def input_step(fmt: Any, scale: Tensor | None) -> Tensor | None:
    """Return the smallest step of a layer's input; None if it has none."""
    if fmt is None:
        return None
    if scale is None:
        grid = fmt.grid() if fmt.is_calibrated else None
        return None if grid is None else torch.tensor(min(grid.scales))
    used = scale.detach()
    if fmt.learn or fmt.power_of_two:
        used = positive(used, fmt.power_of_two)
    return used.amin() if used.ndim else used


def surely_holds(scale: Tensor, bias: Tensor, own: Tensor) -> bool:
    """Return whether no scale has to be raised, where a look at the numbers is quick.

    `own` is the scale of the input.
    """
    if not (scale.is_cpu and bias.is_cpu and own.is_cpu and own.ndim == 0):
        return False
    if not (is_plain(scale) and is_plain(bias) and is_plain(own)):
        return False
    (least, _), (low, high) = torch.aminmax(scale.detach()), torch.aminmax(bias.detach())
    product = max(0.0, float(least.detach())) * float(own.detach())
    return product >= MIN_SCALE and max(float(high), -float(low)) <= MIN_ROOM * product


def holding(
    scale: Tensor, bias: Tensor, step: Tensor, weight: Affine, room: Room, is_product: bool
) -> Tensor:
    """Return a weight's scales, larger where a bias needs it; otherwise the same tensor.

    The product of both scales stays a normal float32.
    """
    floor = MIN_SCALE if is_product else 0.0
    used = positive(scale.detach(), weight.power_of_two)
    needed = bias.detach().abs().double()
    step = step.to(scale.device).double()
    needed = _by_scale(needed.to(scale.device), scale, weight)
    needed = torch.nan_to_num(needed, nan=0.0, posinf=0.0)  # of a training that diverges
    small = used.double() * step < torch.clamp(needed / room.most, min=floor)
    raised = torch.clamp(needed / room.kept, min=floor * (1 + 2**-20)) / step
    return torch.where(small, raised.to(scale.dtype), scale)


def without_dead(scale: Tensor, weight: Tensor, bias: Tensor, fmt: Affine) -> Tensor:
    """Return the scales, the smallest for channels of zeros: only the bias needs theirs."""
    if fmt.axis is None:
        dead = ~weight.any()
    else:
        dead = ~weight.detach().movedim(fmt.axis, 0).flatten(1).any(1)
    dead = dead & (_by_scale(bias.detach().abs().double(), scale, fmt) > 0)
    return torch.where(dead, MIN_SCALE, scale)


def _by_scale(needed: Tensor, scale: Tensor, weight: Affine) -> Tensor:
    """Return the largest bias of each scale; a group of a transposed convolution repeats them."""
    by_output = weight.axis is not None and needed.numel() % max(1, scale.numel()) == 0
    return needed.view(-1, scale.numel()).amax(0) if by_output else needed.amax()
