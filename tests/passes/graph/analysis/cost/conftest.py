"""Graphs with metadata, of small modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn

from chop.ir import MaseGraph
from chop.passes import Pipeline


class Whole(nn.Module):
    """A module that fx would otherwise look into, on any number of inputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


class Itself(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return self.layer(x, x, x)[0]


class Doing(nn.Module):
    """A function of the input and of parameters."""

    def __init__(self, function: Callable[..., Any], **parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def graph_of(model: nn.Module, x: Tensor, **about: Any) -> MaseGraph:
    graph = MaseGraph(model)
    options = {"dummy_in": {graph.inputs[0].target: x}, "add_value": False, **about}
    return Pipeline(["init_metadata", ("add_common_metadata", options)])(graph)[0]


@pytest.fixture
def make() -> Any:
    """The helpers above, which tests in packages without names cannot import."""

    class Make:
        whole, itself, doing, graph = Whole, Itself, Doing, staticmethod(graph_of)

    return Make
