"""The passes that save and load."""

import logging
import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chop.ir import MaseGraph
from chop.ir.graph.encoding import Encoder, Tensors
from chop.ir.graph.meta_file import _read_lines, toml_text
from chop.ir.graph.names import SavedNames
from chop.passes import PassArgsError, Pipeline, run_pass
from chop.passes.graph import (
    load_mase_graph_interface_pass,
    load_node_meta_param_interface_pass,
    metadata_value_type_cast_transform_pass,
    save_mase_graph_interface_pass,
    save_node_meta_param_interface_pass,
)
from chop.tools.utils import to_numpy_if_tensor

X = torch.linspace(-1, 1, 8).reshape(2, 4)


@pytest.fixture
def graph():
    torch.manual_seed(0)
    mg = MaseGraph(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": {"input": X}})]
    return Pipeline([*steps, "add_software_metadata"])(mg)[0]


def test_a_graph_becomes_the_one_that_was_saved(graph, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="chop")
    save_mase_graph_interface_pass(graph, str(tmp_path / "g"))
    other = MaseGraph(nn.Sequential(nn.Tanh()))
    loaded, _ = load_mase_graph_interface_pass(other, {"load_dir": tmp_path / "g"})
    assert loaded is other
    assert torch.equal(other.model(X), graph.model(X))
    assert [n.name for n in other.nodes_in] == [n.name for n in graph.nodes_in]
    assert other.nodes_in[0].graph is other.fx_graph
    run_pass("verify_metadata", other, {"strict": True})
    assert f"Saved mase graph to {tmp_path / 'g'}" in caplog.text
    assert f"Loaded mase graph from {tmp_path / 'g'}" in caplog.text


def test_metadata_is_written_as_one_table_per_node(graph, tmp_path):
    node = next(n for n in graph.nodes if n.name == "_0")
    node.meta["mase"].software["args"]["weight"]["stat"] = {"range": {"min": -1e-30, "max": None}}
    node.meta["mase"]["mine"] = {"NA": "NA", "odd key.": [1, "ü\x7f\n", float("nan")]}
    save_node_meta_param_interface_pass(graph, tmp_path / "meta.toml")
    text = (tmp_path / "meta.toml").read_text()
    assert "[_0.common" in text
    other = graph.clone()
    for n in other.nodes:
        n.meta["mase"].parameters = {}
    load_node_meta_param_interface_pass(other, {"load_path": str(tmp_path / "meta.toml")})
    back = next(n for n in other.nodes if n.name == "_0").meta["mase"]
    assert back.software.args["weight"]["stat"] == {"range": {"min": -1e-30, "max": None}}
    assert back["mine"]["NA"] == "NA"
    assert back["mine"]["odd key."][:2] == [1, "ü\x7f\n"]
    assert np.isnan(back["mine"]["odd key."][2])
    assert torch.equal(back.common.args["data_in_0"]["value"], X)
    assert back.common.args.tensor("data_in_0").torch_dtype is torch.float32


TEXTS = st.text(max_size=4) | st.sampled_from(["NA", "text", "a.b", "[a]", "x = 1", "é\n", '"'])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(TEXTS, st.dictionaries(TEXTS, VALUES, max_size=4), max_size=3))
def test_any_metadata_is_read_by_lines_as_by_a_toml_parser(tables):
    encoded = Encoder(SavedNames(), Tensors(), "")(tables)
    encoded = encoded if list(encoded) != ["dict"] else {"one": encoded}
    text = toml_text(encoded)
    assert _read_lines(text) in (None, tomllib.loads(text))


def test_what_is_written_is_read_by_lines(graph, tmp_path):
    save_node_meta_param_interface_pass(graph, tmp_path / "meta.toml")
    text = (tmp_path / "meta.toml").read_text()
    assert _read_lines(text) == tomllib.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "# by hand\n[_0.mine]\na = 1 # one\n",
        "[_0]\nmine.a = 1\n",
        "[_0]\nmine = {a = 1}\n",
        "_0.mine = { 'a' = 1 }\n",
        "[_0 . mine]\na\t=\t1\n",
        '["_0".mine]\na = 1\n',
    ],
)
def test_metadata_edited_by_hand_may_be_any_toml(graph, tmp_path, text):
    (tmp_path / "meta.toml").write_text(text)
    load_node_meta_param_interface_pass(graph, tmp_path / "meta.toml")
    assert next(n for n in graph.nodes if n.name == "_0").meta["mase"]["mine"] == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        "[_0]\na = 1\na = 1\n",
        "[_0]\na = 1\n[_0]\nb = 1\n",
        "[_0]\na = { b = 1 }\n[_0.a]\nc = 1\n",
        "[_0]\na = { b = 1 }\n[_0.a.c]\nd = 1\n",
        "[_0]\na = nothing\n",
        "[_0]\na = 1 b = 2\n",
        "[_0]\na =\n",
    ],
)
def test_what_is_no_toml_is_refused_with_its_line(graph, tmp_path, text):
    (tmp_path / "meta.toml").write_text(text)
    with pytest.raises(ValueError, match=r"meta.toml is damaged or not a TOML file: .*line \d"):
        load_node_meta_param_interface_pass(graph, tmp_path / "meta.toml")


def test_metadata_of_another_graph_is_refused(graph, tmp_path):
    save_node_meta_param_interface_pass(graph, tmp_path / "meta.toml")
    other, _ = run_pass("init_metadata", MaseGraph(nn.Sequential(nn.Linear(4, 4))))
    with pytest.raises(ValueError, match=r"describes a node '_1'.*another graph"):
        load_node_meta_param_interface_pass(other, tmp_path / "meta.toml")
    with pytest.raises(FileNotFoundError, match="no metadata file"):
        load_node_meta_param_interface_pass(other, tmp_path / "nothing.toml")
    (tmp_path / "plain.toml").write_text("a = 1\n")
    with pytest.raises(ValueError, match="not the table of a node"):
        load_node_meta_param_interface_pass(other, tmp_path / "plain.toml")


def test_values_of_the_metadata_are_cast_in_place(graph):
    metadata_value_type_cast_transform_pass(graph, {"fn": to_numpy_if_tensor})
    node = next(n for n in graph.nodes if n.name == "_0")
    value = node.meta["mase"].common.args["data_in_0"]["value"]
    assert isinstance(value, np.ndarray)


def test_arrays_survive_saving(graph, tmp_path):
    metadata_value_type_cast_transform_pass(graph, {"fn": to_numpy_if_tensor})
    graph.export(tmp_path / "g")
    back = MaseGraph.from_checkpoint(tmp_path / "g")
    node = next(n for n in back.nodes if n.name == "_0")
    assert np.array_equal(node.meta["mase"].common.args["data_in_0"]["value"], X.numpy())


def test_a_path_is_asked_for(graph):
    with pytest.raises(PassArgsError, match="needs the option 'save_dir'"):
        save_mase_graph_interface_pass(graph)
    with pytest.raises(PassArgsError, match="did you mean 'load_dir'"):
        load_mase_graph_interface_pass(graph, {"load_dri": "x"})
