"""Linear layers become tables on edges: chosen ones, of the same sizes, ready to train and emit."""

import pytest
import torch
from torch import nn

from chop.dataset import get_dataset_info
from chop.methods.edge_tables import EdgeTable
from chop.methods.edge_tables.models import TableNetwork
from chop.models import get_model
from chop.passes import cost_analysis_pass, tables_transform_pass, verify_metadata_analysis_pass
from tests.integers.test_edges import graph_of


def mlp():
    torch.manual_seed(0)
    return graph_of(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (6,))


def test_all_linear_layers_are_replaced_unless_some_are_chosen():
    graph, info = tables_transform_pass(mlp())
    assert info["replaced"] == ["_0", "_2"]
    graph, info = tables_transform_pass(
        mlp(), nodes=["_2"], function="spline", hidden=5, bits_in=[1, 2], bits_out=[0, 3]
    )
    assert info["replaced"] == ["_2"]
    layer = graph.modules["2"]
    assert isinstance(layer, EdgeTable)
    assert (layer.n_in, layer.n_out, layer.function, layer.hidden) == (8, 3, "spline", 5)
    assert [bits.unique().tolist() for bits in layer.width_parameters().values()] == [
        [1.0],
        [2.0],
        [0.0],
        [3.0],
    ]
    verify_metadata_analysis_pass(graph)


def test_a_relu_between_tables_keeps_the_integer_graph_equal():
    graph, _ = tables_transform_pass(mlp())
    graph.model.train()
    for _ in range(3):
        graph.model(torch.randn(500, 6))
    graph.model.eval()
    x = 3 * torch.randn(2000, 6)
    with torch.no_grad():
        assert torch.equal(graph.to_integers()(x), graph.model(x))


def test_the_cost_of_a_layer_is_an_addition_for_each_edge():
    graph, _ = tables_transform_pass(mlp())
    nodes = cost_analysis_pass(graph, per_sample=True, silent=True)[1]["nodes"]
    assert (nodes["_0"]["flops"], nodes["_0"]["macs"]) == (6 * 8, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"function": "splin"}, "splin"),
        ({"bits_in": [9, 9]}, "node '_0': bits_in are 19 bits with the sign; at most 8"),
        ({"max_bits_in": 13}, "max_bits_in"),
        ({"hidden": 0}, "hidden"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        tables_transform_pass(mlp(), **options)


def test_models_of_tables_have_the_sizes_that_are_asked_for():
    jets = get_model("jsc-table", task="cls", dataset_info=get_dataset_info("jsc-sim"))
    assert isinstance(jets, TableNetwork)
    assert [(m.n_in, m.n_out) for m in jets.seq_blocks] == [(16, 20), (20, 5)]
    options = {"hidden": [4, 3], "function": "spline", "function_size": 6}
    digits = get_model("mlp-table", task="cls", dataset_info=get_dataset_info("digits"), **options)
    assert [(m.n_in, m.n_out) for m in digits.seq_blocks[1:]] == [(64, 4), (4, 3), (3, 10)]
    with pytest.raises(ValueError, match="hidden must be a list of positive widths"):
        get_model("mlp-table", dataset_info=get_dataset_info("jsc-sim"), hidden=[0])
