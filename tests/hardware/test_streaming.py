"""Streaming circuits compute what the integer graph does, at any pace of their surroundings."""

import re
from dataclasses import replace

import pytest
from torch import nn

from chop.hardware.simulation import Stalls
from chop.hardware.streaming import streaming_circuit

from .streams import LeNet, Residual, check, of_model, pointwise, requantised

rtl = pytest.mark.rtl


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory for builds, which share the compiled library of Verilator."""
    return tmp_path_factory.mktemp("streaming")


@rtl
@pytest.mark.parametrize("max_parallelism", [1, 4])
def test_every_rounding_and_overflow_is_exact(folder, max_parallelism):
    graph = requantised()
    circuit = streaming_circuit(graph, max_parallelism=max_parallelism)
    free = check(graph, folder, samples=10_000, circuit=circuit)
    assert free.interval == circuit.interval
    assert free.latency == circuit.latency
    check(graph, folder, samples=1_000, circuit=circuit, stalls=Stalls())


@rtl
@pytest.mark.parametrize(("other_orders", "lanes"), [(True, 1), (False, 4)])
def test_pointwise_ops_and_pairs_of_streams_are_exact(folder, other_orders, lanes):
    graph = pointwise(other_orders)
    circuit = streaming_circuit(graph, max_parallelism=lanes)
    assert circuit.inputs[0].lanes == lanes
    check(graph, folder, samples=10_000, circuit=circuit)
    check(graph, folder, samples=1_000, circuit=circuit, stalls=Stalls())


@rtl
def test_a_wrong_weight_does_not_go_unnoticed(folder):
    graph = of_model(nn.Sequential(nn.Linear(3, 2)), (3,))
    circuit = streaming_circuit(graph, max_parallelism=1)
    name = "n_0_weight_source.sv"
    number, word = re.search(r"rom\[(3)\] = (\d+'h\w+)", circuit.files[name]).groups()
    broken = circuit.files[name].replace(f"rom[{number}] = {word}", f"rom[{number}] = ~{word}")
    with pytest.raises(AssertionError, match=r"_0: .* codes"):
        check(
            graph,
            folder,
            samples=9,
            circuit=replace(circuit, files={**circuit.files, name: broken}),
        )


@rtl
@pytest.mark.parametrize("max_parallelism", [4, 64])
def test_skips_groups_strides_and_dilations_are_exact(folder, max_parallelism):
    graph = of_model(Residual().eval(), (2, 8, 10))
    check(graph, folder, samples=200, max_parallelism=max_parallelism)
    check(graph, folder, samples=50, max_parallelism=max_parallelism, stalls=Stalls(0.5, 0.5))


@rtl
@pytest.mark.parametrize(("max_parallelism", "samples"), [(1, 3), (100, 100)])
def test_a_network_for_images_is_exact_and_as_quick_as_announced(folder, max_parallelism, samples):
    graph = of_model(LeNet(), (1, 28, 28))
    circuit = streaming_circuit(graph, max_parallelism=max_parallelism)
    free = check(graph, folder, samples=samples, circuit=circuit)
    assert free.interval == pytest.approx(circuit.interval, rel=0.02)
    assert free.latency == pytest.approx(circuit.latency, rel=0.02)
    check(graph, folder, samples=3, circuit=circuit, stalls=Stalls(0.6, 0.6))
