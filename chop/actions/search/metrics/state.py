"""Running a candidate without side effects: modes, random numbers and buffers stay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def isolated(
    model: nn.Module, device: torch.device, seed: int, *, training: bool = False
) -> Iterator[None]:
    """Run `model` in one mode with seeded random numbers, then restore both.

    Buffers are not restored: see `copied_buffers`.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        current = torch.cuda.current_device()
        index = current if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    states = [generator.get_state() for generator in generators]
    switched = [m for m in _modules(model) if m.training is not training]
    for module in switched:
        module.training = training
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for module in switched:
            module.training = not training
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def copied_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the buffers, in which `torch.func.functional_call` writes statistics."""
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def _modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yield all modules, several times as fast as `nn.Module.modules`: this runs for each trial.

    A module with two names comes twice.
    """
    waiting = [model]
    while waiting:
        module = waiting.pop()
        yield module
        waiting.extend(child for child in module._modules.values() if child is not None)
