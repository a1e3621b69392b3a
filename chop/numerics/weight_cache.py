"""Rounded parameters, cached until the parameters change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chop.numerics.base import NumberFormat
from chop.registry import not_defined


class CachedWeight(NamedTuple):
    """A rounded parameter and the bits it was rounded from (None if they are never compared)."""

    source: Tensor | None
    fmt: NumberFormat
    rounded: Tensor

    def is_of(self, tensor: Tensor, bits: Tensor) -> bool:
        return (
            self.source is not None
            and self.rounded.dtype == tensor.dtype
            and torch.equal(self.source, bits)
        )


class TrackedWeights(dict[str, CachedWeight]):
    """A layer's weight cache with an owner that knows which parameters changed."""

    layer: CachesWeights

    def tracks(self, name: str) -> bool:
        """Return whether the owner tracks a parameter; not if it is computed on each access."""
        computed = hasattr(type(self.layer), name)  # masked, or parametrized
        return not computed and self.layer._parameters.get(name) is not None

    def unchanged(self, name: str) -> CachedWeight | None:
        """Return the cached value of a parameter that has not changed since, or None."""
        raise not_defined(self, "unchanged", "owner of a weight cache")


class ObservedParameter(NamedTuple):
    """A parameter as observed: its data may have moved since, as by `to`."""

    parameter: nn.Parameter
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, layer: nn.Module, name: str) -> ObservedParameter:
        parameter = layer._parameters[name]
        assert parameter is not None, "only existing parameters are observed"
        return cls(parameter, parameter.dtype, parameter.device)

    def is_still(self, parameter: nn.Parameter | None) -> bool:
        # another one may have taken its place, as in `functional_call`
        return (
            self.parameter is parameter
            and self.dtype == self.parameter.dtype
            and self.device == self.parameter.device
        )


class CachesWeights(nn.Module):
    """A layer that caches its rounded parameters."""

    _kept: dict[str, CachedWeight]


# by value, as writes through `.data` change neither a tensor's address nor its version; and by
# bits, so that NaN equals itself and -0 is not 0
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def round_or_reuse(tensor: Tensor, fmt: NumberFormat, cached: CachedWeight | None) -> CachedWeight:
    """Return `cached` if it was rounded from the same bits; otherwise round the tensor."""
    if not tensor.is_cpu:
        return CachedWeight(None, fmt, fmt(tensor.detach()))
    bits = tensor.detach().view(BITS[tensor.element_size()])
    if cached is not None and cached.fmt == fmt and cached.is_of(tensor, bits):
        return cached
    return CachedWeight(bits.clone(), fmt, fmt(tensor.detach()))


class _FrozenWeights(TrackedWeights):
    """Compares each parameter once, and not again until the context ends."""

    def __init__(self, layer: CachesWeights) -> None:
        super().__init__(layer._kept)
        self.layer = layer
        self._seen: dict[str, ObservedParameter] = {}

    def unchanged(self, name: str) -> CachedWeight | None:
        observed = self._seen.get(name)
        still = observed is not None and observed.is_still(self.layer._parameters[name])
        return self.get(name) if still else None

    def __setitem__(self, name: str, cached: CachedWeight) -> None:
        super().__setitem__(name, cached)
        if self.tracks(name):
            self._seen[name] = ObservedParameter.of(self.layer, name)

    def afterwards(self) -> dict[str, CachedWeight]:
        """Return the cached values that can be compared with the parameters later."""
        return {name: cached for name, cached in self.items() if cached.source is not None}


@contextlib.contextmanager
def frozen_weights(model: nn.Module) -> Iterator[None]:
    """Round each parameter of `model` at most once; the caller promises not to write to them.

    In eval mode and without gradients this saves a GPU the rounding in every forward pass, and a
    CPU the comparison. `configure` still works inside.
    """
    layers = [m for m in model.modules() if isinstance(m, CachesWeights)]
    layers = [layer for layer in layers if not isinstance(layer._kept, TrackedWeights)]
    for layer in layers:
        layer._kept = _FrozenWeights(layer)
    try:
        yield
    finally:
        for layer in layers:
            if isinstance(layer._kept, _FrozenWeights):
                layer._kept = layer._kept.afterwards()
