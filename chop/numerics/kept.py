"""Parameters that are rounded once and kept, and how one knows that they have not changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chop.numerics.base import NumberFormat


class Kept(NamedTuple):
    """A rounded parameter, with what it was made from, as bits if somebody will compare them."""

    source: Tensor | None
    fmt: NumberFormat
    rounded: Tensor

    def is_of(self, tensor: Tensor, bits: Tensor) -> bool:
        return (
            self.source is not None
            and self.rounded.dtype == tensor.dtype
            and torch.equal(self.source, bits)
        )


class Vouched(dict[str, Kept]):
    """What a layer keeps, where somebody knows without looking whether a parameter has changed."""

    layer: Keeper

    def vouches(self, name: str) -> bool:
        """Whether somebody knows it of this parameter: not of what is made of it at each look."""
        made = hasattr(type(self.layer), name)  # masked, or parametrized
        return not made and self.layer._parameters.get(name) is not None

    def unchanged(self, name: str) -> Kept | None:
        """What was kept of a parameter that has not changed since."""
        raise NotImplementedError


class Seen(NamedTuple):
    """A parameter when it was looked at: its data may have moved since, as by `to`."""

    parameter: nn.Parameter
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, layer: nn.Module, name: str) -> Seen:
        parameter = layer._parameters[name]
        assert parameter is not None, "who vouches knows that it is there"
        return cls(parameter, parameter.dtype, parameter.device)

    def is_still(self, parameter: nn.Parameter | None) -> bool:
        # another one may have taken its place, as in `functional_call`
        return (
            self.parameter is parameter
            and self.dtype == self.parameter.dtype
            and self.device == self.parameter.device
        )


class Keeper(nn.Module):
    """A layer that keeps what it has rounded."""

    _kept: dict[str, Kept]


# by value, as writes through `.data` change neither the address nor the version of a tensor; and by
# bits, so that NaN equals itself and -0 is not 0
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def rounded_again(tensor: Tensor, fmt: NumberFormat, before: Kept | None) -> Kept:
    """What was kept `before`, if it is of the same bits; otherwise the tensor rounded anew."""
    if not tensor.is_cpu:
        return Kept(None, fmt, fmt(tensor.detach()))
    bits = tensor.detach().view(BITS[tensor.element_size()])
    if before is not None and before.fmt == fmt and before.is_of(tensor, bits):
        return before
    return Kept(bits.clone(), fmt, fmt(tensor.detach()))


class _AtRest(Vouched):
    """Parameters are looked at once, and then not before the end."""

    def __init__(self, layer: Keeper) -> None:
        super().__init__(layer._kept)
        self.layer = layer
        self._seen: dict[str, Seen] = {}

    def unchanged(self, name: str) -> Kept | None:
        seen = self._seen.get(name)
        still = seen is not None and seen.is_still(self.layer._parameters[name])
        return self.get(name) if still else None

    def __setitem__(self, name: str, kept: Kept) -> None:
        super().__setitem__(name, kept)
        if self.vouches(name):
            self._seen[name] = Seen.of(self.layer, name)

    def afterwards(self) -> dict[str, Kept]:
        """What can be compared with the parameters later."""
        return {name: kept for name, kept in self.items() if kept.source is not None}


@contextlib.contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Look at each parameter of `model` at most once: nobody writes to it until the end.

    In eval mode and without gradients this spares a GPU the rounding at every forward pass, and a
    CPU the comparison. `configure` works meanwhile as ever.
    """
    layers = [m for m in model.modules() if isinstance(m, Keeper)]
    layers = [layer for layer in layers if not isinstance(layer._kept, Vouched)]
    for layer in layers:
        layer._kept = _AtRest(layer)
    try:
        yield
    finally:
        for layer in layers:
            if isinstance(layer._kept, _AtRest):
                layer._kept = layer._kept.afterwards()
