"""Circuits of tables on edges: equal to the integer graph, and what they cost."""

import dataclasses
import importlib.util

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from chop.hardware.estimate import estimate
from chop.hardware.simulation import lint_circuit
from chop.hardware.simulation.check import check_circuit
from chop.hardware.streaming import streaming_circuit
from chop.hardware.unrolled import layer_logic, layers_of, unrolled_circuit
from chop.methods.edge_tables.estimates import edge_facts
from tests.integers.test_edges import codes_of, given_tables, graph_of, network, op_of

needs_alkaid = pytest.mark.skipif(
    importlib.util.find_spec("alkaid") is None, reason="needs alkaid: run `make test-all`"
)


def integers_of(model, features):
    return graph_of(model, (features,)).to_integers()


def wrong_codes(graph, x):
    """How many codes the logic of the first layer gets wrong."""
    (source, node, *_) = graph.nodes.values()
    codes = source.op.run(x)
    expected = node.op.run(codes).numpy()
    layer = layers_of(graph)[0]
    logic = layer_logic(graph, layer)
    found = np.empty_like(expected)
    for place, value in logic.constants.items():
        found[:, place] = value
    varying = [i for i in range(expected.shape[1]) if i not in logic.constants]
    if varying:
        found[:, varying] = logic.logic.predict(codes.double().numpy())
    return int((found != expected).sum())


@needs_alkaid
@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 7), min_size=4, max_size=4),
    st.lists(st.integers(-1, 4), min_size=4, max_size=4),
    st.lists(st.integers(-2, 3), min_size=4, max_size=4),
    st.sampled_from(["floor", "up"]),
    st.sampled_from(["saturate", "symmetric", "wrap"]),
    st.booleans(),
)
def test_the_logic_of_tables_on_edges_equals_the_op(widths, fracs, outs, rounding, over, signed):
    if over == "symmetric" and signed:
        widths = [0 if width == 1 else width for width in widths]
    rows = [[part[i : i + 2] for i in (0, 2)] for part in (widths, fracs, outs)]
    rule = {"rounding": rounding, "overflow": over, "signed": signed}
    graph = integers_of(nn.Sequential(given_tables(*rows, **rule)), 2)
    assert wrong_codes(graph, 6 * torch.randn(400, 2)) == 0


@needs_alkaid
def test_each_layer_is_a_module_and_unread_features_have_no_logic():
    model = network(6, 5, 3)
    model[0].in_frac_bits.data[2] = -9
    graph = integers_of(model, 6)
    circuit = unrolled_circuit(graph)
    assert len(circuit.layers) == 2
    assert circuit.digest == unrolled_circuit(graph).digest
    (source, *_) = graph.nodes.values()
    assert source.codes.low.expand(6)[2] == source.codes.high.expand(6)[2] == 0


@needs_alkaid
def test_ports_are_connected_with_the_bits_of_each_feature():
    model = network(6, 5, 3)
    model[0].in_frac_bits.data[2] = -9  # is not read
    circuit = unrolled_circuit(integers_of(model, 6))
    (port,) = circuit.inputs
    top, layer = (circuit.files[f"{name}.sv"] for name in ("top", "n_0"))
    assert (port.bits, port.width) == (36, 6)
    assert "input wire [29:0] input_1_codes" in layer  # without the bits of the third feature
    assert f"(.{port.name})" not in top
    assert "assign input_1_codes" in top


@needs_alkaid
def test_estimates_agree_and_are_near_what_training_counts():
    model = network(8, 8, 5)
    graph = integers_of(model, 8)
    counted = sum(layer.bit_cost("lut", exact=True).item() for layer in model)
    formula, adders = (estimate(graph, fidelity=name).lut for name in ("formula", "adders"))
    assert formula == pytest.approx(adders, rel=0.25)
    assert 0.5 * counted < adders < 1.1 * counted  # which knows of no offsets and reached codes


def test_facts_of_edges_are_tables_and_adders_of_their_own_bits():
    x = codes_of([-2, -2], [1, 1])
    facts = edge_facts(op_of([[0, 1, 2, 3], [0, 4, 8, 12]]).fitted(x), x)
    assert facts.table_luts == pytest.approx(2 * 0.5 * 2 / 5 * 2)
    assert (facts.adder_bits, facts.depth) == (2, 1)  # places 0 and 1, and places 2 and 3


def test_a_layer_without_edges_costs_no_logic():
    model = network(3, 2)
    model[0].in_frac_bits.data.fill_(-9)
    assert estimate(integers_of(model, 3), fidelity="formula").lut == 0


def test_the_bias_of_an_output_without_edges_is_a_constant_and_no_adder():
    x = codes_of([-2, -2], [1, 1])
    op = op_of([[0, 1, 2, 3], [0, 4, 8, 12]]).fitted(x)
    wider = dataclasses.replace(op, bias=torch.cat([op.bias, torch.tensor([-100, 100])]))
    assert edge_facts(wider, x) == edge_facts(op, x)


@needs_alkaid
def test_a_saturation_counts_the_luts_of_its_flags_and_nothing_for_repeated_bits():
    from chop.hardware.estimate.adders import layer_features

    graph = integers_of(network(3, 2), 3)
    found = layer_features(graph, 5.0)
    (features,) = found.values()
    (layer,) = layers_of(graph)
    ops = layer_logic(graph, layer).logic.ops
    flags = sum(op.opcode == 9 and op.data[0] > 0 for op in ops)
    assert features["negated"] == 0
    assert features["reduced"] <= flags  # each has at most six bits
    assert features["table"] > 0


def test_streaming_circuits_refuse_tables_on_edges_in_one_sentence():
    with pytest.raises((NotImplementedError, ValueError), match="EdgeTables"):
        streaming_circuit(integers_of(network(3, 2), 3))


@pytest.mark.rtl
def test_a_network_for_jets_lints_and_equals_the_integer_graph_on_ten_thousand_vectors(tmp_path):
    graph = integers_of(network(16, 20, 5), 16)
    circuit = unrolled_circuit(graph)
    lint_circuit(circuit, tmp_path)
    x = 2 * torch.randn(10_000, 16, generator=torch.Generator().manual_seed(0))
    check = check_circuit(graph, circuit, [x], folder=tmp_path)
    assert (check.mismatches, check.samples) == (0, 10_000)
