"""Metadata: the dict is the storage, the attributes are a view of it (ARCHITECTURE §4c)."""

import copy
import json
import pickle
import pprint

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.ir.graph import MaseGraphMetadata, MaseMetadata
from chop.ir.graph.mase_metadata import CommonMeta, Operands, TensorMeta, mase
from chop.numerics import from_precision
from chop.passes import Pipeline

ANNOTATE = Pipeline(["init_metadata", "add_common_metadata", "add_software_metadata"])
INTEGER = from_precision("integer", [4, 2])


@pytest.fixture
def graph():
    graph = MaseGraph(nn.Sequential(nn.Linear(16, 5), nn.ReLU()))
    ANNOTATE(graph, {"add_common_metadata": {"dummy_in": {"input": torch.randn(2, 16)}}})
    return graph


@pytest.fixture
def linear(graph):
    return next(node for node in graph.nodes if node.name == "_0")


class TestWhatUsersDoWithTheDictionary:
    def test_both_spellings_of_the_labs_reach_the_same_dict(self, linear):
        meta = linear.meta["mase"]
        assert meta.parameters["common"]["mase_op"] == meta["common"]["mase_op"] == "linear"
        assert meta["common"]["args"] is meta.parameters["common"]["args"]
        assert meta["common"] is meta.common
        meta["software"]["args"]["weight"]["stat"] = {"mean": 1}
        assert meta.parameters["software"]["args"]["weight"] == {"stat": {"mean": 1}}

    def test_an_absent_key_is_a_key_error(self, graph):
        placeholder = next(iter(graph.nodes))
        with pytest.raises(KeyError):
            placeholder.meta["mase"].parameters["common"]["args"]["data_in_0"]

    def test_a_format_is_written_in_two_steps(self, linear):
        weight = linear.meta["mase"]["common"]["args"]["weight"]
        weight["type"] = "integer"
        weight["precision"] = [8, 4]
        assert mase(linear).common.args.tensor("weight").format.bits == 8

    def test_what_our_code_writes_the_notebook_reads_and_the_reverse(self, linear):
        weight = mase(linear).common.args.tensor("weight")
        weight.format = INTEGER
        stored = linear.meta["mase"].parameters["common"]["args"]["weight"]
        assert (stored["type"], stored["precision"]) == ("integer", [4, 2])
        stored["precision"] = [6, 2]
        assert weight.format.bits == 6

    def test_options_beyond_the_default_are_keys_of_the_tensor(self, linear):
        weight = mase(linear).common.args.tensor("weight")
        weight.format = fmt = from_precision("integer", [4, 2], rounding="up", overflow="wrap")
        stored = linear.meta["mase"].parameters["common"]["args"]["weight"]
        assert (stored["rounding"], stored["overflow"]) == ("up", "wrap")
        assert weight.format == fmt
        weight.format = from_precision("integer", [4, 2], overflow="symmetric")
        assert "rounding" not in stored
        weight.format = from_precision("float", [32])
        assert "overflow" not in stored

    def test_a_tensor_is_a_dict(self, linear):
        args = linear.meta["mase"]["common"]["args"]
        assert all(isinstance(arg, dict) for arg in args.values())

    def test_args_merge_with_a_plain_dict(self, linear):
        args = linear.meta["mase"]["common"]["args"]
        assert (args | {"inplace": False})["inplace"] is False
        assert "inplace" not in args

    def test_it_prints_and_serialises_as_a_dict(self, linear):
        parameters = linear.meta["mase"].parameters
        assert pprint.pformat(parameters["software"]["results"]) == "{'data_out_0': {'stat': {}}}"
        assert json.loads(json.dumps(parameters, default=str))["common"]["mase_op"] == "linear"

    def test_keys_of_your_own_are_kept_and_listed(self, linear):
        software = linear.meta["mase"].parameters["software"]
        software["mine"] = 1
        assert "mine" in list(software)
        assert mase(linear).clone_for(linear)["software"]["mine"] == 1

    def test_a_plain_tree_becomes_records(self, linear):
        meta = linear.meta["mase"]
        meta.parameters = {"common": {"mase_op": "add", "args": {"weight": {"type": "float"}}}}
        assert type(meta.common) is CommonMeta
        assert type(meta.common.args["weight"]) is TensorMeta
        assert meta.software == meta.hardware == {}
        meta["software"] = {"args": {"weight": {"stat": {}}}}
        assert meta.software.args["weight"].stat == {}

    def test_a_typo_in_our_code_is_an_attribute_error(self, linear):
        with pytest.raises(AttributeError, match="has no attribute 'shap'"):
            _ = mase(linear).common.shap
        with pytest.raises(AttributeError, match="CommonMeta has no field 'shap'"):
            mase(linear).common.shap = 1


def test_an_argument_that_is_a_dict_of_the_users_is_no_tensor():
    operands = Operands(config={"n": 1}, weight={"type": "float", "precision": [32], "shape": [1]})
    assert type(operands["config"]) is dict
    assert [name for name, _ in operands.tensors()] == ["weight"]
    with pytest.raises(AssertionError, match="'config' is the plain value"):
        operands.tensor("config")


def test_a_result_that_is_no_tensor_is_not_among_the_tensors():
    operands = Operands(data_out_0={"type": int, "shape": [1], "value": 2})
    assert list(operands.tensors()) == []


def test_a_format_that_does_not_exist_is_refused_with_the_nearest():
    meta = TensorMeta(type="interger", precision=[8, 4])
    with pytest.raises(KeyError, match=r"unknown number format 'interger'; did you mean 'integer'"):
        _ = meta.format
    with pytest.raises(ValueError, match=r"integer needs the precision \[width, frac_width\], not"):
        _ = TensorMeta(type="integer", precision=[8]).format


def test_metadata_knows_its_node_graph_model_and_module(graph, linear):
    meta = linear.meta["mase"]
    assert meta.node is linear
    assert meta.graph is graph.fx_graph
    assert meta.model is graph.model
    assert meta.module is graph.modules["0"]
    assert mase(next(iter(graph.nodes))).module is None


def test_module_follows_a_replacement(graph, linear):
    new = nn.Linear(16, 5)
    setattr(graph.modules[""], "0", new)
    assert linear.meta["mase"].module is new


def test_the_constructor_takes_what_mase_takes():
    meta = MaseMetadata(node=None, model=None)
    assert meta.parameters == {"common": {}, "software": {}, "hardware": {}}
    assert meta.known_types == ["fixed", "float", "NA"]
    assert meta.known_toolchain[:3] == ["INTERNAL_RTL", "EXTERNAL_RTL", "HLS"]
    assert {"INTERNAL", "EXTERNAL"} < set(meta.known_toolchain)
    assert meta.known_storage == ["BRAM"]
    assert meta.internal_layers == {nn.Linear: "linear", nn.ReLU: "relu"}
    assert meta.module is None
    with pytest.raises(AssertionError, match="this metadata is detached"):
        _ = meta.model


def test_repr_is_one_line(linear):
    assert repr(linear.meta["mase"]) == "MaseMetadata(_0: common, software)"
    assert repr(MaseMetadata()) == "MaseMetadata(detached: )"


def test_a_deep_copy_is_of_the_facts_not_of_the_model(graph, linear):
    new = copy.deepcopy(linear.meta["mase"])
    assert new.parameters == linear.meta["mase"].parameters
    assert new.module is graph.modules["0"]
    new.common.args.tensor("weight").format = INTEGER
    assert linear.meta["mase"]["common"]["args"]["weight"]["type"] == "float"


def test_a_pickle_holds_neither_model_nor_graph():
    graph = MaseGraph(nn.Sequential(nn.Linear(300, 300)))
    options = {"dummy_in": {"input": torch.zeros(1, 300)}, "add_value": False}
    ANNOTATE(graph, {"add_common_metadata": options})
    for node in graph.nodes:
        text = pickle.dumps(node.meta["mase"])
        assert len(text) < 2000  # the weight alone takes 360,000
        loaded = pickle.loads(text)
        assert loaded.node is None
        assert loaded.parameters == node.meta["mase"].parameters
        assert type(loaded.common) is CommonMeta


class TestGraphMetadata:
    def test_it_is_a_dict_with_attributes_too(self, graph):
        meta = graph.meta["mase"]
        assert isinstance(meta, MaseGraphMetadata)
        assert meta["common"] is meta.common is meta.parameters["common"]
        assert list(meta.common) == ["nodes_in", "nodes_out", "args", "results"]
        meta["hardware"] = {"verilog_sources": ["a.sv"]}
        assert meta.hardware.verilog_sources == ["a.sv"]

    def test_it_is_there_from_the_beginning(self):
        graph = MaseGraph(nn.Sequential(nn.ReLU()))
        assert graph.meta["mase"].parameters == {"common": {}, "software": {}, "hardware": {}}
        assert graph.meta["mase"].graph is graph

    def test_its_nodes_are_those_that_compute_first_and_last(self, graph):
        common = graph.meta["mase"]["common"]
        assert [node.name for node in common["nodes_in"]] == ["_0"]
        assert [node.name for node in common["nodes_out"]] == ["_1"]
        assert common["args"]["data_in_0"]["shape"] == [2, 16]
        assert common["results"]["data_out_0"]["shape"] == [2, 5]
