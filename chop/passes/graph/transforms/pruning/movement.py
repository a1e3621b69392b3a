"""Movement: whether training moves a weight away from zero, or towards it.

The score of a weight w is the sum, over all backward passes, of -w · gradient: positive if descent
makes it larger in absolute value. It lives in the buffer `weight_movement`, so checkpoints keep it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def movement_name(name: str) -> str:
    """What the scores of a parameter are called in `state_dict`.

    >>> movement_name("weight")
    'weight_movement'
    """
    return f"{name}_movement"


MOVEMENT = movement_name("weight")


class Accumulate:
    """A hook on a parameter that adds up the movement of each backward pass."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, gradient: Tensor) -> None:
        scores, weight = self.module._buffers.get(MOVEMENT), self.module._parameters["weight"]
        if scores is not None and weight is not None:
            scores.sub_((weight.detach() * gradient).to(scores.dtype))


def follow_movement(module: nn.Module, args: tuple[Any, ...]) -> None:
    """The forward pre-hook: copies of a layer, whose parameters are new, are followed as well."""
    weight = module._parameters["weight"]
    if weight is None or not (torch.is_grad_enabled() and weight.requires_grad):
        return
    hooks = weight._backward_hooks or {}
    if not any(isinstance(hook, Accumulate) for hook in hooks.values()):
        weight.register_hook(Accumulate(module))  # type: ignore[no-untyped-call]


def attach_movement(module: nn.Module) -> None:
    """Let a layer add up the movement of its weight from now on, beginning with zero."""
    weight = module._parameters["weight"]
    assert weight is not None
    resume_movement(module)
    module.register_buffer(MOVEMENT, torch.zeros_like(weight))


def resume_movement(module: nn.Module) -> None:
    """Let a layer go on adding up its movement, as after it was loaded."""
    if not follows_movement(module):
        module.register_forward_pre_hook(follow_movement)


def follows_movement(module: nn.Module) -> bool:
    """Whether a layer adds up the movement of its weight."""
    return follow_movement in module._forward_pre_hooks.values()


def detach_movement(module: nn.Module) -> None:
    """Forget the movement of a layer, and follow it no longer."""
    module._buffers.pop(MOVEMENT, None)
    for hook_id, hook in list(module._forward_pre_hooks.items()):
        if hook is follow_movement:
            del module._forward_pre_hooks[hook_id]
