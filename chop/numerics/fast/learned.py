"""Fixed point with bits that are trained, by the C++ library or by Triton.

Numbers lie as outer by channels by inner, and each channel has its bits: one for a tensor, one per
channel, or one per element, of a batch or of a parameter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from chop.numerics.compiled import KERNELS
from chop.numerics.fast import cuda, learned_cuda, mode
from chop.numerics.fast.cpu import THREAD
from chop.numerics.fast.pointers import address
from chop.numerics.fast.rules import LN2, LearnedRule, Places
from chop.numerics.scratch import is_plain


@functools.lru_cache(maxsize=2**12)
def places_of(shape: Sequence[int], bits: Sequence[int]) -> Places | None:
    """Return how bits lie in a tensor; None if their dimensions are not next to each other.

    >>> places_of((8, 3, 5, 5), (3, 1, 1)), places_of((8, 4), (4,)), places_of((8, 4), ())
    ((8, 3, 25), (8, 4, 1), (8, 1, 4))
    """
    sizes = (*[1] * (len(shape) - len(bits)), *bits)
    used = [d for d, n in enumerate(sizes) if n > 1]
    if not used:
        return (shape[0], 1, math.prod(shape[1:])) if shape else (1, 1, 1)
    first, last = used[0], used[-1] + 1
    if sizes[first:last] != tuple(shape[first:last]):
        return None
    return math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:])


def kernel_places(
    x: Tensor, integer_bits: Tensor, frac_bits: Tensor, rule: LearnedRule
) -> Places | None:
    """Return how bits lie in a tensor that a kernel can round by the rule now, or None."""
    tensors = (x, integer_bits, frac_bits)
    if mode.current == "off" or x.dtype != torch.float32 or not x.numel():
        return None
    if integer_bits.shape != frac_bits.shape or not all(map(is_plain, tensors)):
        return None
    if len({t.device for t in tensors}) > 1 or not _has_kernels(x, rule):
        return None
    return places_of(tuple(x.shape), tuple(frac_bits.shape))


def _has_kernels(x: Tensor, rule: LearnedRule) -> bool:
    if x.device.type == "cpu":
        return KERNELS.ready(x.numel(), wait=mode.current == "on")
    return cuda.runs_kernels(x) and learned_cuda.works(x.device, rule)


def _threads(x: Tensor) -> int:
    return max(1, min(torch.get_num_threads(), math.isqrt(x.numel() // THREAD)))


def rounded(x: Tensor, i: Tensor, f: Tensor, places: Places, rule: LearnedRule) -> Tensor:
    """Return the values of `rounded_fixed`, bit for bit."""
    if x.is_cuda:
        return learned_cuda.rounded(x, i, f, places, rule)
    source, result = x.detach().contiguous(), x.new_empty(x.shape)
    bits = [t.detach().float().contiguous() for t in (i, f)]
    kernel = KERNELS.rule(rule.name, "learned")
    found = _addresses(rule, places, [source, result], bits)
    kernel(*found, *places, rule.packed, _threads(x))
    return result


def _addresses(
    rule: LearnedRule, places: Places, values: Sequence[Tensor], bits: Sequence[Tensor]
) -> list[int]:
    """Return where a kernel finds the values and their results, and then the bits."""
    _, channels, _ = places
    found = [address(rule.name, "x", t.view(-1), (math.prod(places),)) for t in values]
    return found + [address(rule.name, "bits", t.view(-1), (channels,)) for t in bits]


def rounded_networks(x: Tensor, i: Tensor, f: Tensor, places: Places, rule: LearnedRule) -> Tensor:
    """Return the same for several networks, which are the first dimension of all tensors."""
    if x.is_cuda:
        return learned_cuda.rounded(x, i, f, places, rule)
    return torch.stack([rounded(*one, places, rule) for one in zip(x, i, f, strict=True)])


def gradients_of_networks(
    x: Tensor, grad: Tensor, i: Tensor, f: Tensor, places: Places, rule: LearnedRule
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the gradients of several networks."""
    if x.is_cuda:
        return learned_cuda.gradients(x, grad, i, f, places, rule)
    each = zip(x, grad, i, f, strict=True)
    for_x, for_i, for_f = zip(*(gradients(*one, places, rule) for one in each), strict=True)
    no_range = any(part is None for part in for_i)
    return torch.stack(for_x), None if no_range else torch.stack(for_i), torch.stack(for_f)


def gradients(
    x: Tensor, grad: Tensor, i: Tensor, f: Tensor, places: Places, rule: LearnedRule
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the gradients for the values and for both numbers of bits.

    That for integer bits may be None if the range is that of the values.
    """
    if x.is_cuda:
        return learned_cuda.gradients(x, grad, i, f, places, rule)
    if rule.unlimited and rule.signed and places[0] * places[2] == 1:
        return grad, None, _errors(x, grad, f, rule).view(f.shape).to(f.dtype)
    follows = rule.unlimited and rule.signed  # the gradient for x is that of the result
    source, grad = x.contiguous(), grad.contiguous()
    result = grad if follows else x.new_empty(x.shape)
    bits = [t.detach().float().contiguous() for t in (i, f)]
    parts = max(1, min(_threads(x), places[0]))
    sums = x.new_zeros(parts, 2, places[1], dtype=torch.float64)
    kernel = KERNELS.rule(rule.name, "learned_gradients")
    found = _addresses(rule, places, [source, grad, result], bits)
    at = address(rule.name, "sums", sums, (parts, 2, places[1]), torch.float64)
    kernel(*found, at, *places, rule.packed, parts)
    for_i, for_f = (LN2 * sums.sum(0)).unbind()
    return result, for_i.view(i.shape).to(i.dtype), for_f.view(f.shape).to(f.dtype)


def _errors(x: Tensor, grad: Tensor, f: Tensor, rule: LearnedRule) -> Tensor:
    """Return the gradients of the fraction bits of elements whose range is that of their values."""
    source, grad, result = x.contiguous(), grad.contiguous(), x.new_empty(x.shape)
    bits = f.detach().float().contiguous()  # kept until the call is over
    kernel = KERNELS.rule(rule.name, "learned_errors")
    found = _addresses(rule, (1, x.numel(), 1), [source, grad, result], [bits])
    kernel(*found, x.numel(), rule.packed, _threads(x))
    return result


def widths(x: Tensor, f: Tensor, rule: LearnedRule) -> Tensor | None:
    """Return the bits that each rounded element needs without a sign; None without a kernel."""
    if x.is_cuda or x.shape != f.shape or kernel_places(x, f, f, rule) is None:
        return None
    source, bits = x.detach().contiguous(), f.detach().float().contiguous()
    result = x.new_empty(x.shape)
    kernel = KERNELS.rule(rule.name, "learned_widths")
    found = _addresses(rule, (1, x.numel(), 1), [source, result], [bits])
    kernel(*found, x.numel(), rule.packed, _threads(x))
    return result
