"""Layers with weights, with op and shape, in the formats of a design."""

import pytest
import torch
from torch import nn

from chop.actions.search.results.layers import (
    formatted,
    layers_of,
    op_and_shape,
    weighted_layers,
)
from chop.actions.search.space.operands import rounded_operands
from chop.actions.search.space.untraced import UntracedModel
from chop.ir import MaseGraph
from chop.passes import run_pass


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (nn.Linear(16, 64), "Linear 16→64"),
        (nn.Conv2d(3, 64, 3), "Conv2d 3→64, 3×3"),
        (nn.Conv1d(4, 8, 5), "Conv1d 4→8, 5"),
        (nn.ConvTranspose2d(8, 4, (3, 5)), "ConvTranspose2d 8→4, 3×5"),
        (nn.Bilinear(2, 3, 4), "Bilinear 2, 3→4"),
        (nn.LSTM(8, 16), "LSTM 8→16"),
        (nn.GRU(8, 16, num_layers=2, bidirectional=True), "GRU 8→16, 2 layers, bidirectional"),
        (nn.LSTMCell(8, 16), "LSTMCell 8→16"),
        (nn.MultiheadAttention(64, 4), "MultiheadAttention 64, 4 heads"),
        (
            nn.TransformerEncoderLayer(16, 2, 32),
            "TransformerEncoderLayer 16, 2 heads, 32 hidden",
        ),
        (nn.Embedding(1000, 32), "Embedding 1000→32"),
        (nn.BatchNorm1d(16), "BatchNorm1d 16"),
        (nn.GroupNorm(2, 8), "GroupNorm 8, 2 groups"),
        (nn.LayerNorm([4, 8]), "LayerNorm 4×8"),
        (nn.PReLU(3), "PReLU 3"),
        (nn.ReLU(), "ReLU"),
    ],
)
def test_a_layer_is_called_by_its_class_and_its_shape(layer, text):
    assert op_and_shape(layer) == text


class Wide(nn.Linear):
    """A user's own layer."""


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(4, 6))

    def forward(self, x):
        return x * self.factor


def test_own_layers_have_the_class_they_are_of_or_their_own():
    assert op_and_shape(Wide(2, 3)) == "Linear 2→3"
    assert op_and_shape(Scale()) == "Scale 4×6"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.norm = nn.Linear(8, 6), nn.ReLU(), nn.BatchNorm1d(6)
        self.shared = nn.Linear(6, 6)
        self.weight = nn.Parameter(torch.randn(5, 6))

    def forward(self, x):
        x = self.shared(self.act(self.norm(self.act(self.first(x)))))
        return nn.functional.linear(self.shared(x), self.weight)


def graph_of(model, **inputs):
    graph = MaseGraph(model)
    for name in ("init_metadata", "add_common_metadata"):
        options = {"dummy_in": inputs} if name == "add_common_metadata" else {}
        graph, _ = run_pass(name, graph, options)
    return graph


@pytest.fixture(scope="module")
def graph():
    return graph_of(Net(), x=torch.randn(4, 8))


def test_only_layers_with_weights_are_listed_and_shared_ones_once(graph):
    layers = weighted_layers(graph)
    assert {name: facts["op"] for name, facts in layers.items()} == {
        "first": "Linear 8→6",
        "norm": "BatchNorm1d 6",
        "shared": "Linear 6→6",
        "linear": "linear 5×6",
    }
    for facts in layers.values():
        assert (facts["format"], facts["data_in_bits"], facts["weight_bits"]) == ("float", 32, 32)


def integer(width):
    return {"name": "integer", "weight_width": width, "weight_frac_width": 2} | {
        "data_in_width": 8, "data_in_frac_width": 4, "bias_width": 8, "bias_frac_width": 4
    }  # fmt: skip


def test_a_design_says_which_formats_they_have_and_the_rest_stays(graph):
    config = {
        "first": {"config": integer(3)},
        "act": {"config": integer(4)},
        "norm": {"config": {"name": None}},
    }
    layers = formatted(weighted_layers(graph), config)
    assert layers.keys() == {"first", "norm", "shared", "linear"}
    assert layers["first"] == {
        "op": "Linear 8→6", "format": "integer", "data_in_bits": 8, "weight_bits": 3
    }  # fmt: skip
    assert layers["norm"]["weight_bits"] == layers["shared"]["weight_bits"] == 32


def test_a_design_of_several_passes_has_the_formats_of_the_one_that_quantises(graph):
    quantize, redefine = {"first": {"config": integer(3)}}, {"first": {"config": {"name": "both"}}}
    for config in ({"q": quantize, "r": redefine}, {"r": redefine, "q": quantize}):
        assert formatted(weighted_layers(graph), config)["first"]["weight_bits"] == 3
    assert (
        layers_of({"first": {"config": {**integer(3), "bypass": True}}})["first"]["weight_bits"]
        == 32
    )


def test_a_parent_that_is_quantised_already_shows_its_own_bits(graph):
    options = {"by": "name", "default": {"config": {"name": None}}, "first": {"config": integer(5)}}
    quantised, _ = run_pass("quantize", graph.clone(), options)
    facts = weighted_layers(quantised)["first"]
    assert facts == {"op": "Linear 8→6", "format": "integer", "data_in_bits": 8, "weight_bits": 5}


def test_recurrent_layers_and_attention_are_listed():
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.attend = nn.LSTM(4, 8, batch_first=True), nn.MultiheadAttention(8, 2)

        def forward(self, x):
            x, _ = self.lstm(x)
            return self.attend(x, x, x)[0]

    layers = weighted_layers(graph_of(Sequence(), x=torch.randn(2, 3, 4)))
    assert [facts["op"] for facts in layers.values()] == [
        "LSTM 4→8",
        "MultiheadAttention 8, 2 heads",
    ]
    assert {facts["weight_bits"] for facts in layers.values()} == {32}


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act, self.flat = nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Flatten()

    def forward(self, x):
        return self.act(self.fc(self.flat(x))) + x @ x.T


def test_layers_and_functions_have_the_operands_that_a_format_rounds():
    graph = MaseGraph(Mixed())
    run_pass("init_metadata", graph)
    run_pass("add_common_metadata", graph, {"dummy_in": {"x": torch.randn(4, 4)}})
    found = rounded_operands(graph)
    assert found["fc"] == ("data_in", "weight", "data_out")
    assert found["act"] == ("data_in", "data_out")
    assert found["matmul"] == ("data_in", "weight", "data_out")
    assert found["add"] == ("data_in", "data_out")
    assert "flat" not in found
    assert rounded_operands(UntracedModel(Mixed())) == {k: found[k] for k in ("fc", "act")}
