"""Masks on parameters: which of their numbers a layer computes with.

A mask is a boolean buffer, `weight_mask`, beside the parameter `weight`. The parameter itself keeps
all its numbers, its place in `state_dict` and in optimisers; reading `layer.weight` returns it
masked, so that the layer's own forward, our quantized ones included, computes with zeros where the
mask is False, and no gradient arrives there.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chop.registry import unknown


class Masked(nn.Module):
    """Mixin that `attach_mask` puts before the class of a layer, under that class's name."""

    _unmasked: ClassVar[type[nn.Module]]
    _masked_names: ClassVar[tuple[str, ...]] = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles name the layer's original class, as this one cannot be imported."""
        state: Any = self.__getstate__()  # type: ignore[no-untyped-call]
        return _blank, (self._unmasked, self._masked_names), state


def _masking(name: str) -> property:
    """Return the attribute through which a masked parameter is read."""

    def masked(module: nn.Module) -> Tensor | None:
        parameter = module._parameters[name]
        if parameter is None:
            return None
        # not a product, which would keep infinities and the signs of zeros
        return torch.where(module.get_buffer(mask_name(name)), parameter, 0.0)

    return property(masked)


def _flat_weights(module: Any) -> list[Any]:
    """Return the list of parameters that torch's recurrent layers compute with, masked."""
    return [getattr(module, name, None) for name in module._flat_weights_names]


def _ignore(module: nn.Module, value: Any) -> None:
    """Torch sets the list again when parameters move; it is read from them."""


def mask_name(name: str) -> str:
    """Return the name of a parameter's mask in `state_dict`.

    >>> mask_name("weight")
    'weight_mask'
    """
    return f"{name}_mask"


_CLASSES: dict[tuple[type, tuple[str, ...]], type] = {}


def masked_class(cls: type[Any], names: tuple[str, ...]) -> type[Any]:
    """Return `cls` with the parameters `names` read through masks; `cls` itself without any."""
    if not names:
        return cls
    if (cls, names) not in _CLASSES:
        # among them the module: fx takes torch's own layers for leaves
        same = {key: getattr(cls, key) for key in ("__module__", "__qualname__", "__doc__")}
        body = {**same, "_unmasked": cls, "_masked_names": names}
        body |= {name: _masking(name) for name in names}
        if issubclass(cls, nn.RNNBase):
            body["_flat_weights"] = property(_flat_weights, _ignore)
        _CLASSES[cls, names] = type(cls.__name__, (Masked, cls), body)
    return _CLASSES[cls, names]


def masked_names(cls: type) -> tuple[str, ...]:
    """The names of parameters that layers of this class read through masks."""
    return cls._masked_names if issubclass(cls, Masked) else ()


def unmasked_class(cls: type[Any]) -> type[Any]:
    """The class of a masked layer before it got masks."""
    return cls._unmasked if issubclass(cls, Masked) else cls


def attach_mask(module: nn.Module, name: str, mask: Tensor) -> None:
    """Make `module` compute with its parameter `name` where `mask` is true, and with 0 elsewhere.

    An existing mask is replaced. A mask is part of `state_dict` and is copied, moved,
    saved and loaded with the layer.
    """
    parameter = _parameter(module, name)
    checked = _checked_mask(module, name, mask, parameter).to(parameter.device)
    names = masked_names(type(module))
    buffer = mask_name(name)
    if name not in names and hasattr(module, buffer):
        raise ValueError(
            f"{type(module).__name__} already has an attribute {buffer!r}; "
            f"rename it, as the mask of {name!r} needs that name"
        )
    module.register_buffer(buffer, checked)
    _set_names(module, (*names, name))


def masks_of(module: nn.Module) -> dict[str, Tensor]:
    """The masks of a layer by the name of the parameter; {} for a layer without masks."""
    return {name: module.get_buffer(mask_name(name)) for name in masked_names(type(module))}


def detach_mask(module: nn.Module, name: str) -> None:
    """Make a mask permanent: the parameter becomes zero where it was masked, and plain again.

    The parameter is a new one, as the old one may be shared; create optimisers afterwards.
    """
    names = masked_names(type(module))
    if name not in names:
        raise KeyError(unknown("masked parameter", name, list(names)))
    trained = _parameter(module, name).requires_grad
    module.register_parameter(name, nn.Parameter(getattr(module, name).detach().clone(), trained))
    del module._buffers[mask_name(name)]
    module._non_persistent_buffers_set.discard(mask_name(name))
    _set_names(module, tuple(other for other in names if other != name))
    _renew_flat_weights(module)


def _renew_flat_weights(module: nn.Module) -> None:
    """Make the list of parameters that a recurrent layer of torch computes with, from them."""
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()


def renewed(module: nn.Module) -> nn.Module:
    """Return the layer as a new object that shares parameters and buffers.

    Attaching something to it does not affect the original, which another graph may use.
    """
    new: nn.Module = module.__class__.__new__(module.__class__)
    for key, value in vars(module).items():
        vars(new)[key] = value.copy() if isinstance(value, dict) else value
    vars(new)["_non_persistent_buffers_set"] = set(module._non_persistent_buffers_set)
    if isinstance(module, nn.MultiheadAttention):  # its parts hold weights of it
        parts = {name: part and renewed(part) for name, part in module._modules.items()}
        vars(new)["_modules"] = parts
    _renew_flat_weights(new)
    return new


def _blank(cls: type[Any], names: tuple[str, ...]) -> nn.Module:
    return object.__new__(masked_class(cls, names))  # type: ignore[no-any-return]


def _set_names(module: nn.Module, names: tuple[str, ...]) -> None:
    ordered = tuple(sorted(set(names)))
    module.__class__ = masked_class(unmasked_class(type(module)), ordered)


def _parameter(module: nn.Module, name: str) -> nn.Parameter:
    parameter = module._parameters.get(name)
    if parameter is None:
        names = [key for key, value in module._parameters.items() if value is not None]
        raise KeyError(unknown(f"parameter of {type(module).__name__}", name, names))
    return parameter


def _checked_mask(module: nn.Module, name: str, mask: Tensor, parameter: Tensor) -> Tensor:
    what = f"the mask of {name!r} of {type(module).__name__}"
    if not isinstance(mask, Tensor):
        raise TypeError(f"{what} must be a tensor, not {type(mask).__name__}")
    if mask.shape != parameter.shape:
        raise ValueError(
            f"{what} has the shape {list(mask.shape)}; "
            f"give it that of the parameter, {list(parameter.shape)}"
        )
    if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError(f"{what} holds other numbers than 0 and 1; give a boolean tensor")
    return mask.detach().to(torch.bool).clone()
