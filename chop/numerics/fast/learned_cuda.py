"""Fixed point with bits that are trained on CUDA, by Triton kernels.

All networks of a population are rounded in one launch: their numbers and bits lie one after the
other.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
from typing import Any

import torch
from torch import Tensor

from chop.numerics.fast import cuda
from chop.numerics.fast.learned_reference import reference_gradients, rounded_fixed
from chop.numerics.fast.rules import ENOUGH, LN2, LearnedRule, Places

logger = logging.getLogger(__name__)

ROUNDINGS = {"even": 0, "up": 1, "floor": 2}
SIZE, WARPS = 1024, 4


@functools.cache
def _kernels() -> Any:
    return importlib.import_module("chop.numerics.kernels.learned")


@functools.cache
def works(device: torch.device, rule: LearnedRule) -> bool:
    """Return whether the kernels of a rule run on a device and agree with the reference.

    They are compared once in a process; if they do not agree, torch rounds.
    """
    try:
        wrong = _difference(device, rule)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        logger.debug("Triton cannot compile (%s): learned bits use plain torch operations", error)
        return False
    if wrong is not None:
        logger.warning(
            "the Triton kernels of learned bits give other %s than torch on %s (%s): learned bits "
            "use plain torch operations, which are slower",
            *(wrong, device, rule),
        )
    return wrong is None


def _difference(device: torch.device, rule: LearnedRule) -> str | None:
    """Return in what the kernels differ from the reference on a small tensor; None if equal."""
    x, grad, i, f = (t.to(device) for t in _examples())
    if rule.unlimited:
        i = ENOUGH - f
    places = (x.shape[0], x.shape[1], x.shape[2])
    values = rounded_fixed(x, i, f, *rule.words)
    if not torch.equal(rounded(x, i, f, places, rule), values):
        return "values"
    for_x, *for_bits = gradients(x, grad, i, f, places, rule)
    wanted = reference_gradients(x, i, f, values, grad, rule)
    # sums of many terms are in another order
    sums = (part.sum_to_size(f.shape) for part in wanted[1:])
    close = all(map(functools.partial(torch.allclose, rtol=1e-4, atol=1e-4), for_bits, sums))
    return None if close and torch.equal(for_x, wanted[0]) else "gradients"


def _examples() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return numbers, gradients, and the bits of each channel: with ties, zeros and overflow."""
    x = torch.arange(-192, 192).view(16, 8, 3) / 16
    x[:, :, 1] *= 1.37  # between the steps
    grad = torch.arange(384).view(16, 8, 3) % 7 - 2.5
    i = torch.tensor([-1.0, 0, 1, 2, 3, 4, 2, 0]).view(8, 1)
    f = torch.tensor([0.0, 1, 2, 3, 0, 5, -1, 8]).view(8, 1)
    return x, grad, i, f


def rounded(x: Tensor, i: Tensor, f: Tensor, places: Places, rule: LearnedRule) -> Tensor:
    """Return the values of `rounded_fixed`, bit for bit."""
    source = x.detach().contiguous()
    result = torch.empty_like(source)
    bits = _bits(i, f)
    grid, settings = _grid(source), _settings(rule)
    numbers = _numbers(source, places)
    cuda.on_device_of(
        source,
        lambda: _kernels().round_learned[grid](source, result, *bits, *numbers, **settings),
    )
    return result


def gradients(
    x: Tensor, grad: Tensor, i: Tensor, f: Tensor, places: Places, rule: LearnedRule
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients for the values and for both numbers of bits."""
    source, given = x.detach().contiguous(), grad.contiguous()
    for_x, for_i, for_f = (torch.empty_like(source) for _ in range(3))
    bits = _bits(i, f)
    grid, settings = _grid(source), _settings(rule)
    tensors = (source, given, for_x, for_i, for_f, *bits, *_numbers(source, places))
    cuda.on_device_of(source, lambda: _kernels().learned_gradients[grid](*tensors, **settings))
    sums = (LN2 * _summed(part, places) for part in (for_i, for_f))
    at_i, at_f = (total.view(b.shape).to(b.dtype) for total, b in zip(sums, (i, f), strict=True))
    return for_x, at_i, at_f


def _bits(i: Tensor, f: Tensor) -> list[Tensor]:
    return [bits.detach().float().contiguous() for bits in (i, f)]


def _grid(x: Tensor) -> tuple[int]:
    return (-(-x.numel() // SIZE),)


def _numbers(x: Tensor, places: Places) -> tuple[int, int, int, int]:
    """Return the size of all networks and of one, the channels and the inner size."""
    return x.numel(), math.prod(places), places[1], places[2]


def _summed(parts: Tensor, places: Places) -> Tensor:
    """Return sums over all numbers of each channel of each network."""
    return parts.view(-1, *places).sum((1, 3), dtype=torch.float64)


def _settings(rule: LearnedRule) -> dict[str, Any]:
    return {
        "SIGNED": rule.signed,
        "SYMMETRIC": rule.overflow == "symmetric",
        "UNLIMITED": rule.unlimited,
        "WRAPS": rule.overflow == "wrap",
        "ROUNDING": ROUNDINGS[rule.rounding],
        "SIZE": SIZE,
        "num_warps": WARPS,
        "enable_fp_fusion": False,
    }
