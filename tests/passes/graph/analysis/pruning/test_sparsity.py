"""add_pruning_metadata counts what masks remove; add_natural_sparsity counts zeros."""

import pytest
import torch
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_natural_sparsity_metadata_analysis_pass,
    add_pruning_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    prune_detach_hook_transform_pass,
    prune_transform_pass,
)

X = {"dummy_in": {"input": torch.tensor([[1.0, -2, 0, 4], [0, -1, 0, 3]])}}


@pytest.fixture(params=[False, True], ids=["bare", "software"])
def graph(request):
    torch.manual_seed(0)
    mg, _ = init_metadata_analysis_pass(MaseGraph(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))))
    mg, _ = add_common_metadata_analysis_pass(mg, X)
    return add_software_metadata_analysis_pass(mg)[0] if request.param else mg


def node_of(graph, name):
    return next(node for node in graph.nodes if node.name == name)


def test_pruning_metadata_are_the_shares_of_the_masks(graph):
    prune_transform_pass(graph, weight={"sparsity": 0.25}, activation={"sparsity": 0.5})
    _, info = add_pruning_metadata_analysis_pass(graph, {**X, "add_value": True})
    assert info == {name: {"weight_sparsity": 0.25, "activation_sparsity": 0.5} for name in "01"}
    args = mase(node_of(graph, "_0")).software.args
    assert args["weight"]["sparsity"] == 0.25
    assert args["data_in_0"]["sparsity"] == 0.5
    assert torch.equal(args["weight"]["mask_value"], graph.modules["0"].weight_mask)
    assert args["data_in_0"]["mask_value"].sum() == 4


def test_what_nobody_pruned_is_no_pruning(graph):
    _, info = add_pruning_metadata_analysis_pass(graph, X)
    assert info["0"] == {"weight_sparsity": 0.0, "activation_sparsity": 0.0}
    assert "mask_value" not in mase(node_of(graph, "_0")).software.args["weight"]


def test_density_and_sparsity_are_not_confused(graph):
    graph.modules["0"].weight.data[0] = 0
    _, info = add_natural_sparsity_metadata_analysis_pass(graph, {**X, "add_meta": True})
    assert info["0_weight"] == (16, 0.75)
    assert info["0_weight_zero_fraction"] == 0.25
    assert info["0_activation"] == (8, 5 / 8)
    assert info["0_activation_zero_fraction"] == 3 / 8
    assert info["1_weight"] == (8, 1.0)
    assert info["1_weight_zero_fraction"] == 0.0
    assert info["avg_weight"] == 20 / 24
    assert info["avg_weight_zero_fraction"] == 4 / 24
    assert info["avg_activation"] == 13 / 16
    entry = mase(node_of(graph, "_0")).software.args["weight"]
    assert (entry["density"], entry["zero_fraction"]) == (0.75, 0.25)


def test_zeros_of_masks_count_before_and_after_detaching(graph):
    prune_transform_pass(graph, weight={"sparsity": 0.5, "method": "l1-norm"})
    _, before = add_natural_sparsity_metadata_analysis_pass(graph, X)
    prune_detach_hook_transform_pass(graph)
    _, after = add_natural_sparsity_metadata_analysis_pass(graph, X)
    assert before["0_weight_zero_fraction"] == after["0_weight_zero_fraction"] == 0.5


def test_a_graph_without_layers_has_no_sparsity():
    mg, _ = init_metadata_analysis_pass(MaseGraph(nn.Sequential(nn.ReLU())))
    mg, _ = add_common_metadata_analysis_pass(mg, X)
    _, info = add_natural_sparsity_metadata_analysis_pass(mg, X)
    assert info["avg_weight"] == info["avg_weight_zero_fraction"] == 0.0
    assert add_pruning_metadata_analysis_pass(mg, X)[1] == {}


@pytest.mark.parametrize(
    "analysis", [add_pruning_metadata_analysis_pass, add_natural_sparsity_metadata_analysis_pass]
)
def test_a_missing_or_wrong_input_is_named(graph, analysis):
    with pytest.raises(ValueError, match="no value for the model's input 'input'"):
        analysis(graph)
    with pytest.raises(ValueError, match=r"node '_0'.*failed on input_1"):
        analysis(graph, dummy_in={"input": torch.ones(1, 3)})
