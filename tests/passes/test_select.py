"""Which nodes a user means."""

import logging

import pytest
import torch
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import Pipeline
from chop.passes.select import select


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
        ("colour", "red", "Unsupported \"by\": 'colour'; it must be one of type, name, regex_name"),
    ],
)
def test_what_cannot_be_meant_is_refused(mg, by, key, message):
    with pytest.raises((KeyError, ValueError), match=message):
        select(mg, by, [key])


def test_a_graphs_own_op_can_be_chosen_by_type(mg):
    next(n for n in mg.nodes if n.name == "_1").meta["mase"].common.mase_op = "my_patched_op"
    assert names(select(mg, "type", ["my_patched_op"])) == {"_1": "my_patched_op"}
