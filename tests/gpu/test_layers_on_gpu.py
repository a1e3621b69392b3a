"""Quantized layers on a GPU: parameters at rest are rounded once, others at each forward pass."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.actions.search.space.reconfigure import ReconfigurableGraph
from chop.ir import MaseGraph
from chop.numerics import frozen_weights
from chop.numerics.integer import Integer
from chop.passes import Pipeline
from chop.passes.graph.transforms.quantize.quantized_modules import LinearInteger
from chop.training.evaluate import evaluate
from chop.training.steps import Mixed

pytestmark = pytest.mark.gpu
OPERANDS = ("data_in", "weight", "bias")
FORMAT = Integer(8, 4)


def config(width=8, frac_width=4):
    widths = {"width": width, "frac_width": frac_width}
    return {f"{o}_{key}": value for o in OPERANDS for key, value in widths.items()}


@pytest.fixture
def rounded(monkeypatch):
    """Every tensor that the format is asked to round."""
    seen, original = [], Integer.quantize
    monkeypatch.setattr(Integer, "quantize", lambda f, x: seen.append(x) or original(f, x))
    return seen


@pytest.fixture
def layer():
    return LinearInteger(16, 5, config=config()).cuda().eval()


def expected(layer, x):
    return F.linear(FORMAT(x), FORMAT(layer.weight), FORMAT(layer.bias))


@torch.no_grad()
def test_a_change_through_data_is_noticed(layer):
    x = torch.randn(8, 16, device="cuda")
    layer(x)
    layer.weight.data.mul_(2)
    assert torch.equal(layer(x), expected(layer, x))


@torch.no_grad()
def test_at_rest_parameters_are_rounded_once(layer, rounded):
    x = torch.randn(8, 16, device="cuda")
    with frozen_weights(layer):
        for _ in range(3):
            assert torch.equal(layer(x), layer(x))
    assert len(rounded) == 6 + 2
    assert layer._kept == {}  # the memory is free again
    layer.weight.data.mul_(2)
    assert torch.equal(layer(x), expected(layer, x))


def test_an_evaluation_rounds_parameters_once(layer, rounded):
    x, y = torch.randn(64, 16, device="cuda"), torch.randint(5, (64,), device="cuda")
    batches = list(zip(x.split(8), y.split(8), strict=True))
    mixed = Mixed("32", x.device)
    first = evaluate(layer, batches, mixed=mixed)
    assert len(rounded) == 8 + 2
    layer.weight.data.zero_()
    assert evaluate(layer, batches, mixed=mixed) != first


@torch.no_grad()
def test_a_search_rounds_a_weight_once_for_each_format(rounded):
    x = torch.randn(8, 16, device="cuda")
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": {"input": x}})]
    graph, _ = Pipeline(steps)(MaseGraph(nn.Sequential(nn.Linear(16, 5)).cuda().eval()))
    parent = graph.model[0] if isinstance(graph.model, nn.Sequential) else graph.modules["0"]
    (node,) = [n.name for n in graph.nodes if n.op == "call_module"]
    place = ReconfigurableGraph(graph)
    place.graph.model.eval()
    for width in (8, 6, 8, 6, 8):
        place.apply({node: {"config": {"name": "integer", **config(width)}}})
        fmt = Integer(width, 4)
        now = F.linear(fmt.rounded(x), fmt.rounded(parent.weight), fmt.rounded(parent.bias))
        assert torch.equal(place.graph.model(x), now)
    assert len(rounded) == 5 + 2 * 2
