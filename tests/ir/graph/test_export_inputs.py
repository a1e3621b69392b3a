"""Inputs and results of models that torch.export captures."""

import inspect
from collections import UserDict

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.ir.graph.trace_errors import TraceError

from .export_models import Both, Options, Shared, X, assert_equal


@pytest.mark.slow
class TestInputs:
    def test_one_tensor_given_twice_is_two_inputs(self):
        model, x = Options(), X["x"]
        inputs = {"x": x, "mask": x, "scale": x, "switch": True}
        graph = MaseGraph(model, front_end="export", dummy_in=inputs)
        given = [torch.randn(5, 4) for _ in range(3)]
        expected = model(given[0], given[1], scale=given[2])
        assert_equal(graph.model(given[0], given[1], scale=given[2]), expected)
        assert_equal(graph.model(*given), expected)

    def test_a_switch_is_part_of_the_graph_which_refuses_another_value(self, tmp_path):
        inputs = {"x": X["x"], "scale": torch.ones(4), "switch": True}
        graph = MaseGraph(Options(), front_end="export", dummy_in=inputs)
        graph.export(tmp_path / "graph")
        for each in (graph, MaseGraph.from_checkpoint(tmp_path / "graph")):
            assert [str(node.target) for node in each.inputs] == ["x", "scale", "switch"]
            with pytest.raises(AssertionError, match="this graph is of switch = True"):
                each.model(**inputs | {"switch": False})

    def test_frozen_arguments_disappear(self):
        inputs = {"x": X["x"], "scale": torch.ones(4), "mask": None}
        graph = MaseGraph(
            Options(), {"switch": False, "mask": None}, front_end="export", dummy_in=inputs
        )
        assert [str(node.target) for node in graph.inputs] == ["x", "scale"]

    @pytest.mark.parametrize(
        "given", [UserDict(X), (X["x"],), [X["x"]], X["x"]], ids=lambda given: type(given).__name__
    )
    def test_mappings_and_tuples(self, given):
        graph = MaseGraph(Shared(), front_end="export", dummy_in=given)
        assert [node.name for node in graph.inputs] == ["x"]


class Cache:
    """Not a value of a graph."""


class Caches(nn.Module):
    def forward(self, x, cache=None):
        return {"y": x + 1 if x.shape[0] else x, "cache": Cache()}


class Returns(nn.Module):
    def forward(self, x):
        return Cache()


@pytest.mark.slow
class TestResults:
    def test_what_is_not_a_value_is_left_out_with_a_warning(self, caplog):
        graph = MaseGraph(Caches(), dummy_in=X)
        assert "the graph leaves out the result 'cache', which is a Cache" in caplog.text
        assert_equal(graph.model(X["x"]), {"y": X["x"] + 1, "cache": None})

    def test_a_result_that_is_not_a_value_is_refused(self):
        with pytest.raises(TraceError, match=r"forward\(\) returns a Cache; return tensors"):
            MaseGraph(Returns(), front_end="export", dummy_in=X)

    @pytest.mark.parametrize(
        ("cache", "words"),
        [(Cache(), "'cache' holds a Cache; give tensors"), (X["x"].numpy(), "torch.from_numpy")],
    )
    def test_inputs_are_tensors_and_plain_values(self, cache, words):
        with pytest.raises(TypeError, match=words):
            MaseGraph(Caches(), front_end="export", dummy_in={**X, "cache": [cache]})


def test_keyword_only_arguments_after_defaults_are_traced_by_fx():
    graph = MaseGraph(Options(), {"switch": True, "mask": None})
    assert [str(node.target) for node in graph.inputs] == ["x", "scale"]
    graph = MaseGraph(Keyword())
    x, shift = torch.randn(2, 4), torch.randn(4)
    assert torch.equal(graph.model(x, 2.0, shift=shift), x * 2.0 + shift)


class Keyword(nn.Module):
    def forward(self, x, scale=1.0, *, shift):
        return x * scale + shift


class Traceable(nn.Module):
    """What torch.fx traces as well: nested inputs, and results in a dataclass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch, *, shift=None):
        y = self.layer(batch["x"]) + batch["more"][0]
        return Both(y, [y.sum(), None])


def test_fx_has_nested_inputs_and_dataclasses_too(tmp_path):
    model = Traceable()
    graph = MaseGraph(model)
    assert graph.front_end == "fx"
    given = {"x": torch.randn(2, 4), "more": (torch.randn(2, 4),)}
    graph.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    expected = model(given)
    for results in (graph.model(given), again.model(given)):
        assert torch.equal(results.features, expected.features)
        assert torch.equal(results.classes[0], expected.classes[0])
        assert results.cache is None


class Masked(nn.Module):
    def forward(self, batch):
        mask = batch.get("mask")
        return batch["x"] if mask is None else batch["x"] * 2


class State(nn.Module):
    def forward(self, state):
        hidden, cell = state
        return hidden if cell is None else hidden * 2


class OneOrMany(nn.Module):
    def forward(self, inputs):
        return (inputs["x"] if isinstance(inputs, dict) else inputs).sum(1)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2).eval()

    def forward(self, x):
        y, weights = self.attention(x, x, x, need_weights=False)
        return y if weights is None else y * 2


class FirstResult(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(4, 4).eval()

    def forward(self, x):
        y = self.layer(x)
        return y[0] if isinstance(y, tuple) else y


def test_a_result_of_a_layer_whose_class_is_tested_is_a_tuple():
    model = FirstResult()
    graph = MaseGraph(model, dummy_in={"x": X["x"]})
    assert torch.allclose(graph.model(X["x"]), model(X["x"]))


@pytest.mark.slow
def test_weights_of_attention_that_are_not_computed_are_none():
    model = Weighted()
    graph = MaseGraph(model, dummy_in={"x": X["x"]})
    assert torch.allclose(graph.model(X["x"]), model(X["x"]))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [(Masked(), {"x": X["x"]}), (State(), (X["x"], None)), (OneOrMany(), {"x": X["x"]})],
    ids=lambda value: type(value).__name__,
)
def test_parts_of_nested_inputs_that_fx_misreads_are_left_to_export(model, inputs):
    (name,) = inspect.signature(model.forward).parameters
    graph = MaseGraph(model, dummy_in={name: inputs})
    assert graph.front_end == "export"
    assert torch.equal(graph.model(inputs), model(inputs))
    with pytest.raises(TraceError, match="gives other results for dummy_in than the model; use"):
        MaseGraph(model, front_end="fx", dummy_in={name: inputs})
