"""Looking at a candidate without leaving traces: modes, random numbers and buffers stay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def aside(
    model: nn.Module, device: torch.device, seed: int, *, training: bool = False
) -> Iterator[None]:
    """Run `model` in one mode on random numbers of its own; both are then as they were.

    Buffers are not kept: see `lent_buffers`.
    """
    generator, there = _generators(device)
    before, before_there = generator.get_state(), there.get_state() if there else None
    others = [m for m in _modules(model) if m.training is not training]
    for module in others:
        module.training = training
    generator.manual_seed(seed)
    if there is not None:
        there.manual_seed(seed)
    try:
        yield
    finally:
        for module in others:
            module.training = not training
        generator.set_state(before)
        if there is not None and before_there is not None:
            there.set_state(before_there)


def lent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers, for `torch.func.functional_call` to write its statistics into."""
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def _generators(device: torch.device) -> tuple[torch.Generator, torch.Generator | None]:
    """The host's, and that of the GPU where there is one."""
    host = torch.default_generator
    if device.type != "cuda":
        return host, None
    here = torch.cuda.current_device()
    index = here if device.index is None else device.index
    return host, torch.cuda.default_generators[index]


def _modules(model: nn.Module) -> Iterator[nn.Module]:
    """All modules; `nn.Module.modules` takes several times as long, and this runs for each trial.

    A module with two names comes twice.
    """
    waiting = [model]
    while waiting:
        module = waiting.pop()
        yield module
        waiting.extend(child for child in module._modules.values() if child is not None)
