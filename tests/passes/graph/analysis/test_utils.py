"""Small questions about graphs (SPEC-2 §8)."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.passes import Pipeline
from chop.passes.graph.analysis.utils import (
    fetch_attr,
    first_computing,
    get_hardware_nodes,
    get_input_nodes,
    get_output_nodes,
    is_seq_blocks_parameter,
    is_tensor_constant,
    last_computing,
    load_arg,
    match_and_filter,
)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.inner = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x, y):
        x = self.inner(x.reshape(-1, 4)) * self.scale
        y = F.relu(y.transpose(0, 1).contiguous())
        return x.view(-1), y.size(0)


@pytest.fixture
def graph():
    graph = MaseGraph(Network())
    inputs = {"x": torch.zeros(2, 4), "y": torch.zeros(2, 3)}
    Pipeline(["init_metadata", "add_common_metadata"])(
        graph, {"add_common_metadata": {"dummy_in": inputs}}
    )
    return graph


def names(nodes):
    return [node.name for node in nodes]


def test_arguments_are_loaded_by_the_names_of_their_nodes(graph):
    add = next(node for node in graph.nodes if node.name == "mul")
    env = {"inner_0": 1, "scale": 2}
    assert load_arg(add.args, env) == (1, 2)
    assert load_arg([add.args[0], {"k": add.args[1]}, 3], env) == [1, {"k": 2}, 3]


def test_attributes_are_fetched_by_dotted_names():
    model = Network()
    assert fetch_attr(model, "inner.0.weight") is model.inner[0].weight
    assert fetch_attr(model, "scale") is model.scale
    with pytest.raises(RuntimeError, match=r"Network has no 'inner\.1'"):
        fetch_attr(model, "inner.1.weight")


def test_inputs_and_outputs(graph):
    assert names(get_input_nodes(graph.fx_graph)) == ["x", "y"]
    assert names(get_output_nodes(graph.fx_graph)) == ["output"]


def test_hardware_nodes_are_those_that_compute(graph):
    assert names(get_hardware_nodes(graph)) == ["inner_0", "mul", "relu"]


def test_the_first_and_last_that_compute_are_found_through_those_that_only_reshape(graph):
    assert names(first_computing(graph)) == ["inner_0", "relu"]
    assert names(last_computing(graph)) == ["mul", "relu"]


@pytest.mark.parametrize(
    ("name", "funcs", "expected"),
    [
        ("add", ["mul", "add"], (True, "add")),
        ("add_1", ["mul", "add"], (True, "add")),
        ("add_12", ["add"], (True, "add")),
        ("my_add_fn", ["add"], (False, None)),
        ("conv2d_1", ["conv", "conv2d"], (True, "conv2d")),
        ("avg_pool2d", ["pool2d"], (False, None)),
        ("max_1", [], (False, None)),
    ],
)
def test_names_match_by_the_rule_of_fx_and_not_by_parts(name, funcs, expected):
    assert match_and_filter(name, funcs) == expected


def test_names_of_constants_and_of_the_labs_parameters():
    assert is_tensor_constant("_tensor_constant12")
    assert not is_tensor_constant("_tensor_constant")
    assert not is_tensor_constant("my_tensor_constant0")
    for name in ("seq_blocks_2_weight", "block_bias", "conv2d_0_1_gamma", "linear_means"):
        assert is_seq_blocks_parameter(name)
    for name in ("head_weight", "seq_blocks_2", "seq_blocks_2_weights"):
        assert not is_seq_blocks_parameter(name)
