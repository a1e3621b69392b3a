"""A model: a name, the tasks it can do, and a function that builds it for a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from chop.registry import Registry


@dataclass(frozen=True)
class ModelSpec:
    name: str
    build: Callable[..., nn.Module]
    tasks: frozenset[str] = frozenset({"cls"})
    fx_traceable: bool = True


MODELS: Registry[ModelSpec] = Registry("model", package="chop.models")


def model(
    name: str, *, tasks: frozenset[str] = frozenset({"cls"}), fx_traceable: bool = True
) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Register `build(dataset_info) -> nn.Module` as the model `name`."""

    def add(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        MODELS.register(name)(ModelSpec(name, build, tasks, fx_traceable))
        return build

    return add
