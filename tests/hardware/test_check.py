"""Circuits of whole networks equal the integer graph on data and boundary vectors."""

import re
from dataclasses import replace

import pytest
import torch

from chop.hardware.emit import EmitOptions, emit_circuit
from chop.hardware.simulation import check_circuit, lint_circuit
from chop.hardware.simulation.check import matching_graph
from chop.integers.digest import graph_digest
from chop.integers.vectors import boundary_inputs, input_words

from .circuits import adder
from .networks import integers_of, jsc, mlp

rtl = pytest.mark.rtl
NARROW = {
    "data_in_width": 6,
    "data_in_frac_width": 3,
    "weight_width": 4,
    "weight_frac_width": 4,
}
NETWORKS = {
    "jsc-tiny": (lambda: jsc("jsc-tiny"), {}),
    "jsc-toy": (lambda: jsc("jsc-toy"), {}),
    "jsc-s": (lambda: jsc("jsc-s"), NARROW),
    "16-64-32-32-5": (lambda: mlp(16, 64, 32, 32, 5), NARROW),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hardware") / "sim"


@pytest.fixture(scope="module")
def small():
    """A network that is built in seconds, and its inputs."""
    torch.manual_seed(1)
    x = torch.randn(2000, 4)
    return integers_of(mlp(4, 3, 5), x), x


@pytest.fixture(scope="module")
def circuit(small):
    return emit_circuit(small[0], EmitOptions())


@rtl
@pytest.mark.parametrize("name", NETWORKS)
def test_ten_thousand_vectors_without_a_mismatch(folder, name):
    make, widths = NETWORKS[name]
    x = torch.randn(10_000, 16)
    graph = integers_of(make(), x, **widths)
    circuit = emit_circuit(graph, EmitOptions())
    check = check_circuit(graph, circuit, [x], folder=folder)
    assert (check.samples, check.mismatches, check.first) == (10_000, 0, None)
    assert check.boundary_vectors > 30
    assert check.simulation.latency == circuit.latency
    assert check.simulation.interval == 1
    assert check.simulation.warnings == ()


@rtl
def test_a_planted_fault_is_found_and_located(folder, small, circuit):
    graph, x = small
    top = re.sub(r"(assign data_out_0 = \{?)", r"\1~", circuit.files["top.sv"], count=1)
    assert top != circuit.files["top.sv"]
    broken = replace(circuit, files={**circuit.files, "top.sv": top})
    check = check_circuit(graph, broken, [x], folder=folder)
    assert check.wrong_samples == check.samples + check.boundary_vectors
    expected = graph.run(x)
    first = check.first
    assert first is not None
    assert (first.sample, first.output) == (0, "data_out_0")
    assert expected[0][first.place] == first.expected != first.got
    assert str(first) == (
        f"sample 0: data_out_0{list(first.place)} is {first.got} instead of {first.expected}"
    )


@rtl
def test_accuracy_is_that_of_the_integer_graph_and_argmax_gives_the_classes(folder, small, circuit):
    graph, x = small
    labels = torch.randint(5, (len(x),))
    classes = graph.with_argmax().run(x)
    accuracy = float((classes == labels).double().mean())
    assert check_circuit(graph, circuit, [x], folder=folder, labels=labels).accuracy == accuracy
    chosen = emit_circuit(graph, EmitOptions(argmax=True))
    check = check_circuit(graph, chosen, [x], folder=folder, labels=labels)
    assert (check.mismatches, check.accuracy) == (0, accuracy)
    assert torch.equal(check.simulation.outputs[0][: len(x)], classes)
    lint_circuit(chosen, folder)


@rtl
def test_a_streaming_circuit_equals_the_network_too(folder, small):
    graph, x = small
    circuit = emit_circuit(graph, EmitOptions(backend="streaming", max_parallelism=3))
    check = check_circuit(graph, circuit, [x], folder=folder)
    assert check.mismatches == 0
    assert check.simulation.interval > 1


def test_a_circuit_of_another_network_is_refused(small):
    with pytest.raises(ValueError, match="emitted from another network; run ch emit again"):
        matching_graph(small[0], adder())


def test_equal_designs_give_equal_bytes_and_the_checksum_of_the_network(small):
    graph, x = small
    torch.manual_seed(1)
    torch.randn(2000, 4)
    again = integers_of(mlp(4, 3, 5), x)
    made = [emit_circuit(each, EmitOptions(backend="streaming")) for each in (graph, again)]
    assert made[0] == made[1]
    assert made[0].network == graph_digest(graph)


def test_the_checksum_of_a_network_sees_one_weight(small):
    graph = small[0]
    other = integers_of(mlp(4, 3, 5), small[1])
    assert graph_digest(graph) == graph_digest(graph)
    assert graph_digest(other) != graph_digest(graph)
    assert graph_digest(graph.with_argmax()) != graph_digest(graph)


def test_boundary_vectors_reach_the_extreme_codes(small):
    (word,) = input_words(small[0]).values()
    (x,) = boundary_inputs([word])
    codes = next(iter(small[0].nodes.values())).op.run(x)
    assert {int(codes.min()), int(codes.max())} == {-128, 127}
    assert (codes == 127).all(1).any()
    assert (codes == -128).all(1).any()


def test_argmax_needs_one_number_per_class(small):
    with pytest.raises(ValueError, match=r"argmax needs one output with a number per class, not"):
        small[0].with_argmax().with_argmax()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"backend": "streaming", "language": "vhdl"}, "use `language='verilog'`"),
        ({"max_parallelism": 4}, "omit `max_parallelism`"),
    ],
)
def test_options_of_the_other_backend_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        EmitOptions(**options)
