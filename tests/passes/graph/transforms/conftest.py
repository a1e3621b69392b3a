import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import Pipeline


class Row(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class Calls(nn.Module):
    def __init__(self, forward, **layers):
        super().__init__()
        self.call = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
        return self.call(self, x)


@pytest.fixture
def calls():
    """`calls(forward, a=layer, …)`: a module with these layers that computes `forward(self, x)`."""
    return Calls


@pytest.fixture
def row():
    """A module of layers in a row, in the attribute `layers`."""
    return Row


@pytest.fixture
def ready():
    """`ready(model, x)`: a graph with all parts of the metadata; the model's inputs are x, y, …."""

    def build(model, *inputs, **options):
        graph = MaseGraph(model)
        names = [str(node.target) for node in graph.inputs]
        dummy_in = dict(zip(names, inputs or (torch.randn(2, 4),), strict=True))
        steps = ["init_metadata", ("add_common_metadata", {"dummy_in": dummy_in, **options})]
        return Pipeline([*steps, "add_software_metadata", "add_hardware_metadata"])(graph)[0]

    return build
