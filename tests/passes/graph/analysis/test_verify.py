"""Metadata that contradicts the graph is found, under the name of the node."""

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.passes import (
    PassArgsError,
    Pipeline,
    add_hardware_metadata_analysis_pass,
    verify_common_metadata_analysis_pass,
    verify_hardware_metadata_analysis_pass,
    verify_metadata_analysis_pass,
    verify_software_metadata_analysis_pass,
)
from chop.passes.graph.analysis.verify import MetadataError

PREPARE = Pipeline(
    ["init_metadata", "add_common_metadata", "add_software_metadata", "add_hardware_metadata"]
)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(4, 8)
        self.relu = nn.ReLU()
        self.narrow = nn.Linear(8, 4)
        self.shift = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        hidden = F.relu(self.relu(self.wide(x)))
        return torch.cat([self.narrow(hidden) + self.shift, x], 1), hidden.size(0)


@pytest.fixture
def graph():
    graph = MaseGraph(Network())
    PREPARE(graph, {"add_common_metadata": {"dummy_in": {"x": torch.zeros(2, 4)}}})
    assert verify_metadata_analysis_pass(graph)[1] == {}
    return graph


def node(graph, name):
    return next(node for node in graph.nodes if node.name == name)


def meta(graph, name):
    return node(graph, name).meta["mase"]


def entry(graph, name, path):
    value = meta(graph, name).parameters
    for key in path.split():
        value = value[key]
    return value


def change(name, path, **values):
    return lambda graph: entry(graph, name, path).update(values)


def drop(name, path, key):
    return lambda graph: entry(graph, name, path).pop(key)


def swap(name, module):
    return lambda graph: setattr(graph.modules[""], name, module)


def delete(name):
    return lambda graph: delattr(graph.modules[""], name)


def insert_node(graph):
    wide = node(graph, "wide")
    with graph.fx_graph.inserting_after(wide):
        new = graph.fx_graph.call_function(torch.neg, (wide,))
    node(graph, "relu").replace_input_with(wide, new)


def rewire(graph):
    node(graph, "narrow").replace_input_with(node(graph, "relu_1"), node(graph, "x"))


def rewire_in_a_list(graph):
    node(graph, "cat").args = ([node(graph, "wide"), node(graph, "x")], 1)


def rewire_output(graph):
    node(graph, "output").args = ((node(graph, "narrow"), node(graph, "size")),)


def replace_tensor_by_number(graph):
    node(graph, "add").args = (node(graph, "narrow"), 2)


def give_one_more(graph):
    node(graph, "cat").args = ([node(graph, "x")] * 3, 1)


def replace_function(graph):
    node(graph, "add").target = operator.mul


def change_plain_argument(graph):
    cat = node(graph, "cat")
    cat.args = (cat.args[0], -1)


def lend_metadata(graph):
    node(graph, "relu").meta["mase"] = meta(graph, "wide")


change_shape = change("wide", "common args data_in_0", shape=[2, 5])
change_result = change("wide", "common results data_out_0", shape=[2, 9])
change_dtype = change("narrow", "common args data_in_0", torch_dtype=torch.float16)
shorten_precision = change("wide", "common args weight", type="integer", precision=[8])
unknown_format = change("narrow", "common results data_out_0", type="interger")
drop_precision = drop("narrow", "common args bias", "precision")
relabel = change("add", "common", mase_op="sub")
wrong_type = change("add", "common", mase_type="builtin")
claim_to_be_patched = change("add", "common", mase_type="patched_func", mase_op="banana")
drop_common = change("relu", "", common={})
drop_results = drop("relu", "common", "results")
empty_results = change("output", "common", results={})
drop_software_argument = drop("wide", "software args", "weight")
drop_software_result = drop("relu", "software results", "data_out_0")
drop_stat = drop("relu", "software args data_in_0", "stat")
surplus_statistic = change("wide", "software args", banana={"stat": {}})
wrong_toolchain = change("wide", "hardware", toolchain="VITIS")
wrong_module = change("relu", "hardware", module="fixed_linear")
no_multipliers = change("wide", "hardware", max_parallelism=0)
wrong_storage = change("wide", "hardware interface weight", storage="TAPE")
wrong_parallelism = change("wide", "hardware verilog_param", WEIGHT_PARALLELISM_DIM_0=3)
no_parallelism = change("wide", "hardware verilog_param", WEIGHT_PARALLELISM_DIM_0=0)
undecided = drop("wide", "hardware", "is_implicit")
swap_module, swap_kind_of_module = swap("wide", nn.Linear(4, 9)), swap("relu", nn.Tanh())
swap_attribute = swap("shift", nn.Parameter(torch.zeros(1)))
delete_module, delete_attribute = delete("narrow"), delete("shift")

MUTATIONS = [
    (claim_to_be_patched, "add", "recorded as patched_func/banana, but it is builtin_func/add"),
    (change_plain_argument, "cat", "takes 'dim' = -1, but 1 is recorded"),
    (surplus_statistic, "wide", "software args has 'banana', which the node does not have"),
    (lend_metadata, "relu", "has the metadata of another node"),
    (change_shape, "wide", "takes 'data_in_0' with shape [2, 5], but 'x' gives [2, 4]"),
    (change_result, "relu", "takes 'data_in_0' with shape [2, 8], but 'wide' gives [2, 9]"),
    (change_dtype, "narrow", "with torch_dtype torch.float16, but 'relu_1' gives torch.float32"),
    (shorten_precision, "wide", "integer needs the precision [width, frac_width], not [8]"),
    (unknown_format, "narrow", "unknown number format 'interger'; did you mean 'integer'?"),
    (drop_precision, "narrow", "argument 'bias' has no precision"),
    (swap_module, "wide", "parameter 'weight' has shape [9, 4], but [8, 4] is recorded"),
    (swap_kind_of_module, "relu", "_func/relu, but it is module_related_func/tanh"),
    (delete_module, "narrow", "call_module target does not exist: GraphModule has no 'narrow'"),
    (delete_attribute, "shift", "get_attr target does not exist: GraphModule has no 'shift'"),
    (swap_attribute, "shift", "attribute 'shift' has shape [1], but [4] is recorded"),
    (insert_node, "neg", "has no common metadata; run add_common_metadata_analysis_pass"),
    (relabel, "add", "is recorded as builtin_func/sub, but it is builtin_func/add"),
    (wrong_type, "add", "mase_type 'builtin' is not one of module_related_func"),
    (rewire, "narrow", "takes 'data_in_0' with shape [2, 8], but 'x' gives [2, 4]"),
    (rewire_in_a_list, "cat", "takes 'data_in_0' with shape [2, 4], but 'wide' gives [2, 8]"),
    (rewire_output, "output", "'data_out_0' with shape [2, 8], but 'narrow' gives [2, 4]"),
    (replace_tensor_by_number, "add", "does not take the tensor 'data_in_1' that is recorded"),
    (give_one_more, "cat", "takes a tensor 'data_in_2' that is not recorded"),
    (replace_function, "add", "is recorded as builtin_func/add, but it is builtin_func/mul"),
    (drop_common, "relu", "has no common metadata"),
    (drop_results, "relu", "has no results"),
    (empty_results, "output", "has no results"),
    (drop_software_argument, "wide", "software args lacks 'weight'"),
    (drop_software_result, "relu", "software results lacks 'data_out_0'"),
    (drop_stat, "relu", "software args 'data_in_0' has no stat"),
    (wrong_toolchain, "wide", "toolchain 'VITIS' is not one of INTERNAL_RTL, EXTERNAL_RTL, HLS"),
    (wrong_module, "relu", "module 'fixed_linear' is not the component of relu: fixed_relu"),
    (no_multipliers, "wide", "max_parallelism is 0, and must be at least 1"),
    (wrong_storage, "wide", "storage 'TAPE' of 'weight' is not one of ['BRAM']"),
    (wrong_parallelism, "wide", "_DIM_0 = 3, but common metadata says 4"),
    (no_parallelism, "wide", "_DIM_0 = 0, but common metadata says 4"),
    (undecided, "wide", "hardware metadata has no is_implicit"),
]


@pytest.mark.parametrize(("mutate", "name", "text"), MUTATIONS, ids=[m[2] for m in MUTATIONS])
class TestMutations:
    def test_the_node_is_named_with_what_is_wrong(self, graph, mutate, name, text):
        mutate(graph)
        _, problems = verify_metadata_analysis_pass(graph)
        assert text in "; ".join(problems[name])

    @pytest.mark.sampled(9)
    def test_strict_raises_with_the_nodes_name(self, graph, mutate, name, text):
        mutate(graph)
        _, problems = verify_metadata_analysis_pass(graph)
        with pytest.raises(MetadataError, match=f"^node '{next(iter(problems))}': ") as raised:
            verify_metadata_analysis_pass(graph, {"strict": True})
        if len(problems) > 1:
            assert f"(and {len(problems) - 1} more node" in str(raised.value)


def test_a_rewired_edge_of_the_same_shape_is_no_contradiction(graph):
    # the metadata says what a node takes, the edges are fx's own
    node(graph, "relu_1").replace_input_with(node(graph, "relu"), node(graph, "wide"))
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_verifying_changes_nothing(graph):
    before = [n.meta["mase"].parameters.clone() for n in graph.nodes]
    verify_metadata_analysis_pass(graph)
    assert [n.meta["mase"].parameters for n in graph.nodes] == before


def test_a_graph_without_metadata_is_reported_whole():
    graph = MaseGraph(nn.Sequential(nn.ReLU()))
    _, problems = verify_metadata_analysis_pass(graph)
    assert list(problems) == ["input_1", "_0", "output"]


def test_parts_that_are_not_there_yet_are_not_missed():
    graph = MaseGraph(nn.Sequential(nn.ReLU()))
    options = {"add_common_metadata": {"dummy_in": {"input": torch.zeros(1, 4)}}}
    Pipeline(["init_metadata", "add_common_metadata"])(graph, options)
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_a_quantised_format_is_accepted(graph):
    for part in (meta(graph, "wide").common.args, meta(graph, "wide").common.results):
        for _, tensor in part.tensors():
            tensor["type"], tensor["precision"] = "integer", [8, 4]
    assert verify_common_metadata_analysis_pass(graph)[1] == {}
    (stale,) = verify_metadata_analysis_pass(graph)[1].values()
    assert "verilog_param DATA_OUT_0_PRECISION_0 = 32, but common metadata says 8" in stale
    add_hardware_metadata_analysis_pass(graph)
    assert verify_metadata_analysis_pass(graph)[1] == {}


def test_each_part_has_a_verifier_of_its_own(graph):
    drop_software_argument(graph)
    wrong_toolchain(graph)
    relabel(graph)
    assert list(verify_common_metadata_analysis_pass(graph)[1]) == ["add"]
    assert list(verify_software_metadata_analysis_pass(graph)[1]) == ["wide"]
    assert list(verify_hardware_metadata_analysis_pass(graph)[1]) == ["wide"]


@pytest.mark.parametrize(
    ("verify", "first"),
    [
        (verify_software_metadata_analysis_pass, "add_software_metadata_analysis_pass"),
        (verify_hardware_metadata_analysis_pass, "add_hardware_metadata_analysis_pass"),
    ],
)
def test_a_part_that_was_never_filled_in_says_which_pass_does(verify, first):
    graph = MaseGraph(nn.Sequential(nn.ReLU()))
    with pytest.raises(PassArgsError, match=f"node 'input_1' has none; run {first} first"):
        verify(graph)


def test_names_that_are_one_name_in_verilog_are_reported(graph):
    first, second = node(graph, "relu"), node(graph, "relu_1")
    second.name = "Relu"
    _, problems = verify_hardware_metadata_analysis_pass(graph)
    assert problems == {"Relu": [f"has the same Verilog name as {first.name!r}"]}
