"""Pruned activations: zero the least important values of a layer's input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from chop.passes.graph.transforms.pruning.methods import METHODS, generator_for, share, smallest
from chop.passes.graph.transforms.pruning.movement import remove_hook

NAME = "sparsify_input"


class SparsifyInput(nn.Module):
    """Zeroes the share `sparsity` of every sample, chosen by `method`.

    A `threshold` zeroes magnitudes up to it instead, as for a share over all layers. Random
    positions depend only on `seed`: they are the same in every call, and the global random
    state stays unchanged.
    """

    def __init__(self, sparsity: float, method: str, seed: int, threshold: float | None) -> None:
        super().__init__()
        self.sparsity, self.method, self.seed, self.threshold = sparsity, method, seed, threshold

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        names = ("sparsity", "method", "seed", "threshold")
        return {name: getattr(self, name) for name in names}

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.mask(x), x, 0.0)

    def mask(self, x: Tensor) -> Tensor:
        """Mark the values of `x` to keep; each sample of a batch is pruned separately."""
        if self.threshold is not None:
            return x.detach().abs() > self.threshold
        if x.numel() == 0:
            return torch.ones_like(x, dtype=torch.bool)
        samples = x.detach().reshape(len(x) if x.dim() > 1 else 1, -1)
        removed = smallest(self._scores(samples), share(self.sparsity, samples.shape[1]))
        return ~removed.expand_as(samples).reshape(x.shape)

    def _scores(self, samples: Tensor) -> Tensor:
        if self.method == "random":
            samples = samples[:1]  # the same positions in every sample
        scores = METHODS[self.method](samples.reshape(-1, 1), generator_for(self.seed, NAME))
        return scores.reshape(samples.shape)

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.config.items())


def sparsify_input(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Forward pre-hook: prune the input by the layer's `sparsify_input`."""
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
    """Make a layer prune its input; existing pruning of the input is replaced."""
    if activation_pruning_of(module) is None:
        if hasattr(module, NAME):
            owner = type(module).__name__
            raise ValueError(f"{owner} already has an attribute {NAME!r}; rename it")
        module.register_forward_pre_hook(sparsify_input, with_kwargs=True)
    module.add_module(NAME, SparsifyInput(sparsity, method, seed, threshold))


def activation_pruning_of(module: nn.Module) -> dict[str, Any] | None:
    """The options with which a layer prunes its input; None if it does not."""
    sparsify = module._modules.get(NAME)
    return sparsify.config if isinstance(sparsify, SparsifyInput) else None


def activation_mask(module: nn.Module, x: Tensor) -> Tensor | None:
    """The mask of the values of `x` that a layer keeps; None if it prunes nothing."""
    sparsify = module._modules.get(NAME)
    return sparsify.mask(x) if isinstance(sparsify, SparsifyInput) else None


def detach_activation_pruning(module: nn.Module) -> None:
    """Stop pruning a layer's input."""
    if activation_pruning_of(module) is None:
        raise ValueError(
            f"{type(module).__name__} does not prune its input, so there is nothing to detach"
        )
    del module._modules[NAME]
    remove_hook(module, sparsify_input)
