"""Pruned activations: what a layer takes in, without what matters least in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from chop.passes.graph.transforms.pruning.methods import METHODS, generator_for, share, smallest

NAME = "sparsify_input"


class SparsifyInput(nn.Module):
    """Zeroes the share `sparsity` of every sample, chosen by `method`.

    With a `threshold` it zeroes what is not larger than it instead, as for a share of the
    activations of all layers together. A random choice is that of `seed`: the same places at every
    call, so that the model's own random numbers stay as they are.
    """

    def __init__(
        self,
        sparsity: float,
        method: str = "l1-norm",
        seed: int = 0,
        threshold: float | None = None,
    ) -> None:
        super().__init__()
        self.sparsity, self.method, self.seed, self.threshold = sparsity, method, seed, threshold

    @property
    def config(self) -> dict[str, Any]:
        """What the constructor needs to make it again."""
        names = ("sparsity", "method", "seed", "threshold")
        return {name: getattr(self, name) for name in names}

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.mask(x), x, 0.0)

    def mask(self, x: Tensor) -> Tensor:
        """What of `x` stays; each sample of a batch is pruned by itself."""
        if self.threshold is not None:
            return x.detach().abs() > self.threshold
        if x.numel() == 0:
            return torch.ones_like(x, dtype=torch.bool)
        samples = x.detach().reshape(len(x) if x.dim() > 1 else 1, -1)
        removed = smallest(self._scores(samples), share(self.sparsity, samples.shape[1]))
        return ~removed.expand_as(samples).reshape(x.shape)

    def _scores(self, samples: Tensor) -> Tensor:
        if self.method == "random":
            one = samples[0].reshape(-1, 1)  # all samples lose the same places
            return METHODS[self.method](one, generator_for(self.seed, NAME))
        rows = samples.reshape(-1, 1)
        scores = METHODS[self.method](rows, generator_for(self.seed, NAME))
        return scores.reshape(samples.shape)

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.config.items())


def sparsify_input(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The forward pre-hook: the layer's own `sparsify_input` prunes what it is given."""
    prune = module.get_submodule(NAME)
    if args:
        return (prune(args[0]), *args[1:]), kwargs
    return args, {**kwargs, "input": prune(kwargs["input"])}


def attach_activation_pruning(
    module: nn.Module,
    sparsity: float,
    method: str = "l1-norm",
    seed: int = 0,
    threshold: float | None = None,
) -> None:
    """Let a layer prune what it takes in; pruning that is there already is replaced."""
    if activation_pruning_of(module) is None:
        if hasattr(module, NAME):
            raise ValueError(f"{type(module).__name__} has an attribute {NAME!r} of its own")
        module.register_forward_pre_hook(sparsify_input, with_kwargs=True)
    module.add_module(NAME, SparsifyInput(sparsity, method, seed, threshold))


def activation_pruning_of(module: nn.Module) -> dict[str, Any] | None:
    """With which options a layer prunes what it takes in; None if it does not."""
    found = module._modules.get(NAME)
    return found.config if isinstance(found, SparsifyInput) else None


def activation_mask(module: nn.Module, x: Tensor) -> Tensor | None:
    """What of the input `x` a layer keeps; None if it prunes nothing."""
    found = module._modules.get(NAME)
    return found.mask(x) if isinstance(found, SparsifyInput) else None


def detach_activation_pruning(module: nn.Module) -> None:
    """Let a layer take in all it is given again."""
    if activation_pruning_of(module) is None:
        raise ValueError(f"{type(module).__name__} does not prune its input; nothing to detach")
    del module._modules[NAME]
    for hook_id, hook in list(module._forward_pre_hooks.items()):
        if hook is sparsify_input:
            del module._forward_pre_hooks[hook_id]
            module._forward_pre_hooks_with_kwargs.pop(hook_id, None)
