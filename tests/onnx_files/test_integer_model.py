"""The format `integer` equals the integer graph bit for bit: whole networks, names and refusals."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.dataset import get_dataset_info  # noqa: E402
from chop.integers import IntegerGraph, QuantizeInput, ReluCodes, Scale, Word  # noqa: E402
from chop.integers.digest import graph_digest  # noqa: E402
from chop.integers.vectors import boundary_inputs, input_words, random_inputs  # noqa: E402
from chop.models import get_model  # noqa: E402
from chop.onnx import save_model  # noqa: E402
from chop.onnx.integers import integer_model  # noqa: E402
from chop.onnx.runtime import Runtime  # noqa: E402
from chop.passes.graph.transforms.integers import integer_graph  # noqa: E402
from tests.integers import test_edges, test_mixed, test_networks  # noqa: E402
from tests.integers.checking import (  # noqa: E402
    BY_NAME,
    CASES,
    OVERFLOWS,
    ROUNDINGS,
    RULES,
    WIDTHS,
    Calls,
    graph_of,
    quantised,
    vectors,
)
from tests.onnx_files.integer_checks import SESSIONS, mismatches  # noqa: E402

# layers that see floats have no place in a file of integers
FLOAT_FIRST = ("logicnets fused", "lutnet of three levels after the input", "lutnet with a norm")
WHOLE = [case for case in CASES if case.name not in FLOAT_FIRST]


def case_mismatches(case, rounding, overflow, count, sessions=SESSIONS, **widths):
    settings = {**WIDTHS, **widths, **case.others}
    width = case.reach or settings["data_in_width"]
    x = vectors(case, count, settings["data_in_frac_width"], width)
    return mismatches(
        graph_of(case, rounding, overflow, **widths).to_integers(), x, sessions=sessions
    )


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("rounding", "overflow"), RULES)
@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_every_op_and_rule_equals_the_integer_graph(case, rounding, overflow):
    assert case_mismatches(case, rounding, overflow, 200) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("rounding", "overflow"), RULES)
@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_ten_thousand_vectors_equal_the_integer_graph(case, rounding, overflow):
    assert case_mismatches(case, rounding, overflow, 10_000) == 0


bits, shifts = st.integers(2, 18), st.integers(-3, 12)


@pytest.mark.slow
@given(
    case=st.sampled_from([case for case in WHOLE if not case.others]),
    rounding=st.sampled_from(ROUNDINGS),
    overflow=st.sampled_from(OVERFLOWS),
    widths=st.fixed_dictionaries(
        {
            **dict.fromkeys(("data_in_width", "weight_width", "bias_width"), bits),
            **dict.fromkeys(("data_in_frac_width", "weight_frac_width", "bias_frac_width"), shifts),
        }
    ),
)
def test_any_mix_of_widths_equals_the_integer_graph(case, rounding, overflow, widths):
    if case.single:  # whose tables have an entry for each code
        widths = {key: min(value, 10) for key, value in widths.items()}
    assert case_mismatches(case, rounding, overflow, 60, SESSIONS[::3], **widths) == 0


def many_vectors(graph, count=10_000):
    words = list(input_words(graph).values())
    source = torch.Generator().manual_seed(0)
    pairs = zip(boundary_inputs(words), random_inputs(words, count, source), strict=True)
    return [torch.cat(pair) for pair in pairs]


AFFINE = test_networks.AFFINE
TABLES = {
    "integer": test_networks.DEFAULT,
    "8 bits": {
        "by": "type",
        "default": {"config": {**test_networks.INTEGER, "weight_width": 8, "weight_frac_width": 6}},
    },
    "16 bits": {
        "by": "type",
        "default": {
            "config": {
                **test_networks.INTEGER,
                "data_in_width": 16,
                "data_in_frac_width": 10,
                "weight_width": 16,
                "weight_frac_width": 14,
            }
        },
    },
    "float scales": {
        "by": "type",
        "default": {"config": AFFINE},
        **{op: {"config": {**AFFINE, "weight_axis": 0}} for op in ("linear", "conv2d")},
    },
}


def tiny_jsc():
    model = get_model("jsc-tiny", dataset_info=get_dataset_info("jsc"), pretrained=False)
    return test_networks.trained(model, (16,)), (16,)


NETWORKS = {"jsc-tiny": tiny_jsc, **test_networks.NETWORKS}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tables", TABLES)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_the_integer_graph_on_ten_thousand_vectors(name, tables):
    torch.manual_seed(1)
    model, shape = NETWORKS[name]()
    graph = quantised(model, shape, TABLES[tables]).to_integers()
    assert mismatches(graph, *many_vectors(graph)) == 0


@pytest.mark.parametrize("function", ["mlp", pytest.param("spline", marks=pytest.mark.slow)])
def test_tables_on_edges_equal_the_integer_graph_on_ten_thousand_vectors(function):
    model = test_edges.network(6, 8, 3, function=function)
    graph = test_edges.graph_of(model, (6,)).to_integers()
    assert mismatches(graph, *many_vectors(graph)) == 0


@pytest.mark.slow
@given(
    st.lists(test_edges.BITS, min_size=6, max_size=6),
    st.lists(st.integers(-2, 4), min_size=6, max_size=6),
    st.lists(st.integers(-2, 3), min_size=6, max_size=6),
    st.sampled_from(["floor", "up"]),
    st.sampled_from(OVERFLOWS),
    st.booleans(),
)
def test_any_tables_on_edges_equal_the_integer_graph(
    widths, fracs, outs, rounding, overflow, signed
):
    if overflow == "symmetric" and signed:
        widths = [0 if width == 1 else width for width in widths]
    rows = [[part[i : i + 2] for i in (0, 2, 4)] for part in (widths, fracs, outs)]
    rule = {"rounding": rounding, "overflow": overflow, "signed": signed}
    first = test_edges.given_tables(*rows, **rule)
    second = test_edges.given_tables([[3, 2], [2, 4]], [[1, 0], [-1, 2]], [[0, 1], [1, 0]], **rule)
    graph = test_edges.graph_of(nn.Sequential(first, second).eval(), (3,)).to_integers()
    x = torch.cat([4 * torch.randn(300, 3), torch.arange(-60, 60).view(-1, 3) / 8])
    assert mismatches(graph, x, sessions=SESSIONS[::3]) == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_bits_that_differ_by_element_equal_the_integer_graph(overflow):
    graph = integer_graph(test_mixed.frozen(overflow=overflow))
    assert mismatches(graph, *many_vectors(graph, 2000)) == 0


def test_infinite_inputs_have_the_codes_of_the_integer_graph():
    x = torch.full((2, 7), torch.inf)
    x[1] = -torch.inf
    x[:, 3] = 3e38
    for rule in RULES:
        graph = graph_of(BY_NAME["linear"], *rule).to_integers()
        assert mismatches(graph, x, sessions=SESSIONS[:1]) == 0


@pytest.mark.parametrize("name", ["linear", "logicnets conv2d", "avg pool", "lutnet"])
@pytest.mark.parametrize("count", [0, 1])
def test_a_batch_may_have_one_sample_or_none(name, count):
    case = BY_NAME[name]
    graph = graph_of(case, "even", "saturate").to_integers()
    results = Runtime(integer_model(graph)).run(
        {graph.inputs[0]: np.ones((count, *case.shape), np.float32)}
    )
    assert results["output"].shape == (count, *graph.codes(graph.outputs[0]).shape)


@dataclass
class Pair:
    one: torch.Tensor
    other: torch.Tensor


def two_outputs():
    layers = {"one": nn.Linear(4, 3), "other": nn.Linear(4, 2)}
    model = Calls(lambda m, x: Pair(m["one"](x), m["other"](x).relu()), **layers)
    return quantised(model, (4,), test_networks.DEFAULT).to_integers()


def test_outputs_are_numbered_or_named_and_have_their_codes_beside_them():
    graph = two_outputs()
    assert mismatches(graph, *many_vectors(graph, 100)) == 0
    runtime = Runtime(integer_model(graph))
    assert list(runtime.inputs) == graph.inputs
    assert runtime.outputs == ["output_0", "output_0_codes", "output_1", "output_1_codes"]
    named = Runtime(integer_model(graph, outputs=["one", "other"]))
    assert named.outputs == ["one", "one_codes", "other", "other_codes"]
    with pytest.raises(ValueError, match="the graph has 2 outputs; 1 names came"):
        integer_model(graph, outputs=["one"])


def test_the_file_keeps_names_weights_and_facts_and_is_the_same_every_time(tmp_path):
    graph = quantised(*test_networks.tiny(), test_networks.DEFAULT).to_integers()
    files = [
        save_model(integer_model(graph, metadata={"mase.accuracy": "0.5"}), tmp_path / name)
        for name in ("a.onnx", "b.onnx")
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    model = onnx.load(files[0])
    onnx.checker.check_model(model, full_check=True)
    facts = {prop.key: prop.value for prop in model.metadata_props}
    assert facts["mase.network"] == graph_digest(graph)
    assert (facts["mase.format"], facts["mase.accuracy"]) == ("integer", "0.5")
    results = {name for node in model.graph.node for name in node.output}
    assert set(graph.nodes) <= results
    weights = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    first = next(n for n in graph.nodes.values() if n.accumulates)
    assert (first.op.weight.numpy() == weights[f"{first.name}.weight"].T).all()
    assert "batch" in str(model.graph.input[0].type)


def test_a_node_called_like_an_output_gives_way():
    graph = IntegerGraph(inputs=["x"])
    word = Word(-8, 7, Scale.power(0), 4, True)
    graph.add("output", QuantizeInput(word, (3,)), ["x"], "x")
    graph.add("output_codes", ReluCodes(), ["output"], "relu")
    graph.outputs = ["output_codes"]
    assert mismatches(graph, *many_vectors(graph, 10)) == 0


class NewOp(ReluCodes):
    """An op that inherits a function."""


class OtherOp(QuantizeInput.__mro__[1]):
    """An op without a function."""

    def run(self, *inputs):
        return inputs[0]

    def result(self, *codes):
        return codes[0]


def test_what_cannot_be_written_is_refused_by_name_all_at_once():
    graph = IntegerGraph(inputs=["x"])
    word = Word(-8, 7, Scale.power(0), 4, True)
    graph.add("codes", QuantizeInput(word, (3,), before=nn.Tanh()), ["x"], "x")
    graph.add("new", NewOp(), ["codes"], "new")
    graph.add("first", OtherOp(), ["new"], "first")
    graph.add("second", OtherOp(), ["first"], "second")
    graph.outputs = ["second"]
    with pytest.raises(NotImplementedError) as refused:
        integer_model(graph)
    said = str(refused.value)
    assert "first (OtherOp) has no function" in said
    assert "second (OtherOp) has no function" in said
    assert "codes computes Tanh in float before it rounds the input: let a layer" in said
    assert "new" not in said
    assert "\n" not in said


@pytest.mark.parametrize("name", FLOAT_FIRST)
def test_layers_in_float_before_the_first_rounding_are_refused(name):
    graph = graph_of(BY_NAME[name], "even", "saturate").to_integers()
    with pytest.raises(NotImplementedError, match="in float before it rounds the input"):
        integer_model(graph)
