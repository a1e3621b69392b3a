"""Convolutions of lookup tables are linear layers of lookup tables on patches."""

import pytest
import torch
from torch import nn

from chop.methods.lutnet import layers as lutnet
from chop.nn.quantized.modules.conv2d import Conv2dLUT
from chop.nn.quantized.modules.linear import LinearLUT
from chop.passes import quantize_transform_pass, verify_metadata_analysis_pass


def config(k=2, levels=2, binarized=1, **others):
    numbers = {"data_in_k": k, "data_in_levels": levels, "data_in_binarization_level": binarized}
    return {"name": "lutnet", **numbers, **others}


GEOMETRIES = [
    {},
    {"padding": 1, "bias": False},
    {"padding": (0, 2), "stride": (2, 1)},
    {"padding": "same", "dilation": 2},
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize(("k", "binarized"), [(1, 1), (3, 0)])
def test_it_is_the_linear_layer_on_patches(geometry, k, binarized):
    conv = nn.Conv2d(3, 5, (3, 2), **geometry)
    layer = Conv2dLUT.from_float(conv, config(k, binarized=binarized)).eval()
    linear = nn.Linear(18, 5, bias=conv.bias is not None)
    linear.weight.data = conv.weight.data.flatten(1)
    if conv.bias is not None:
        linear.bias.data = conv.bias.data
    rows = LinearLUT.from_float(linear, config(k, binarized=binarized)).eval()
    assert torch.equal(layer.weight, rows.weight)
    nn.init.normal_(layer.weight)
    rows.load_state_dict(layer.state_dict())
    x = torch.randn(2, 3, 6, 7)
    padded = nn.functional.pad(x, conv._reversed_padding_repeated_twice)
    patches = nn.functional.unfold(padded, (3, 2), conv.dilation, 0, conv.stride).transpose(1, 2)
    expected = rows(patches).transpose(1, 2).reshape(conv(x).shape)
    assert torch.equal(layer(x), expected)
    assert torch.equal(layer(x[0]), expected[0])
    assert torch.equal(layer.train()(x), expected)


def test_new_tables_compute_what_signs_of_the_weights_would_also_in_groups():
    """Sums of signs are integers, so only the scales at the end are rounded."""
    conv = nn.Conv2d(4, 6, 3, groups=2, stride=2)
    layer = Conv2dLUT.from_float(conv, config(k=3)).eval()
    x = torch.randn(2, 4, 7, 7)
    rest, expected = x, conv.bias[:, None, None]
    weight = torch.where(conv.weight >= 0, 1.0, -1.0) * conv.weight.abs().mean()
    for mean in (2 / 3, 1 / 3):
        sign = torch.where(rest >= 0, mean, -mean)
        expected = expected + nn.functional.conv2d(sign, weight, stride=2, groups=2)
        rest = rest - sign
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def test_tables_of_a_group_see_no_other():
    layer = Conv2dLUT.from_float(nn.Conv2d(4, 2, 1, groups=2), config(k=2, binarized=0)).eval()
    nn.init.normal_(layer.weight)
    x = torch.randn(3, 4, 2, 2)
    changed = x.clone()
    changed[:, 2:] *= -1
    assert torch.equal(layer(x)[:, 0], layer(changed)[:, 0])
    assert not torch.equal(layer(x)[:, 1], layer(changed)[:, 1])


def test_pruned_connections_add_nothing():
    conv = nn.Conv2d(2, 3, 2)
    conv.weight.data[:, 1] = 0
    layer = Conv2dLUT.from_float(conv, config(k=1)).eval()
    x = torch.randn(2, 2, 4, 4)
    changed = x.clone()
    changed[:, 1] *= -1
    assert torch.equal(layer(x), layer(changed))
    conv.pruning_masks = torch.ones_like(conv.weight)
    assert Conv2dLUT.from_float(conv, config()).pruning_masks.shape == (3, 8)


def test_a_step_of_training_lowers_the_loss():
    layer = Conv2dLUT.from_float(nn.Conv2d(2, 3, 2), config(binarized=0)).train()
    x, y = torch.randn(8, 2, 4, 4), torch.randn(8, 3, 3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        losses.append((layer(x) - y).pow(2).mean())
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    for name, p in layer.named_parameters():
        assert p.grad.abs().sum() > 0, name


def test_the_quantize_pass_makes_the_layer(ready, row):
    x = torch.randn(2, 3, 5, 5)
    graph = ready(row(nn.Conv2d(3, 4, 3), nn.ReLU()), x)
    quantize_transform_pass(graph, by="type", conv2d={"config": config(data_in_dim=5)})
    assert type(graph.modules["layers.0"]) is Conv2dLUT
    graph.model(x)
    assert verify_metadata_analysis_pass(graph)[1] == {}
    with pytest.raises(ValueError, match="data_in_dim says that inputs are 5 x 5, not 6 x 5"):
        graph.model(torch.randn(2, 3, 6, 5))


@pytest.mark.parametrize(
    ("layer", "given", "message"),
    [
        (nn.Conv2d(1, 3, 1), config(k=2), "a table of 2 inputs needs a layer with as many"),
        (nn.Conv2d(256, 256, 4), config(k=4), r"with 2\^4 entries are 33554432 numbers to train"),
        (nn.Conv2d(2, 3, 1), config(data_in_dim=0), "data_in_dim is .*; give a height and width"),
        (nn.Conv2d(2, 3, 1), config(data_in_dim=[1, 2, 3]), "data_in_dim is .*; give a height"),
    ],
)
def test_what_cannot_be_is_refused(layer, given, message):
    with pytest.raises(ValueError, match=message):
        Conv2dLUT.from_float(layer, given)
    with pytest.raises(TypeError, match="needs config"):
        Conv2dLUT(3, 4, 1)
    with pytest.raises(ValueError, match=r"takes \[batch, 2, height, width\], not \[3, 4\]"):
        Conv2dLUT(2, 4, 1, config=config())(torch.randn(3, 4))


@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize("at_a_time", [1, 1000, 5000])
def test_rows_that_are_taken_bit_by_bit_give_the_same_bits(monkeypatch, looked_up, at_a_time):
    layer = Conv2dLUT.from_float(nn.Conv2d(3, 4, 3, padding=1), config(k=3)).eval()
    layer.is_lut_inference = looked_up
    x = torch.randn(3, 3, 6, 5)
    whole = layer(x)
    monkeypatch.setattr(lutnet, "AT_A_TIME", at_a_time)
    assert torch.equal(layer(x), whole)
    assert layer(x[:0]).shape == (0, 4, 6, 5)


def test_no_more_is_in_work_at_once_than_may_be(monkeypatch):
    layer = Conv2dLUT.from_float(nn.Conv2d(2, 4, 3), config()).eval()
    monkeypatch.setattr(lutnet, "AT_A_TIME", 2000)
    seen = []
    look = layer._looked_up
    monkeypatch.setattr(
        layer, "_looked_up", lambda *args: seen.append(found := look(*args)) or found
    )
    layer(torch.randn(2, 2, 9, 9))
    assert len(seen) > 2
    assert max(found.numel() for found in seen) <= 2000
