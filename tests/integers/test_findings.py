"""What verification finds: lost constants, sums that wrap, and faults put into integer graphs."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from chop.integers import ClampCodes, IntegerGraph, LinearCodes
from chop.passes.graph import verify_integers_analysis_pass
from chop.passes.graph.analysis import verify_integers
from chop.passes.graph.transforms.integers.pointwise_rules import FINER_BITS

from .checking import Calls, quantised

AFFINE = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.565, "weight_width": 8}
INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4, "weight_width": 8}
INTEGER |= {"weight_frac_width": 6}
NARROW_BIAS = {"bias_width": 4, "bias_frac_width": 3}


def network():
    torch.manual_seed(0)
    layers = {"one": nn.Linear(4, 6), "last": nn.Linear(6, 3)}
    return Calls(lambda m, x: m["last"](nn.functional.relu6(m["one"](x))), **layers)


def graph_of(config, model=None):
    tables = {"by": "type", "linear": {"config": config}}
    return quantised(model or network(), (4,), tables)


def edited(integers, name, change):
    """Return the graph with another op, and everything after it fitted anew."""
    new = IntegerGraph(inputs=integers.inputs, notes=integers.notes, left_out=integers.left_out)
    for node in integers.nodes.values():
        op = change(node.op) if node.name == name else node.op
        new.add(node.name, op, node.inputs, node.source)
    new.outputs, new.values, new.roundings = integers.outputs, integers.values, integers.roundings
    return new


def clipped_bias(op):
    top = int(op.bias.abs().max()) // 2
    return replace(op, bias=op.bias.clamp(-top, top))


def verified(graph, monkeypatch, integers, **options):
    monkeypatch.setattr(verify_integers, "integer_graph", lambda _: integers)
    return verify_integers_analysis_pass(graph, num_samples=64, silent=True, **options)[1]


@pytest.mark.parametrize("config", [AFFINE, INTEGER], ids=["affine", "integer"])
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (LinearCodes, clipped_bias),
        (ClampCodes, lambda op: replace(op, high=op.high - op.high // 8)),
        (ClampCodes, lambda op: replace(op, low=op.low + op.high // 8)),
    ],
    ids=["clipped bias", "lower end", "higher start"],
)
def test_a_planted_fault_is_a_mismatch_of_the_outputs(kind, change, config, monkeypatch):
    graph = graph_of(config)
    integers = graph.to_integers()
    assert verified(graph, monkeypatch, integers, strict=True)["mismatches"] == 0
    nodes = [name for name, node in integers.nodes.items() if isinstance(node.op, kind)]
    for name in nodes:
        info = verified(graph, monkeypatch, edited(integers, name, change))
        assert info["output_mismatches"] > 0
        assert info["mismatches"] >= info["output_mismatches"]
        with pytest.raises(TypeError, match="differs from the float simulation"):
            verified(graph, monkeypatch, edited(integers, name, change), strict=True)


def test_a_bound_that_was_rounded_to_a_code_is_a_mismatch(monkeypatch):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU6())
    config = {**AFFINE, "data_in_scale": 0.07}  # 6 is 85.7 steps
    tables = {"by": "type", "linear": {"config": config}, "relu6": {"config": config}}
    graph = quantised(model, (4,), tables)
    integers = graph.to_integers()
    assert verified(graph, monkeypatch, integers)["mismatches"] == 0
    (name,) = (n for n, node in integers.nodes.items() if isinstance(node.op, ClampCodes))
    step = 1 << FINER_BITS
    wrong = edited(integers, name, lambda op: replace(op, high=86 * step))
    with pytest.raises(TypeError, match="differs from the float simulation"):
        verified(graph, monkeypatch, wrong, strict=True)


def test_a_fault_that_no_layer_shows_is_found_in_the_output(monkeypatch):
    """The comparison of layers goes on from the codes, that of the outputs does not."""
    graph = graph_of(AFFINE)
    integers = graph.to_integers()
    monkeypatch.setattr(verify_integers, "_compare", lambda *_: None)
    (name,) = (n for n, node in integers.nodes.items() if isinstance(node.op, ClampCodes))
    wrong = edited(integers, name, lambda op: replace(op, high=op.high - 3))
    with pytest.raises(TypeError, match="the output of the whole network differs from the float"):
        verified(graph, monkeypatch, wrong, strict=True)


def test_a_bias_that_its_format_clips_is_named(caplog):
    graph = graph_of(INTEGER | NARROW_BIAS)
    graph.model.layers.one.bias.data[2] = 5.0
    _, info = verify_integers_analysis_pass(graph, num_samples=8, silent=True)
    (finding,) = info["findings"]
    assert finding.startswith("node 'layers_one': 1 of 6 numbers of its bias are clipped")
    assert finding in caplog.text
    assert finding in graph.to_integers().report()


def test_a_constant_that_its_format_clips_is_named():
    config = {**INTEGER, "data_in_width": 4}
    model = Calls(lambda m, x: m["one"](x) + 100.0, one=nn.Linear(4, 3))
    tables = {"by": "type", "linear": {"config": INTEGER}, "add": {"config": config}}
    findings = quantised(model, (4,), tables).to_integers().findings
    assert [finding.partition(":")[0] for finding in findings] == ["node 'add'"]


@pytest.mark.parametrize("bias_bits", [30, 33])
def test_a_sum_that_wraps_in_32_bits_is_named_by_analysis(bias_bits):
    config = {**INTEGER, "bias_width": 40, "bias_frac_width": 10}
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].bias.data[1] = 2.0 ** (bias_bits - 11)
    findings = graph_of(config, model).to_integers().findings
    named = [finding for finding in findings if "may need 34 bits" in finding]
    assert len(named) == len(findings) == (bias_bits > 31)
    assert all(finding.startswith("node '_0': its sum") for finding in named)


def test_an_ordinary_network_has_no_findings():
    for config in (AFFINE, INTEGER):
        assert graph_of(config).to_integers().findings == []
