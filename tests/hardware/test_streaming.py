"""Streaming circuits compute what the integer graph does, at any pace of their surroundings."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from chop.hardware.simulation import Stalls
from chop.hardware.streaming import streaming_circuit

from .streams import (
    LeNet,
    Residual,
    Windows,
    check,
    far_bounds,
    of_model,
    pointwise,
    requantised,
    separable,
    zero_pointed,
)

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
def test_bounds_beyond_the_bits_of_a_code_are_exact(folder):
    check(far_bounds(), folder, samples=300)


@rtl
@pytest.mark.slow
def test_every_component_takes_codes_with_a_zero_point(folder):
    check(zero_pointed(), folder, samples=400, max_parallelism=4)


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


# a pixel that is skipped to, windows of padding at all sides, and a pad of its own
PADDED = [
    nn.Conv2d(2, 1, 1, stride=2, padding=1),
    nn.Conv2d(2, 3, 2, padding=2),
    nn.Conv2d(2, 2, (1, 2), padding=(2, 3), dilation=(1, 3), groups=2),
    nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
    nn.ZeroPad2d((1, 2, 3, 0)),
    nn.Sequential(nn.ZeroPad2d(2), nn.Conv2d(2, 2, 2)),
]


@rtl
@pytest.mark.parametrize("max_parallelism", [1, 8])
def test_windows_of_padding_alone_wait_for_their_image(folder, max_parallelism):
    graph = of_model(Windows(PADDED, 2).eval(), (2, 3, 4))
    check(graph, folder, samples=20, max_parallelism=max_parallelism)
    check(graph, folder, samples=9, max_parallelism=max_parallelism, stalls=Stalls(0.5, 0.5))


@rtl
def test_padding_of_a_line_beyond_the_kernel_is_exact_and_as_quick_as_announced(folder):
    graph = of_model(nn.Sequential(nn.Conv1d(2, 3, 2, padding=2)).eval(), (2, 5))
    circuit = streaming_circuit(graph, max_parallelism=4)
    assert check(graph, folder, samples=20, circuit=circuit).interval == circuit.interval


@rtl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "rank", "size", "max_parallelism"),
    [(0, 1, (3,), 1), (1, 1, (6,), 16), (2, 2, (1, 3), 4), (3, 2, (5, 4), 3), (4, 2, (6, 6), 16)],
)
def test_random_windows_are_exact(folder, seed, rank, size, max_parallelism):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Windows.drawn(seed, rank, 4, size)
    graph = of_model(model.eval(), (4, *size))
    check(graph, folder, samples=20, max_parallelism=max_parallelism)
    check(graph, folder, samples=9, max_parallelism=max_parallelism, stalls=Stalls(0.5, 0.5, seed))


@rtl
@pytest.mark.parametrize("max_parallelism", [5, 23])
def test_depthwise_convolutions_after_lanes_that_do_not_fit_are_exact(folder, max_parallelism):
    graph = separable(16)
    check(graph, folder, samples=10, max_parallelism=max_parallelism)


@rtl
@pytest.mark.parametrize(("max_parallelism", "samples"), [(1, 3), (100, 100)])
def test_a_network_for_images_is_exact_and_as_quick_as_announced(folder, max_parallelism, samples):
    graph = of_model(LeNet(), (1, 28, 28))
    circuit = streaming_circuit(graph, max_parallelism=max_parallelism)
    free = check(graph, folder, samples=samples, circuit=circuit)
    assert free.interval == pytest.approx(circuit.interval, rel=0.02)
    assert free.latency == pytest.approx(circuit.latency, rel=0.02)
    check(graph, folder, samples=3, circuit=circuit, stalls=Stalls(0.6, 0.6))
