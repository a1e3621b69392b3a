"""Operands that an op does not have are no part of a search space."""

import pytest
import torch
from torch import nn

from chop.actions.search.space.pass_spaces import pass_space
from chop.ir import MaseGraph
from chop.passes import Pipeline

WIDTHS = {f"{operand}_width": [2, 3, 4, 6, 8] for operand in ("data_in", "weight", "bias")}
FRACTIONS = {f"{operand}_frac_width": [None] for operand in ("data_in", "weight", "bias")}
SEED = {"default": {"config": {"name": ["integer"], **WIDTHS, **FRACTIONS}}}


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(4, 4, bias=False), nn.ReLU()

    def forward(self, x):
        return self.act(self.first(x)) + x


@pytest.fixture
def graph():
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": {"x": torch.randn(2, 4)}})]
    return Pipeline(steps)(MaseGraph(Residual()))[0]


def test_a_default_gives_no_weights_to_functions_and_no_bias_to_layers_without(graph):
    space = pass_space(graph, "quantize", "type", SEED, "seed")
    keys = {p.key for p in space.parameters if p.key.endswith("_width")}
    own = {key.replace("/config/", " ") for key in keys if "frac" not in key}
    assert own == {"first data_in_width", "first weight_width", "act data_in_width"} | {
        "add data_in_width"
    }


def test_designs_without_these_keys_are_built_as_before(graph):
    from chop.passes import run_pass

    space = pass_space(graph, "quantize", "type", SEED, "seed")
    config = space.config({p.key: p.choice.nth(0) for p in space.parameters})
    ((name, options),) = space.steps(config)
    changed, info = run_pass(name, graph.clone(), options)
    assert info["quantized"] == ["first", "act", "add"]
    assert changed.model(torch.randn(3, 4)).shape == (3, 4)
