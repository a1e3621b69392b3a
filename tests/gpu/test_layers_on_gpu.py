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
from chop.passes.graph.transforms.quantize.quantize import quantized_layer
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


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("where", ["before", "after"])
def test_affine_operands_have_the_bits_of_the_cpu(axis, where):
    """Whether the layer is quantised on the CPU and moved, or quantised on the GPU."""
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 32), torch.randn(16, 64)
    options = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.03, "weight_width": 8}
    options |= {"weight_axis": axis, "weight_zero_point": "calibrated", "bias_width": 16}
    on_cpu = quantized_layer(layer, options)
    moved = quantized_layer(nn.Linear(64, 32), options)
    moved.load_state_dict(on_cpu.state_dict())
    if where == "before":
        moved = moved.cuda()
    else:
        plain = nn.Linear(64, 32).cuda()
        plain.load_state_dict(layer.state_dict())
        moved = quantized_layer(plain, options)
    assert torch.equal(moved.weight_scale.cpu(), on_cpu.weight_scale)
    for name in ("weight", "bias"):
        assert torch.equal(moved.q_parameter(name).cpu(), on_cpu.q_parameter(name))
    assert torch.equal(moved.q("data_in", x.cuda()).cpu(), on_cpu.q("data_in", x))
    with torch.no_grad(), frozen_weights(moved.eval()):
        assert torch.allclose(moved(x.cuda()).cpu(), on_cpu(x), atol=1e-4)


def test_affine_scales_are_trained_like_on_the_cpu():
    torch.manual_seed(0)
    options = {"name": "affine", "data_in_width": 4, "data_in_scale": 0.2, "weight_width": 4}
    options |= {"weight_axis": 0, "learn": True}
    layer, x = nn.Linear(16, 8), torch.randn(32, 16)
    grads = []
    for device in ("cpu", "cuda"):
        new = quantized_layer(layer, options)
        new = nn.Sequential(new, quantized_layer(nn.ReLU(), options)).to(device)
        new.zero_grad()
        new(x.to(device)).square().mean().backward()
        grads.append({key: p.grad.cpu().clone() for key, p in new.named_parameters()})
    for key, grad in grads[0].items():
        assert torch.allclose(grad, grads[1][key], rtol=1e-3, atol=1e-5), key
