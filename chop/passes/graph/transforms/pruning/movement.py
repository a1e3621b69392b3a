"""Movement: whether training moves a weight away from zero or towards it.

The score of a weight w is the sum, over all backward passes, of -w · gradient: positive if descent
makes it larger in absolute value. It lives in the buffer `weight_movement`, so checkpoints keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from chop.passes.graph.transforms.pruning.weights import weight_names


def movement_name(name: str) -> str:
    """Return the name of a parameter's movement scores in `state_dict`.

    >>> movement_name("weight")
    'weight_movement'
    """
    return f"{name}_movement"


class Accumulate:
    """A hook on a parameter that accumulates the movement of each backward pass."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, gradient: Tensor) -> None:
        scores = self.module._buffers.get(movement_name(self.name))
        weight = self.module._parameters[self.name]
        if scores is not None and weight is not None:
            scores.sub_((weight.detach() * gradient).to(scores.dtype))


def follow_movement(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Forward pre-hook: also track copies of a layer, whose parameters are new."""
    if not torch.is_grad_enabled():
        return
    for holder, name in _weights(module):
        weight = holder._parameters[name]
        if weight is None or not weight.requires_grad:
            continue
        hooks = weight._backward_hooks or {}
        if not any(isinstance(hook, Accumulate) for hook in hooks.values()):
            weight.register_hook(Accumulate(holder, name))  # type: ignore[no-untyped-call]


def _weights(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the weights of a layer: the module that holds each, and the name there."""
    for name in weight_names(module):
        part, _, last = name.rpartition(".")
        yield module.get_submodule(part), last


def attach_movement(module: nn.Module) -> None:
    """Make a layer accumulate the movement of its weights from now on, starting from zero."""
    resume_movement(module)
    for holder, name in _weights(module):
        weight = holder._parameters[name]
        assert weight is not None
        holder.register_buffer(movement_name(name), torch.zeros_like(weight))


def lacks_scores(module: nn.Module) -> str | None:
    """Return the name of a weight without movement scores of its shape; None if all have them."""
    for holder, name in _weights(module):
        scores, weight = holder._buffers.get(movement_name(name)), holder._parameters[name]
        if scores is None or weight is None or scores.shape != weight.shape:
            return name
    return None if weight_names(module) else "weight"


def resume_movement(module: nn.Module) -> None:
    """Make a layer continue to accumulate movement, as after loading."""
    if not follows_movement(module):
        module.register_forward_pre_hook(follow_movement)


def follows_movement(module: nn.Module) -> bool:
    """Return whether a layer accumulates the movement of its weights."""
    return follow_movement in module._forward_pre_hooks.values()


def detach_movement(module: nn.Module) -> None:
    """Delete the movement of a layer and stop accumulating it."""
    for holder, name in _weights(module):
        holder._buffers.pop(movement_name(name), None)
    remove_hook(module, follow_movement)


def remove_hook(module: nn.Module, hook: Callable[..., Any]) -> None:
    """Remove a forward pre-hook from a module."""
    for key in [k for k, registered in module._forward_pre_hooks.items() if registered is hook]:
        del module._forward_pre_hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)
