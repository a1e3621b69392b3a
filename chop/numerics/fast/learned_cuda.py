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
from chop.numerics.fast.rules import LN2, LearnedRule, Places

logger = logging.getLogger(__name__)

ROUNDINGS = {"even": 0, "up": 1, "floor": 2}
SIZE, WARPS = 1024, 4
PROBE = LearnedRule(signed=True, rounding="even", overflow="saturate")


@functools.cache
def _kernels() -> Any:
    return importlib.import_module("chop.numerics.kernels.learned")


@functools.cache
def works(device: torch.device) -> bool:
    """Return whether the kernels compile and run on a device; if not, torch rounds."""
    x, bits, rule = torch.ones(1, device=device), torch.ones(1, device=device), PROBE
    try:
        rounded(x, bits, bits, (1, 1, 1), rule)
        gradients(x, x, bits, bits, (1, 1, 1), rule)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        logger.debug("Triton cannot compile (%s): learned bits use plain torch operations", error)
        return False
    return True


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
