"""Binary layers with trained scales."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.nn.quantized.modules.conv2d import Conv2dBinaryScaling
from chop.nn.quantized.modules.linear import LinearBinaryScaling
from chop.passes import run_pass, verify_metadata_analysis_pass
from chop.passes.graph.transforms.pruning.masks import attach_mask

BITS = {"width": 1, "stochastic": False, "bipolar": True}
CONFIG = {f"{o}_{key}": value for o in ("data_in", "weight", "bias") for key, value in BITS.items()}


def signs(x):
    return torch.where(x >= 0, 1.0, -1.0)


def scaled_signs(weight):
    means = weight.flatten(1).abs().mean(1)
    return signs(weight) * means.view(-1, *[1] * (weight.dim() - 1))


def test_a_linear_layer_multiplies_signs_by_the_means_of_its_rows():
    layer = LinearBinaryScaling(6, 4, config={**CONFIG, "binary_training": True})
    x = torch.randn(5, 6)
    with torch.no_grad():
        layer.gamma.fill_(-0.5)
    expected = 0.5 * F.linear(signs(x), scaled_signs(layer.weight)) + layer.bias
    assert torch.allclose(layer(x), expected, atol=1e-6)
    assert torch.allclose(layer.get_quantized_weight(), 0.5 * scaled_signs(layer.weight))


def test_a_convolution_multiplies_signs_by_the_means_of_its_filters():
    layer = Conv2dBinaryScaling(3, 4, 3, padding=1, config=CONFIG)
    x = torch.randn(2, 3, 5, 5)
    expected = F.conv2d(signs(x), scaled_signs(layer.weight), layer.bias, padding=1)
    assert torch.allclose(layer(x), expected, atol=1e-5)


def test_without_binary_training_only_the_scale_is_applied():
    layer = LinearBinaryScaling(6, 4, bias=False, config={**CONFIG, "binary_training": False})
    with torch.no_grad():
        layer.gamma.fill_(3.0)
    x = torch.randn(5, 6)
    assert torch.allclose(layer(x), 3 * F.linear(x, layer.weight), atol=1e-6)
    assert layer.formats == {}


def test_scale_weight_and_input_have_gradients():
    layer = LinearBinaryScaling(6, 4, config=CONFIG)
    x = torch.randn(5, 6, requires_grad=True)
    layer(x).square().sum().backward()
    for tensor in (x, layer.weight, layer.bias, layer.gamma):
        assert tensor.grad.abs().sum() > 0


def test_pruned_weights_stay_zero():
    linear = nn.Linear(6, 4)
    mask = torch.rand(4, 6) > 0.5
    attach_mask(linear, "weight", mask)
    layer = LinearBinaryScaling.from_float(linear, CONFIG)
    assert torch.equal(layer.get_quantized_weight() != 0, mask)
    x = torch.randn(5, 6)
    kept = scaled_signs(layer.weight) * mask
    assert torch.allclose(layer(x), F.linear(signs(x), kept, layer.bias), atol=1e-6)


def test_the_pass_makes_them_and_metadata_follow():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2))
    graph = MaseGraph(model)
    x = torch.randn(2, 3, 5, 5)
    run_pass("init_metadata", graph)
    run_pass("add_common_metadata", graph, {"dummy_in": {"input": x}})
    table = {"config": {"name": "binary_scaling", **CONFIG}}
    run_pass("quantize", graph, {"by": "type", "linear": table, "conv2d": table})
    kinds = [type(layer).__name__ for layer in graph.model.children()]
    assert kinds == ["Conv2dBinaryScaling", "Flatten", "LinearBinaryScaling"]
    assert verify_metadata_analysis_pass(graph)[1] == {}
    assert graph.modules["2"].bias is model[2].bias
    assert graph.model(x).isfinite().all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weight_bipolr": 1}, "unknown key of binary_scaling 'weight_bipolr'; did you mean"),
        ({"binary_training": "yes"}, "binary_training is 'yes'; use true or false"),
        ({"data_in_width": None}, "width must be an integer"),
    ],
)
def test_wrong_configs_are_refused_in_one_sentence(change, sentence):
    with pytest.raises((ValueError, KeyError), match=sentence):
        LinearBinaryScaling(6, 4, config={**CONFIG, **change})
