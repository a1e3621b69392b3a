"""Which nodes a user means."""

import logging

import pytest
import torch
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import Pipeline
from chop.passes.base import PASSES
from chop.passes.module import quantize_module_transform_pass
from chop.passes.select import select

INTEGER = {"name": "integer"} | {
    f"{operand}_{key}": number
    for operand in ("data_in", "weight", "bias")
    for key, number in (("width", 8), ("frac_width", 4))
}


@pytest.fixture
def mg():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": {"input": torch.ones(1, 4)}})]
    return Pipeline(steps)(MaseGraph(model))[0]


def names(found):
    return {node.name: key for node, key in found.items()}


def test_by_type(mg):
    assert names(select(mg, "type", ["linear"])) == {"_0": "linear", "_2": "linear"}


def test_by_name(mg):
    assert names(select(mg, "name", ["_2", "_1"])) == {"_1": "_1", "_2": "_2"}


def test_by_regular_expression_the_first_key_that_fits_wins(mg):
    found = names(select(mg, "regex_name", ["_[01]", r"_\d"]))
    assert found == {"_0": "_[01]", "_1": "_[01]", "_2": r"_\d"}


def test_an_expression_matches_the_whole_name(mg, caplog):
    with caplog.at_level(logging.WARNING, "chop"):
        assert select(mg, "regex_name", ["_"]) == {}
    assert caplog.messages == ["no node of the graph matches regex_name '_'"]


def test_an_expression_that_must_match_gives_one_message(mg, caplog):
    with pytest.raises(KeyError, match="unknown node matching '_'"):
        select(mg, "regex_name", ["_"], must_match=True)
    assert not caplog.messages


class Nested(nn.Module):
    """Layers whose dotted names differ from those of their nodes; one is called twice."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.block_0 = nn.Linear(4, 4)

    def forward(self, x):
        return self.block_0(self.block(self.block(x)))


@pytest.fixture
def nested():
    about = {"dummy_in": {"x": torch.ones(1, 4)}}
    return Pipeline(["init_metadata", ("add_common_metadata", about)])(MaseGraph(Nested()))[0]


def test_a_dotted_name_means_every_call_of_the_layer(nested):
    found = names(select(nested, "name", ["block.1", "block.0"]))
    again = {"block_2": "block.0", "block_3": "block.1"}  # how torch.fx numbers second calls
    assert found == {"block_0": "block.0", "block_1": "block.1"} | again


def test_the_name_of_a_node_comes_before_that_of_a_layer(nested):
    assert names(select(nested, "name", ["block_0"])) == {"block_0": "block_0"}


@pytest.mark.parametrize("spelt", ["block.0", "block_0"])
def test_quantize_and_prune_take_both_spellings(spelt):
    model = nn.Sequential()
    model.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    about = {"dummy_in": {"input": torch.ones(1, 4)}}
    graph = Pipeline(["init_metadata", ("add_common_metadata", about)])(MaseGraph(model))[0]
    table = {"by": "name", spelt: {"config": INTEGER}}
    sparsity = {"weight": {"by": "name", "sparsity": {spelt: 0.5}}}
    for run, options in (("quantize", table), ("prune", sparsity)):
        assert PASSES[run].misfits(graph, options) == []
    done = Pipeline([("prune", sparsity), ("quantize", table)])(graph)[1]
    assert done["quantize"] == {"quantized": ["block_0"]}
    assert done["prune"]["weight"]["block_0"]["reached"] == 0.5
    changed, info = quantize_module_transform_pass(model, table)
    assert info == {"quantized": ["block.0"]}
    assert type(changed.block[0]).__name__ == "LinearInteger"


def test_a_type_that_this_graph_lacks_is_worth_a_warning(mg, caplog):
    with caplog.at_level(logging.WARNING, "chop"):
        assert select(mg, "type", ["conv2d"]) == {}
    assert caplog.messages == ["no node of the graph matches type 'conv2d'"]


@pytest.mark.parametrize(
    ("by", "key", "message"),
    [
        ("type", "linaer", "unknown op 'linaer'; did you mean 'linear'?"),
        ("name", "_3", "unknown node '_3'"),
        ("regex_name", "(", "'\\(' is not a regular expression"),
        ("name", ["_0"], r"unknown node \['_0'\]"),
        ("type", ["linear"], r"unknown op \['linear'\]"),
        ("regex_name", ["_.*"], r"\['_\.\*'\] is not a regular expression"),
        ("colour", "red", "Unsupported \"by\": 'colour'; it must be one of type, name, regex_name"),
    ],
)
def test_what_cannot_be_meant_is_refused(mg, by, key, message):
    with pytest.raises((KeyError, ValueError), match=message):
        select(mg, by, [key])


def test_a_graphs_own_op_can_be_chosen_by_type(mg):
    next(n for n in mg.nodes if n.name == "_1").meta["mase"].common.mase_op = "my_patched_op"
    assert names(select(mg, "type", ["my_patched_op"])) == {"_1": "my_patched_op"}
