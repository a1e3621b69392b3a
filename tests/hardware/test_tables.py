"""Truth tables in unrolled circuits: the logic, the simulated circuit and the synthesised one."""

import importlib.util

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from chop.hardware.circuit import Circuit
from chop.hardware.estimate import estimate
from chop.hardware.simulation import lint_circuit
from chop.hardware.simulation.check import check_circuit
from chop.hardware.synthesis import synthesize_circuit
from chop.hardware.unrolled import layer_logic, layers_of, unrolled_circuit
from chop.integers import IntegerGraph, NeuronTables, QuantizeInput, Scale, Word
from chop.methods.lutnet.ops import ResidualSigns
from chop.passes.graph import emit_logicnets_transform_pass
from tests.integers.checking import BY_NAME, cached, quantised
from tests.integers.test_tables import jets

needs_alkaid = pytest.mark.skipif(
    importlib.util.find_spec("alkaid") is None, reason="needs alkaid: run `make test-all`"
)

UNIT = Scale.power(0)


def graph_of(op, low, high, size):
    """A graph of one op on codes between two bounds."""
    graph = IntegerGraph(["x"], ["op"])
    width = max(1, (high if high >= -low else -low - 1).bit_length() + (low < 0))
    graph.add("codes", QuantizeInput(Word(low, high, UNIT, width, low < 0), (size,)), ["x"], "x")
    graph.add("op", op, ["codes"], "op")
    return graph


def tables_of(width, inputs, results, size, entries=(-8, 8), seed=0):
    """Random tables, of which the first reads one input only."""
    source = torch.Generator().manual_seed(seed)
    reads = [torch.randperm(size, generator=source)[:inputs] for _ in range(results)]
    reads[0] = torch.where(torch.arange(inputs) > 0, -1, reads[0])
    drawn = torch.randint(*entries, (results, 2 ** (width * inputs)), generator=source).int()
    shape = (results,)
    return NeuronTables(torch.stack(reads), torch.arange(results), drawn, width, UNIT, shape)


def test_too_large_tables_are_refused_without_advice_that_does_not_help():
    graph = graph_of(tables_of(4, 4, 8, 8), -8, 7, 8)
    with pytest.raises(ValueError, match="use fewer inputs and narrower formats") as refused:
        unrolled_circuit(graph, max_adders=10)
    assert "streaming" not in str(refused.value)


def mismatches(graph, count=300):
    """How many codes the logic of a graph's only layer gets wrong."""
    node, op = graph.nodes["codes"], graph.nodes["op"]
    source = torch.Generator().manual_seed(0)
    low, high = node.codes.lowest, node.codes.highest
    x = torch.randint(low, high + 1, (count, *node.codes.shape), generator=source)
    expected = op.op.run(x).flatten(1).numpy()
    (layer,) = layers_of(graph)
    logic = layer_logic(graph, layer)
    found = np.empty_like(expected)
    for place, value in logic.constants.items():
        found[:, place] = value
    varying = [i for i in range(expected.shape[1]) if i not in logic.constants]
    if varying:
        found[:, varying] = logic.logic.predict(x.flatten(1).double().numpy())
    return int((found != expected).sum())


@needs_alkaid
@settings(max_examples=20)
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.tuples(st.integers(-4, 3), st.integers(-4, 3)),
    st.sampled_from([(0, 2), (-8, 8), (-(2**26), 2**26)]),
)
def test_the_logic_of_tables_equals_the_op(width, inputs, ends, entries):
    low, high = (max(-(2 ** (width - 1)), min(2 ** (width - 1) - 1, e)) for e in sorted(ends))
    op = tables_of(width, inputs, 5, 6, entries, seed=inputs)
    assert mismatches(graph_of(op, low, high, 6)) == 0


@needs_alkaid
@settings(max_examples=20)
@given(
    st.lists(st.integers(-20, 20), min_size=7, max_size=7),
    st.integers(1, 3),
    st.sampled_from([(-8, 7), (0, 3), (-700, 600), (5, 900)]),
)
def test_the_logic_of_signs_equals_the_op(thresholds, levels, ends):
    op = ResidualSigns(torch.tensor(sorted(thresholds[: 2**levels - 1])))
    assert mismatches(graph_of(op, *ends, 3)) == 0


@needs_alkaid
def test_every_layer_of_tables_is_a_module_with_one_register_stage():
    circuit = unrolled_circuit(jets().to_integers())
    assert circuit.layers == {"_1": "n_1", "_4": "n_4", "_7": "n_7"}
    assert circuit.latency == 3
    assert (circuit.inputs[0].width, circuit.inputs[0].signed) == (3, True)
    assert circuit.digest == unrolled_circuit(jets().to_integers()).digest


def test_a_rounding_after_tables_is_part_of_them():
    graph = jets().to_integers()
    first = layers_of(graph)[0]
    assert [node.op.label for node in first.nodes] == ["Tables 9 bits"]
    assert graph.nodes["_4_in"].op.label == "Requantize even/saturate"


@needs_alkaid
def test_emit_logicnets_writes_the_whole_circuit(tmp_path):
    _, info = emit_logicnets_transform_pass(jets(), project_dir=tmp_path, top_name="net")
    circuit = Circuit.read(tmp_path / "hardware")
    assert sorted(circuit.files) == info["files"]
    assert {"net.sv", "n_1.sv", "n_4.sv", "n_7.sv", "tables.sv"} <= circuit.files.keys()
    assert info["latency_cycles"] == circuit.latency == 3
    assert circuit.backend == "unrolled"


def test_emit_logicnets_refuses_a_graph_without_tables(tmp_path):
    graph = quantised(nn.Sequential(nn.Linear(4, 2)), (4,), {"by": "name"})
    with pytest.raises(TypeError, match="the graph has no LogicNets layer; run quantize with"):
        emit_logicnets_transform_pass(graph, project_dir=tmp_path)
    assert not any(tmp_path.iterdir())


def test_the_estimate_of_tables_is_a_lut_for_each_six_bits_and_a_cycle_for_each_layer():
    op = tables_of(2, 3, 20, 12, entries=(0, 2))
    found = estimate(graph_of(op, -2, 1, 12), fidelity="formula")
    assert found.lut == pytest.approx(19, rel=0.1)  # the first reads one input
    assert found.latency_cycles == 1
    assert estimate(jets().to_integers(), fidelity="formula").latency_cycles == 3


@pytest.mark.rtl
def test_a_circuit_of_logicnets_lints_and_equals_the_integer_graph_on_ten_thousand_vectors(
    tmp_path,
):
    graph = jets().to_integers()
    circuit = unrolled_circuit(graph)
    lint_circuit(circuit, tmp_path)
    x = 2 * torch.randn(10_000, 16, generator=torch.Generator().manual_seed(0))
    check = check_circuit(graph, circuit, [x], folder=tmp_path)
    assert (check.mismatches, check.samples) == (0, 10_000)
    assert check.simulation.latency == circuit.latency


@pytest.mark.rtl
@pytest.mark.parametrize("name", ["lutnet with a norm", "logicnets conv2d"])
def test_circuits_of_tables_equal_the_integer_graph_on_ten_thousand_vectors(name, tmp_path):
    case = cached(BY_NAME[name], "even", "saturate", 10_000)
    circuit = unrolled_circuit(case.integers)
    lint_circuit(circuit, tmp_path)
    check = check_circuit(case.integers, circuit, [case.inputs.float()], folder=tmp_path)
    assert check.mismatches == 0
    assert check.samples > 10_000


@pytest.mark.rtl
@pytest.mark.parametrize("width", [1, 2])
def test_a_table_of_six_bits_and_one_result_bit_is_one_lut(width, tmp_path):
    op = tables_of(width, 6 // width, 20, 12, entries=(0, 2))
    low, high = (0, 1) if width == 1 else (-2, 1)
    synthesis = synthesize_circuit(unrolled_circuit(graph_of(op, low, high, 12)), folder=tmp_path)
    assert synthesis.lut_sizes.get(6) == 19  # the first reads one input
    assert synthesis.luts <= 20
