"""No bias is lost, however small the weights of its channel are."""

import logging

import pytest
import torch
from torch import nn

pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.ir.ops import TransposedLinear
from chop.passes import run_pass
from chop.passes.graph.interface.export_onnx import onnx_model
from chop.passes.graph.transforms.quantize.calibrated import scales_of_values
from chop.passes.graph.transforms.quantize.quantize import quantized_layer

AFFINE = {"name": "affine", "data_in_width": 8, "weight_width": 8}
KNOWN = AFFINE | {"data_in_scale": 0.03}


def with_small_row(layer, size=1e-6, bias=2.0, dim=0):
    """Return a layer whose channel 1 has tiny weights and a large bias."""
    with torch.no_grad():
        row = layer.weight.select(dim, 1)
        row.copy_(size * torch.linspace(-1, 1, row.numel()).view_as(row))
        layer.bias[1] = bias
    return layer.eval()


def calibrated(traced, model, x, config, **options):
    observe = {"input_generator": iter([{"input": x}]), "silent": True, **options}
    formats = {"by": "type", "default": {"config": config}}
    return traced(model, {"input": x[:2]}, ("calibrate", observe), ("quantize", formats))


@pytest.mark.parametrize("method", ["minmax", "mse"])
@pytest.mark.parametrize("axis", [{"weight_axis": 0}, {}])
@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 3), lambda: nn.Conv2d(2, 3, 3)])
def test_onnxruntime_gives_what_the_simulation_gives(make, axis, method, traced, run):
    layer, shape = make(), (4,) if make().weight.ndim == 2 else (2, 5, 5)
    layer = with_small_row(layer)
    if not axis:  # one scale for all: the bias is large for every weight
        layer.weight.data *= 1e-7
    x = torch.randn(200, *shape)
    graph = calibrated(traced, nn.Sequential(layer), x, AFFINE | axis, method=method)
    with torch.no_grad():
        simulated = graph.model(x)
    assert torch.allclose(simulated[:, 1], torch.tensor(2.0), atol=1e-3)
    integers = graph.to_integers()
    assert max(integers.accumulator_widths.values()) <= 32
    assert torch.allclose(integers(x), simulated, atol=1e-6)
    for optimize in (True, False):
        (found,) = run(onnx_model(graph, "qdq"), {"input": x}, optimize=optimize)
        assert torch.allclose(found, simulated, atol=1e-5)


@pytest.mark.parametrize("axis", [{"weight_axis": 0}, {}])
@pytest.mark.parametrize("power_of_two", [True, False])
def test_the_bias_of_a_channel_of_zeros_stays(axis, power_of_two, traced, run):
    layer = with_small_row(nn.Linear(4, 3), size=0.0, bias=1.0)
    if not axis:
        layer.weight.data.zero_()
    x = 600 * torch.randn(200, 4)
    graph = calibrated(
        traced, nn.Sequential(layer), x, AFFINE | axis | {"power_of_two": power_of_two}
    )
    with torch.no_grad():
        simulated = graph.model(x)
    assert torch.allclose(simulated[:, 1], torch.tensor(1.0), atol=1e-5)
    assert torch.allclose(graph.to_integers()(x), simulated, atol=1e-4)
    for optimize in (True, False):
        (found,) = run(onnx_model(graph, "qdq"), {"input": x}, optimize=optimize)
        assert torch.allclose(found, simulated, atol=1e-4)


LAYERS = {
    "linear": (lambda: nn.Linear(4, 4), (4,), 0),
    "transposed linear": (lambda: TransposedLinear(4, 4), (4,), 1),
    "conv1d": (lambda: nn.Conv1d(2, 4, 3), (2, 8), 0),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (4, 6, 6), 0),
    "conv3d": (lambda: nn.Conv3d(1, 4, 2), (1, 3, 3, 3), 0),
    "transposed": (lambda: nn.ConvTranspose2d(4, 4, 2), (4, 3, 3), 1),
    "transposed groups": (lambda: nn.ConvTranspose2d(4, 4, 2, groups=2), (4, 3, 3), 1),
}


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_keeps_the_bias_of_every_channel(name, learn):
    make, shape, axis = LAYERS[name]
    layer = make().eval()
    with torch.no_grad():
        layer.weight *= 1e-9
        layer.bias[:] = torch.tensor([2.0, -1.0, 0.5, 0.0])
    x, bias = torch.randn(3, *shape), layer.bias.detach().view(-1, *[1] * (len(shape) - 1))
    new = quantized_layer(layer, KNOWN | {"weight_axis": axis, "weight_learn": learn})
    for trained in (False, True):
        new.train(trained)
        assert torch.allclose(new(x), bias.expand(new(x).shape[1:]), atol=1e-5)


def test_a_bias_that_grows_later_raises_the_scale_then():
    layer = quantized_layer(nn.Linear(4, 3).eval(), KNOWN | {"weight_axis": 0})
    before = layer.scale_of("weight")[0].clone()
    layer.bias.data[1] = 1e9
    x = torch.randn(5, 4)
    assert torch.allclose(layer(x)[:, 1], torch.tensor(1e9))
    after = layer.scale_of("weight")[0]
    assert after[1] > before[1]
    assert torch.equal(after[[0, 2]], before[[0, 2]])


def test_the_trained_scale_of_other_channels_keeps_its_gradient():
    config = KNOWN | {"weight_axis": 0, "weight_learn": True}
    layer = quantized_layer(with_small_row(nn.Linear(4, 3)), config)
    layer(torch.randn(5, 4)).square().sum().backward()
    assert layer.weight_scale.grad[[0, 2]].abs().min() > 0


@pytest.mark.parametrize("bias", [0.0, 2.0])
def test_weights_below_the_smallest_scale_quantise_and_the_node_is_named(bias, traced, caplog):
    layer = with_small_row(nn.Linear(4, 3), 1e-41, bias)
    x = torch.randn(50, 4)
    with caplog.at_level(logging.WARNING):
        graph = calibrated(traced, nn.Sequential(layer), x, AFFINE | {"weight_axis": 0})
    said = [r.getMessage() for r in caplog.records if "weight scales were raised" in r.getMessage()]
    assert len(said) == 1
    assert "_0 (1)" in said[0]
    _, info = run_pass("verify_integers", graph, {"silent": True})
    assert info["mismatches"] == info["output_mismatches"] == 0


@pytest.mark.parametrize("size", [1e-12, 1e-16, 1e-30])
def test_a_bias_with_steps_of_its_own_keeps_its_value_in_integers(size, traced):
    layer, x = with_small_row(nn.Linear(4, 3), size), torch.randn(50, 4)
    config = AFFINE | {"weight_axis": 0, "bias_width": 16}
    graph = calibrated(traced, nn.Sequential(layer), x, config)
    assert torch.allclose(graph.to_integers()(x), graph.model(x), atol=1e-6)


def test_powers_of_two_that_lie_far_apart_give_the_same_codes(traced, run):
    """Each channel's bias is on its own grid; one for all would need more than 63 bits."""
    layer, x = with_small_row(nn.Linear(4, 3), 1e-25, 1e-12), torch.randn(50, 4)
    config = {"weight_axis": 0, "weight_power_of_two": True, "data_in_power_of_two": True}
    graph = calibrated(traced, nn.Sequential(layer), x, AFFINE | config)
    with torch.no_grad():
        simulated = graph.model(x)
    assert torch.equal(graph.to_integers()(x), simulated)
    for optimize in (True, False):
        (found,) = run(onnx_model(graph, "qdq"), {"input": x}, optimize=optimize)
        assert torch.equal(found, simulated)


def test_scales_that_are_given_stay_unless_a_bias_would_be_clipped():
    scale = [2.0 / (0.03 * 2_147_000_000)] * 3  # as other quantisers leave it: nearly 2^31 codes
    config = KNOWN | {"weight_axis": 0, "weight_scale": scale}
    layer = quantized_layer(with_small_row(nn.Linear(4, 3)), config)
    assert torch.equal(layer.scale_of("weight")[0], torch.tensor(scale))


def test_a_network_without_such_channels_has_the_scales_of_its_weights(traced, caplog):
    model, config = nn.Sequential(nn.Linear(4, 3)), AFFINE | {"weight_axis": 0}
    graph = calibrated(traced, model, torch.randn(50, 4), config, method="minmax")
    layer = graph.model.get_submodule("0")
    made = scales_of_values("weight", layer.weight, layer.formats["weight"])[0]
    assert torch.equal(layer.scale_of("weight")[0], made)
    assert "raised" not in caplog.text
