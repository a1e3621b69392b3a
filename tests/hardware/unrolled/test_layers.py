"""Nodes of an integer graph form the layers that become modules."""

import importlib.util

import pytest
import torch
from torch import nn

from chop.hardware.estimate import estimate
from chop.hardware.unrolled import layers_of, unrolled_circuit
from chop.hardware.unrolled.limits import adder_estimate
from chop.hardware.unrolled.ops.windows import OUTSIDE, windows
from chop.integers import (
    ConvCodes,
    IntegerOp,
    LinearCodes,
    ReluCodes,
    Scale,
    TooWide,
)

from .graphs import Residual, of_input, perceptron, quantised

needs_alkaid = pytest.mark.skipif(
    importlib.util.find_spec("alkaid") is None, reason="needs alkaid: run `make test-all`"
)


def members(graph):
    return {layer.name: [node.name for node in layer.nodes] for layer in layers_of(graph)}


def test_a_layer_ends_where_its_rounded_codes_are_known():
    assert members(perceptron([3, 4, 2])) == {
        "fc1": ["fc1", "fc1_relu", "fc1_rounded"],
        "fc2": ["fc2"],
    }


def test_values_of_several_layers_meet_in_a_layer_of_their_own():
    layers = {layer.name: layer for layer in layers_of(quantised(Residual(), (6,)))}
    assert list(layers) == ["one", "two", "three", "add"]
    assert layers["add"].inputs == (layers["one"].outputs[0], "add_in")
    assert layers["three"].outputs == ("three", "add_in")


def test_what_is_done_to_an_input_joins_the_layer_that_takes_it():
    model = nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(6, 2))
    layers = layers_of(quantised(model, (2, 3)))
    assert [layer.name for layer in layers] == ["_2"]


def test_a_batch_norm_is_rounded_in_one_step():
    graph = quantised(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), (4,))
    assert "_1" in graph.nodes
    assert all("_1" not in names for names in members(graph).values())


def test_the_estimate_counts_the_powers_of_two_of_all_weights():
    weight = torch.tensor([[1, 2, 0], [3, 7, -11]])
    graph = of_input(4, (3,))
    op = LinearCodes(weight, None, Scale.power(0), 5)
    graph.outputs.append(graph.add("fc", op, ["x_codes"], "fc"))
    (layer,) = layers_of(graph)
    assert adder_estimate(graph, layer) == 1 + 1 + 2 + 2 + 3


def test_a_network_of_too_many_adders_is_refused_with_the_estimate():
    with pytest.raises(ValueError, match=r"about 2\d\d adders, .* in fc1; at most 100 .*streaming"):
        unrolled_circuit(perceptron([8, 8, 8]), max_adders=100)


def test_streaming_is_offered_where_it_can_build_the_network_and_only_there():
    layers = [nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 8)]
    normed = quantised(nn.Sequential(*layers), (8,))
    with pytest.raises(ValueError, match=r"at most 10 are allowed; use `backend='streaming'`, or"):
        unrolled_circuit(normed, max_adders=10)
    solid = quantised(nn.Sequential(nn.Conv3d(1, 2, 2)), (1, 3, 3, 3))
    with pytest.raises(ValueError, match=r"allowed; use fewer inputs and narrower formats, or"):
        unrolled_circuit(solid, max_adders=10)


@needs_alkaid
def test_the_estimate_from_adders_has_the_same_limit():
    with pytest.raises(ValueError, match=r"about 2\d\d adders, .* in fc1; at most 100 .*streaming"):
        estimate(perceptron([8, 8, 8]), max_adders=100)


def test_the_estimate_by_formula_has_no_limit():
    graph = perceptron([8, 8, 8])
    assert estimate(graph, fidelity="formula", max_adders=100).lut > 0


class Cube(IntegerOp):
    def run(self, *inputs):
        return inputs[0] ** 3

    def result(self, *codes):
        return codes[0]


class Square(Cube):
    pass


@needs_alkaid
def test_all_ops_without_a_function_are_named_with_the_fix():
    graph = of_input(4, (3,))
    graph.add("cube", Cube(), ["x_codes"], "cube")
    graph.outputs.append(graph.add("square", Square(), ["cube"], "square"))
    message = r"no function for cube \(Cube\), square \(Square\); register one as"
    for made_by in (unrolled_circuit, estimate):
        with pytest.raises(NotImplementedError, match=message):
            made_by(graph)


def test_values_that_alkaid_cannot_hold_are_refused():
    graph = of_input(48, (3,))
    op = LinearCodes(torch.full((1, 3), 100), None, Scale.power(0), 8)
    graph.outputs.append(graph.add("fc", op, ["x_codes"], "fc"))
    with pytest.raises(
        TooWide, match="fc has 57 bits; values of unrolled circuits have at most 52"
    ):
        unrolled_circuit(graph)


@needs_alkaid
def test_a_clock_period_shorter_than_an_adder_is_noted():
    graph = perceptron([4, 3])
    (note,) = unrolled_circuit(graph, clock_period=0.1).notes
    assert "does not fit into a clock period of 0.1 ns; use a longer period" in note
    assert unrolled_circuit(graph, clock_period=3.0).notes == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clock_period": 0.0}, "clock_period is a time in ns above 0, not 0"),
        ({"language": "chisel"}, "language of a circuit is verilog or vhdl, not 'chisel'"),
        ({"top": "module"}, "not 'module'; use 'module_n'"),
        ({"top": "mux"}, "not 'mux'; use 'mux_1'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        unrolled_circuit(perceptron([2, 2]), **options)


def test_a_circuit_without_alkaid_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        OSError, match=r'needs alkaid; install it with: .*pip install .*\[hardware\]"'
    ):
        unrolled_circuit(perceptron([2, 2]))


def test_windows_hold_the_places_that_a_convolution_takes():
    x = torch.arange(1, 31).view(1, 1, 5, 6)
    settings = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
    op = ConvCodes(
        torch.ones(1, 1, 3, 2, dtype=torch.int64), None, Scale.power(0), 2, **settings, reach=999
    )
    places = windows((5, 6), (3, 2), (2, 1), (1, 0), (1, 2), (3, 4))
    flat = torch.cat([x.flatten(), torch.zeros(1, dtype=torch.int64)])
    assert OUTSIDE == -1
    assert torch.equal(flat[torch.from_numpy(places)].sum(1), op.run(x).flatten())


def test_relu_alone_is_a_layer():
    graph = of_input(4, (3,))
    graph.outputs.append(graph.add("relu", ReluCodes(), ["x_codes"], "relu"))
    assert members(graph) == {"relu": ["relu"]}
