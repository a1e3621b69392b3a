"""Rounding to fixed point with bits that are tensors, such as those of a layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chop.numerics.affine_rounding import in_float32
from chop.numerics.exponents import exp2, floor_log2
from chop.numerics.fast.learned_reference import whole_bits
from chop.numerics.grid import ElementGrid, Grid
from chop.numerics.integer import Integer
from chop.numerics.learned import fixed, learned_fixed, own_widths
from chop.numerics.mixed_integer import MixedInteger
from chop.numerics.scratch import is_plain
from chop.numerics.straight_through import straight_through

MAX_BITS = 63  # without a sign


class MixedRounding:
    """A mixed_integer format with its bits as tensors, which broadcast to what is rounded.

    Without `integer_bits` they follow from the values. Two of them are equal if they have the same
    tensors, unchanged.
    """

    deterministic = True

    def __init__(
        self, fmt: MixedInteger, frac_bits: Tensor, integer_bits: Tensor | None = None
    ) -> None:
        self.fmt, self.frac_bits, self.integer_bits = fmt, frac_bits, integer_bits
        self._versions = tuple(map(_version, self._tensors))

    @property
    def _tensors(self) -> list[Tensor]:
        return [bits for bits in (self.frac_bits, self.integer_bits) if bits is not None]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MixedRounding) or self.fmt != other.fmt:
            return False
        ours, theirs = self._tensors, other._tensors
        same = len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))
        return same and None not in self._versions and self._versions == other._versions

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: Any) -> Any:
        """Return `x` rounded, with gradients for `x` and for bits that are trained."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"mixed_integer rounds floating-point tensors, not {kind}")
        learns = any(bits.is_floating_point() for bits in self._tensors)
        if not learns and self.fmt.ste == "identity":
            return straight_through(x, self.rounded)
        tensors = [x, *self._tensors]
        # vmap does not tell whether its tensors have gradients
        has_gradient = any(t.requires_grad or not is_plain(t) for t in tensors)
        # a trace has no gradients of ours
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined]
        if tracing or not (torch.is_grad_enabled() and has_gradient):
            return self.rounded(x)
        exact = x if x.dtype in (torch.float32, torch.float64) else x.float()
        result = learned_fixed(exact, *self._used(exact), **self._rule)
        if result.dtype == x.dtype:
            return result
        highest = torch.finfo(x.dtype).max
        return result.clamp(-highest, highest).to(x.dtype)

    @property
    def _rule(self) -> dict[str, Any]:
        fmt = self.fmt
        return {"signed": fmt.signed, "rounding": fmt.rounding, "overflow": fmt.overflow}

    def bits_of(self, x: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the integer and the fraction bits of a tensor; None if it does not matter."""
        device = self.frac_bits.device if x is None else x.device
        frac_bits = self.frac_bits.to(device)
        if self.integer_bits is not None:
            return self.integer_bits.to(device), frac_bits
        assert x is not None, "these integer bits follow from the values"
        return integer_bits_for(x, frac_bits, self.fmt), frac_bits

    def grid(self, x: Tensor | None = None) -> Grid | None:
        """Return the codes of a tensor; None where the bits follow from its values, without it."""
        if x is None and self.integer_bits is None:
            return None
        fmt = self.fmt
        bits, frac_bits = whole_bits(*(b.cpu() for b in self.bits_of(x)))
        bits, frac_bits = bits.long(), frac_bits.long() + 0 * bits.long()
        live = bits > 0
        widest = max(1, int(bits.max()))
        rule: Any = {"rounding": fmt.rounding, "overflow": fmt.overflow}
        finest = int(frac_bits[live].max()) if bool(live.any()) else 0
        whole = Integer(widest + fmt.signed, finest, fmt.signed, **rule).grid()
        if bool((live & (bits == widest) & (frac_bits == finest)).all()):
            return whole
        highs = (1 << bits.clamp(min=0)) - 1
        lows = -highs - int(fmt.overflow != "symmetric") if fmt.signed else torch.zeros_like(highs)
        steps = exp2(-torch.where(live, frac_bits, 0), torch.float64)
        ends: Any = {"lows": torch.where(live, lows, 0), "highs": highs, "steps": steps}
        return ElementGrid(whole.low, whole.high, whole.scales, **rule, **ends)

    def own_widths(self, x: Tensor | None) -> Tensor | None:
        """Return the bits of each element without a sign, where one pass can tell them; or None."""
        if x is None or self.integer_bits is not None or torch.jit.is_tracing():  # type: ignore[attr-defined]
            return None
        return own_widths(x, self.frac_bits, self.fmt.signed, self.fmt.rounding)

    def rounded(self, x: Tensor) -> Tensor:
        """Return the nearest values in the dtype of `x`, without a gradient."""
        return in_float32(self.round, x.detach())

    def round(self, x: Tensor) -> Tensor:
        """Return the nearest values for float32 and float64, without a gradient."""
        with torch.no_grad():
            return fixed(x, *self._used(x), *self._rule.values())

    def _used(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the bits to round with; a range that follows from the values limits none."""
        own = self.integer_bits
        return None if own is None else own.to(x.device), self.frac_bits.to(x.device)


def integer_bits_for(x: Tensor, frac_bits: Tensor, fmt: MixedInteger) -> Tensor:
    """Return the fewest integer bits with which no value is beyond the range; no gradient.

    There is one number for each that `frac_bits` has; a group that is rounded to zero gets none.
    """
    values = x.detach() if x.dtype in (torch.float32, torch.float64) else x.detach().float()
    f = frac_bits.detach().round()

    def rounded(ends: Tensor) -> Tensor:
        return fixed(ends, None, f, fmt.signed, fmt.rounding, "saturate")

    if values.shape == f.shape:  # each number has its own
        magnitude = rounded(values).abs()
    else:
        high, low = (_over_groups(reduce, values, f) for reduce in (torch.amax, torch.amin))
        magnitude = torch.maximum(rounded(high), -rounded(low))
    bits = (floor_log2(magnitude) + 1 + f).clamp(0, MAX_BITS)
    return bits.to(f.dtype) - f


def _over_groups(reduce: Any, values: Tensor, bits: Tensor) -> Tensor:
    """Reduce values to one number for each group that shares its bits."""
    if not values.numel():
        return torch.zeros_like(bits, dtype=values.dtype)
    sizes = (*[1] * (values.dim() - bits.dim()), *bits.shape)
    shared = [d for d, (n, m) in enumerate(zip(values.shape, sizes, strict=True)) if m == 1 != n]
    reduced = reduce(values, shared, True) if shared else values
    return reduced.reshape(bits.shape)


def _version(bits: Tensor) -> int | None:
    """Return how often a tensor was written to; None for one that does not count it."""
    return bits._version if is_plain(bits) and not bits.is_inference() else None
