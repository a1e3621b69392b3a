"""The helpers that people who write passes know from MASE (SPEC-2 §8)."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.passes import Pipeline
from chop.passes.graph.utils import (
    check_func,
    check_func_type,
    deepcopy_mase_graph,
    deepgetattr,
    deepsetattr,
    get_input_index,
    get_mase_op,
    get_mase_type,
    get_module_by_name,
    get_module_by_target,
    get_node_actual_target,
    get_node_by_name,
    get_node_target_by_name,
    get_parent_name,
    get_similar_node_actual_target,
    init_project,
    isinstance_but_not_subclass,
    match_a_pattern,
    v2p,
    vf,
)
from chop.registry import UnknownName


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq_blocks = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        y = F.relu(self.seq_blocks(x))
        return (x + y).view(-1)


@pytest.fixture
def graph():
    graph = MaseGraph(Network())
    options = {"add_common_metadata": {"dummy_in": {"x": torch.zeros(1, 4)}}}
    Pipeline(["init_metadata", "add_common_metadata"])(graph, options)
    return graph


@pytest.fixture
def nodes(graph):
    return {node.name: node for node in graph.nodes}


def test_functions_are_compared_by_themselves_and_by_type(nodes):
    assert check_func(nodes["relu"], F.relu)
    assert not check_func(nodes["relu"], torch.relu)
    assert check_func_type(nodes["relu"], F.softmax)
    assert not check_func_type(nodes["seq_blocks_0"], F.relu)


def test_a_subclass_is_not_its_class():
    assert isinstance_but_not_subclass(nn.Linear(1, 1), nn.Linear)
    assert not isinstance_but_not_subclass(nn.ReLU6(), nn.Hardtanh)


def test_the_first_pattern_that_matches_the_whole_name_wins():
    assert match_a_pattern("layer_12", [r"layer", r"layer_\d+", r".*"]) == r"layer_\d+"
    assert match_a_pattern("layer_12", []) is None
    assert match_a_pattern("layer_12", [r"\d+"]) is None


@pytest.mark.parametrize(
    ("target", "parent", "name"),
    [
        ("seq_blocks.2", "seq_blocks", "2"),
        ("a.b.c", "a.b", "c"),
        ("fc", "", "fc"),
    ],
)
def test_a_target_is_parent_and_name(target, parent, name):
    assert get_parent_name(target) == (parent, name)


def test_lab_4_replaces_a_module_by_parent_and_name(graph, nodes):
    new = nn.Linear(4, 4)
    parent, name = get_parent_name(nodes["seq_blocks_0"].target)
    setattr(graph.modules[parent], name, new)
    assert get_node_actual_target(nodes["seq_blocks_0"]) is new


def test_modules_are_found_by_name_and_by_target(graph):
    for find in (get_module_by_name, get_module_by_target):
        assert find(graph.model, "seq_blocks.0") is graph.modules["seq_blocks.0"]
        assert find(graph.model, "") is graph.model
        assert find(graph.model, "seq_blocks.9") is None


def test_a_node_is_found_by_name_or_refused_with_the_nearest(graph, nodes):
    assert get_node_by_name(graph.fx_graph, "relu") is nodes["relu"]
    with pytest.raises(UnknownName, match=r"unknown node 'rleu'; did you mean 'relu'\?"):
        get_node_by_name(graph.fx_graph, "rleu")
    with pytest.raises(RuntimeError, match=r"unknown node \['relu'\]"):  # as older scripts expect
        get_node_by_name(graph.fx_graph, ["relu"])


def test_names_for_verilog():
    assert vf("seq_blocks.2 weight") == "seq_blocks_2_weight"
    assert v2p("data_in_0") == "DATA_IN_0"


def test_which_input_a_node_is(nodes):
    assert get_input_index(nodes["x"], nodes["add"]) == 0
    assert get_input_index(nodes["relu"], nodes["add"]) == 1
    with pytest.raises(ValueError, match=r"'add' is not an input of 'relu'; its inputs are \['seq"):
        get_input_index(nodes["add"], nodes["relu"])


def test_op_and_type_of_a_node(nodes):
    found = {name: (get_mase_type(node), get_mase_op(node)) for name, node in nodes.items()}
    assert found == {
        "x": ("placeholder", "placeholder"),
        "seq_blocks_0": ("module_related_func", "linear"),
        "seq_blocks_1": ("module_related_func", "relu"),
        "relu": ("module_related_func", "relu"),
        "add": ("builtin_func", "add"),
        "view": ("implicit_func", "view"),
        "output": ("output", "output"),
    }


@pytest.mark.parametrize("prepare", [[], ["init_metadata"]])
def test_op_and_type_of_a_bare_node_say_what_to_run(prepare):
    graph = MaseGraph(Network())
    if prepare:
        Pipeline(prepare)(graph)
    for ask in (get_mase_op, get_mase_type):
        with pytest.raises(KeyError, match=r"node 'x' has no mase_.* yet; run init_metadata_analy"):
            ask(next(iter(graph.nodes)))


def test_the_actual_target_is_module_function_or_name(graph, nodes):
    assert get_node_actual_target(nodes["seq_blocks_0"]) is graph.modules["seq_blocks.0"]
    assert get_node_actual_target(nodes["relu"]) is F.relu
    assert get_node_actual_target(nodes["view"]) == "view"
    assert get_node_actual_target(nodes["x"]) == "x"


def test_the_same_node_of_another_graph(graph, nodes):
    other = graph.clone()
    found = get_similar_node_actual_target(other, nodes["seq_blocks_0"])
    assert found is other.modules["seq_blocks.0"] is not graph.modules["seq_blocks.0"]
    assert get_similar_node_actual_target(None, nodes["relu"]) is None
    assert get_node_target_by_name(graph, "relu") is F.relu


def test_a_deep_copy_is_a_clone(graph):
    new = deepcopy_mase_graph(graph)
    assert new.model is not graph.model
    assert all(node.meta["mase"].model is new.model for node in new.nodes)


def test_attributes_are_read_and_set_by_dotted_names():
    model = Network()
    assert deepgetattr(model, "seq_blocks.0.in_features") == 4
    assert deepgetattr(model, "seq_blocks.7.in_features", default="none") == "none"
    new = nn.Linear(4, 2)
    deepsetattr(model, "seq_blocks.0", new)
    assert model.seq_blocks[0] is new
    deepsetattr(model, "seq_blocks", nn.Identity())
    assert isinstance(model.seq_blocks, nn.Identity)
    with pytest.raises(UnknownName, match=r"unknown attribute 'seq_block'; did you mean 'seq_blo"):
        deepsetattr(model, "seq_block.0", new)


def test_a_project_has_its_folders(tmp_path):
    for _ in range(2):  # folders that are there already are fine
        init_project(tmp_path / "project")
    made = {str(p.relative_to(tmp_path / "project")) for p in (tmp_path / "project").rglob("*")}
    assert made >= {
        "software",
        "hardware/rtl",
        "hardware/sim",
        "hardware/test/mase_top_tb",
        "hardware/hls",
    }
