"""Convolutions of truth tables give what arithmetic gives, bit for bit."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chop.nn.quantized.modules.conv2d import Conv2DLogicNets
from chop.nn.quantized.modules.linear import LinearLogicNets
from chop.numerics.integer import Integer
from chop.passes import (
    calculate_avg_bits_mg_analysis_pass,
    logicnets_fusion_transform_pass,
    quantize_transform_pass,
    verify_metadata_analysis_pass,
)


def config(width=2, frac=1, out=4, out_frac=2, **others):
    numbers = {"data_in_width": width, "data_in_frac_width": frac}
    numbers |= {"data_out_width": out, "data_out_frac_width": out_frac}
    return {"name": "logicnets", **numbers, **others}


def lived_in_norm(channels):
    norm = nn.BatchNorm2d(channels)
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    nn.init.uniform_(norm.weight, -2, 2)
    nn.init.normal_(norm.bias)
    return norm


GEOMETRIES = [
    {},
    {"padding": 1},
    {"padding": (0, 2), "stride": (2, 1)},
    {"padding": 2, "dilation": (2, 1), "bias": False},
    {"padding": "same", "dilation": (1, 2)},
    {"padding": 1, "groups": 2},
    {"padding": 1, "padding_mode": "reflect"},
    {"kernel_size": (1, 3), "stride": 2, "groups": 4},
]


def convolution(kernel_size=(3, 2), **geometry):
    return nn.Conv2d(4, 8, kernel_size, **geometry)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_looking_up_gives_what_arithmetic_and_a_convolution_give(geometry):
    conv = convolution(**geometry)
    layer = Conv2DLogicNets.from_float(conv, config(2, 1, 24, 16, fan_in=3)).eval()
    x = torch.randn(2, 4, 7, 6)
    looked_up = layer(x)
    assert torch.equal(looked_up, layer.math_forward(x))
    assert torch.equal(layer(x[0]), looked_up[0])  # without a batch
    seen = torch.zeros_like(conv.weight).flatten(1).scatter_(1, layer.indices, 1.0)
    conv.weight.data *= seen.view_as(conv.weight)
    # sums of a few products in another order, and two more roundings to 2^-16
    torch.testing.assert_close(looked_up, conv(Integer(2, 1)(x)), rtol=0, atol=2**-15)


@pytest.mark.parametrize("after", ["nothing", "relu", "norm tanh"])
@pytest.mark.parametrize("formats", [(1, 0, 2, 0), (2, 1, 3, 2), (2, 0, 8, 6)])
def test_all_inputs_that_there_are_give_the_same_bits(formats, after):
    layer = Conv2DLogicNets.from_float(nn.Conv2d(1, 3, 2, padding=1), config(*formats)).eval()
    kinds = {"nothing": [], "relu": [nn.ReLU()], "norm tanh": [lived_in_norm(3), nn.Tanh()]}
    layer.merge([], kinds[after])
    layer.eval()
    values = Integer(*layer.input_format.precision).values().float().tolist()
    x = torch.tensor(list(itertools.product(values, repeat=4))).view(-1, 1, 2, 2)
    looked_up = layer(x)
    assert looked_up.shape == (len(x), 3, 3, 3)
    layer.is_lut_inference = False
    assert torch.equal(looked_up, layer(x))
    assert torch.equal(looked_up, layer.output_format(looked_up))


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 2), st.integers(1, 3), st.randoms())
def test_any_small_convolution_is_its_tables(width, fan_in, padding, stride, random):
    torch.manual_seed(random.randrange(2**31))
    conv = nn.Conv2d(2, 3, 3, stride, padding)
    layer = Conv2DLogicNets.from_float(conv, config(width, fan_in=fan_in)).eval()
    x = torch.randn(2, 2, 5, 4) * 2
    assert torch.equal(layer.lut_forward(x), layer.math_forward(x))


def test_it_is_the_linear_layer_on_patches():
    conv = nn.Conv2d(3, 5, 2)
    layer = Conv2DLogicNets.from_float(conv, config(fan_in=4)).eval()
    linear = nn.Linear(12, 5)
    linear.weight.data, linear.bias.data = conv.weight.data.flatten(1), conv.bias.data
    rows = LinearLogicNets.from_float(linear, config(fan_in=4)).eval()
    x = torch.randn(2, 3, 4, 4)
    patches = nn.functional.unfold(x, 2).transpose(1, 2)
    assert torch.equal(layer(x), rows(patches).transpose(1, 2).reshape(2, 5, 3, 3))
    assert torch.equal(layer.tables, rows.tables)


def test_padding_has_the_code_of_zero_even_behind_merged_layers():
    conv = nn.Conv2d(1, 1, 1, padding=1, bias=False)
    layer = Conv2DLogicNets.from_float(conv, config(3, 1, 8, 4)).eval()
    layer.weight.data.fill_(1.0)
    layer.merge([lived_in_norm(1)], [])
    layer.eval().input_layers[0].bias.data.fill_(1.5)
    result = layer(torch.zeros(1, 1, 1, 1))
    assert result[0, 0, 0].tolist() == [0.0, 0.0, 0.0]
    assert result[0, 0, 1, 1] != 0


def test_tables_of_groups_name_the_inputs_of_their_group():
    layer = Conv2DLogicNets.from_float(nn.Conv2d(4, 4, 1, groups=2), config()).eval()
    seen = [places.tolist() for places, *_ in layer.neuron_truth_tables]
    assert seen == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_only_seen_weights_are_trained_and_merged_norms_learn_their_statistics():
    layer = Conv2DLogicNets.from_float(nn.Conv2d(2, 3, 2), config(2, 1, 8, 4, fan_in=3))
    norm, x = nn.BatchNorm2d(3), torch.randn(8, 2, 5, 5)
    layer.merge([], [norm])
    layer.train()(x).pow(2).sum().backward()
    grad = layer.weight.grad.flatten(1)
    assert (grad.scatter(1, layer.indices, 0.0) == 0).all()
    assert (grad != 0).any()
    plain = Conv2DLogicNets.from_float(layer, config(2, 1, 31, 20, fan_in=3))
    norm.train()(plain.train()(x))
    mine = layer.output_layers[0].running_mean
    torch.testing.assert_close(mine, norm.running_mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "given", "message"),
    [
        (nn.Conv2d(1, 2, 3), config(2), r"sees 9 inputs of 2 bits: its table would have 2\^18"),
        (nn.Conv2d(8, 1025, 1), config(2), r"1025 tables of 2\^16 entries are 67174400"),
        (nn.Conv2d(1, 2, 1), {"name": "logicnets"}, "logicnets needs data_in_width"),
    ],
)
def test_what_would_be_too_large_or_is_not_known_is_refused(layer, given, message):
    with pytest.raises(ValueError, match=message):
        Conv2DLogicNets.from_float(layer, given)


def test_wrong_shapes_and_layers_are_refused():
    layer = Conv2DLogicNets(2, 3, 1, config=config(), activation_module=nn.ReLU()).eval()
    assert (layer(torch.randn(4, 2, 3, 3)) >= 0).all()
    with pytest.raises(ValueError, match=r"takes \[batch, 2, height, width\], not \[4, 3, 3, 3\]"):
        layer(torch.randn(4, 3, 3, 3))
    with pytest.raises(ValueError, match="BatchNorm1d cannot be merged; these can: BatchNorm2d"):
        layer.merge([], [nn.BatchNorm1d(3)])
    with pytest.raises(TypeError, match="needs config"):
        Conv2DLogicNets(2, 3, 1)


def test_the_passes_make_and_fuse_it(ready, row):
    layers = [lived_in_norm(2), nn.Conv2d(2, 4, 3, padding=1), lived_in_norm(4), nn.ReLU()]
    x = torch.randn(2, 2, 5, 5)
    graph = ready(row(*layers).eval(), x)
    around = {"additional_layers_inputs": ["layers_0"]}
    around |= {"additional_layers_outputs": ["layers_2", "layers_3"]}
    quantize_transform_pass(graph, by="name", layers_1={"config": config(fan_in=4, **around)})
    assert type(graph.modules["layers.1"]) is Conv2DLogicNets
    assert verify_metadata_analysis_pass(graph)[1] == {}
    calculate_avg_bits_mg_analysis_pass(graph)
    logicnets_fusion_transform_pass(graph, {"layers_1": {}})
    assert [node.name for node in graph.nodes] == ["x", "layers_1", "output"]
    assert verify_metadata_analysis_pass(graph)[1] == {}
    layer = graph.modules["layers.1"]
    assert torch.equal(graph.model(x), layer.math_forward(x))
    wide = layer.quantized_input(x)
    seen = layer.weight.flatten(1).gather(1, layer.indices)
    weight = torch.zeros(4, 18).scatter(1, layer.indices, seen)
    plain = nn.functional.conv2d(wide, weight.view(4, 2, 3, 3), layer.bias, padding=1)
    expected = Integer(4, 2)(layers[3](layers[2](plain)))
    # a sum that lies between two results may be rounded to either
    assert ((graph.model(x) - expected).abs() <= 0.25).all()
    assert (graph.model(x) == expected).float().mean() > 0.95
