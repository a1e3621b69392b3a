"""Movement: whether training moves a weight away from zero or towards it.

The score of a weight w is the sum, over all backward passes, of -w · gradient: positive if descent
makes it larger in absolute value. It lives in the buffer `weight_movement`, so checkpoints keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def movement_name(name: str) -> str:
    """Return the name of a parameter's movement scores in `state_dict`.

    >>> movement_name("weight")
    'weight_movement'
    """
    return f"{name}_movement"


MOVEMENT = movement_name("weight")


class Accumulate:
    """A hook on a parameter that accumulates the movement of each backward pass."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, gradient: Tensor) -> None:
        scores, weight = self.module._buffers.get(MOVEMENT), self.module._parameters["weight"]
        if scores is not None and weight is not None:
            scores.sub_((weight.detach() * gradient).to(scores.dtype))


def follow_movement(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Forward pre-hook: also track copies of a layer, whose parameters are new."""
    weight = module._parameters["weight"]
    if weight is None or not (torch.is_grad_enabled() and weight.requires_grad):
        return
    hooks = weight._backward_hooks or {}
    if not any(isinstance(hook, Accumulate) for hook in hooks.values()):
        weight.register_hook(Accumulate(module))  # type: ignore[no-untyped-call]


def attach_movement(module: nn.Module) -> None:
    """Make a layer accumulate the movement of its weight from now on, starting from zero."""
    weight = module._parameters["weight"]
    assert weight is not None
    resume_movement(module)
    module.register_buffer(MOVEMENT, torch.zeros_like(weight))


def resume_movement(module: nn.Module) -> None:
    """Make a layer continue to accumulate movement, as after loading."""
    if not follows_movement(module):
        module.register_forward_pre_hook(follow_movement)


def follows_movement(module: nn.Module) -> bool:
    """Return whether a layer accumulates the movement of its weight."""
    return follow_movement in module._forward_pre_hooks.values()


def detach_movement(module: nn.Module) -> None:
    """Delete the movement of a layer and stop accumulating it."""
    module._buffers.pop(MOVEMENT, None)
    remove_hook(module, follow_movement)


def remove_hook(module: nn.Module, hook: Callable[..., Any]) -> None:
    """Remove a forward pre-hook from a module."""
    for key in [k for k, registered in module._forward_pre_hooks.items() if registered is hook]:
        del module._forward_pre_hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)
