"""Formats noted for what quantisation leaves out."""

import pytest
import torch
from torch import nn

from chop.passes import patch_metadata_transform_pass, verify_metadata_analysis_pass

Q = {"data_in_width": 8, "data_in_frac_width": 4, "data_out_width": 9, "data_out_frac_width": 5}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x) + x
        return y[0] * 2


def test_additions_products_items_and_ends_are_patched(ready):
    graph = ready(Net())
    _, info = patch_metadata_transform_pass(graph, q_config=Q)
    assert info == {"patched": ["x", "add", "getitem", "mul", "output"]}
    meta = {node.name: node.meta["mase"]["common"] for node in graph.nodes}
    assert meta["add"]["args"]["data_in_1"]["type"] == "fixed"
    assert meta["add"]["args"]["data_in_1"]["precision"] == [8, 4]
    assert meta["add"]["results"]["data_out_0"]["precision"] == [9, 5]
    assert meta["fc"]["args"]["weight"]["type"] == "float"
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_options_beyond_the_default_are_noted_too(ready):
    graph = ready(Net())
    patch_metadata_transform_pass(graph, q_config=Q | {"data_in_rounding": "up"})
    meta = {node.name: node.meta["mase"] for node in graph.nodes}
    assert meta["add"]["common"]["args"]["data_in_1"]["rounding"] == "up"
    assert "rounding" not in meta["add"]["common"]["results"]["data_out_0"]
    assert meta["add"]["hardware"]["verilog_param"]["DATA_IN_1_ROUNDING"] == "up"
    patch_metadata_transform_pass(graph, q_config=Q)
    assert "rounding" not in meta["add"]["common"]["args"]["data_in_1"]
    assert "DATA_IN_1_ROUNDING" not in meta["add"]["hardware"]["verilog_param"]
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_a_function_called_df_split_is_patched(ready):
    graph = ready(Net())

    def df_split(x):
        return x

    node = next(node for node in graph.nodes if node.name == "fc")
    with graph.fx_graph.inserting_after(node):
        split = graph.fx_graph.call_function(df_split, (node,))
    split.meta = dict(node.meta)
    split.meta["mase"] = node.meta["mase"].clone_for(split)
    assert "df_split" in patch_metadata_transform_pass(graph, q_config=Q)[1]["patched"]


def test_integers_keep_their_format(ready):
    class Index(nn.Module):
        def forward(self, x, y):
            return x[y]

    graph = ready(Index(), torch.randn(3), torch.tensor([0, 1]))
    patch_metadata_transform_pass(graph, q_config=Q)
    meta = {node.name: node.meta["mase"]["common"] for node in graph.nodes}
    assert meta["x"]["results"]["data_out_0"]["type"] == "fixed"
    assert meta["y"]["results"]["data_out_0"]["type"] != "fixed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"q_config": {}}, "q_config: .*missing"),
        ({"q_config": Q, "precision": "fixd"}, "unknown number format 'fixd'"),
        ({}, "needs the option 'q_config'"),
    ],
)
def test_bad_options_are_refused(ready, options, message):
    with pytest.raises((TypeError, KeyError), match=message):
        patch_metadata_transform_pass(ready(Net()), options)
