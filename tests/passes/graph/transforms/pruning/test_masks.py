"""Masks stay on their layer, whatever is done to it, and the layer computes as if pruned."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.passes.graph.transforms.pruning import attach_mask, detach_mask, masks_of
from chop.passes.graph.transforms.quantize.quantize import quantized_layer

INTEGER = {"name": "integer"} | {
    f"{operand}_{key}": value
    for operand in ("data_in", "weight", "bias")
    for key, value in (("width", 8), ("frac_width", 4))
}
LAYERS = {
    "linear": (nn.Linear(6, 5), (3, 6)),
    "conv1d": (nn.Conv1d(3, 4, 3), (2, 3, 8)),
    "conv2d": (nn.Conv2d(3, 4, 3), (2, 3, 6, 6)),
    "transposed": (nn.ConvTranspose2d(3, 4, 3), (2, 3, 6, 6)),
    "norm": (nn.BatchNorm2d(3), (2, 3, 6, 6)),
}


def alternating(like):
    return (torch.arange(like.numel()) % 3 != 0).reshape(like.shape)


def zeroed(layer, mask):
    plain = copy.deepcopy(layer)
    plain.weight.data[~mask] = 0
    return plain


@pytest.fixture(params=LAYERS)
def case(request):
    """A layer, the same layer with zeros in its weight, a mask and an input."""
    layer, shape = LAYERS[request.param]
    layer = copy.deepcopy(layer)
    mask = alternating(layer.weight)
    return layer, zeroed(layer, mask), mask, torch.randn(shape)


@pytest.fixture(params=[False, True], ids=["float", "integer"])
def masked(request, case):
    """A masked layer and the layer that it computes like, both in float or both quantized."""
    layer, plain, mask, x = case
    attach_mask(layer, "weight", mask)
    if request.param:
        layer, plain = quantized_layer(layer, INTEGER), quantized_layer(plain, INTEGER)
    return layer, plain, mask, x


def test_a_masked_layer_computes_with_zeros(masked):
    layer, plain, mask, x = masked
    assert torch.equal(layer(x), plain(x))
    assert masks_of(layer).keys() == {"weight"}
    assert torch.equal(masks_of(layer)["weight"], mask)


def test_a_kept_weight_follows_the_mask(masked):
    layer, plain, mask, x = masked
    layer.eval(), plain.eval()
    with torch.no_grad():
        assert torch.equal(layer(x), plain(x))
        attach_mask(layer, "weight", torch.zeros_like(mask))
        plain.weight.data.zero_()
        assert torch.equal(layer(x), plain(x))


def test_pruned_weights_have_no_gradient_and_the_others_theirs(masked):
    layer, plain, mask, x = masked
    layer(x).square().sum().backward()
    plain(x).square().sum().backward()
    raw = dict(layer.named_parameters())["weight"]
    assert torch.equal(raw.grad[mask], plain.weight.grad[mask])
    assert not raw.grad[~mask].any()


def test_state_dict_holds_the_parameter_under_its_own_name_and_the_mask(masked):
    layer, _, mask, _ = masked
    state = layer.state_dict()
    assert torch.equal(state["weight_mask"], mask)
    assert torch.equal(state["weight"], layer._parameters["weight"])


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save", "state_dict"])
def test_masks_survive_copies_and_files(masked, way):
    layer, plain, mask, x = masked
    if way == "deepcopy":
        new = copy.deepcopy(layer)
    elif way == "pickle":
        new = pickle.loads(pickle.dumps(layer))
    elif way == "torch.save":
        torch.save(layer, file := io.BytesIO())
        new = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    else:
        new = copy.deepcopy(layer)
        attach_mask(new, "weight", torch.ones_like(mask))
        new.load_state_dict(layer.state_dict())
    assert type(new) is type(layer)
    assert torch.equal(masks_of(new)["weight"], mask)
    assert torch.equal(new(x), plain(x))
    attach_mask(new, "weight", torch.ones_like(mask))
    assert torch.equal(layer(x), plain(x))


def test_a_layer_quantized_again_keeps_its_mask(masked):
    layer, plain, mask, x = masked
    log = INTEGER | {"weight_width": 5, "weight_frac_width": 3}
    again = quantized_layer(quantized_layer(layer, INTEGER), log)
    assert torch.equal(again(x), quantized_layer(plain, log)(x))
    bypassed = quantized_layer(layer, INTEGER | {"bypass": True})
    assert torch.equal(bypassed(x), quantized_layer(plain, INTEGER | {"bypass": True})(x))
    other = again.configure({"name": "minifloat_ieee", **widths()})
    assert type(other).__name__.endswith("MinifloatIEEE")
    assert torch.equal(masks_of(other)["weight"], mask)


def widths():
    keys = {"width": 8, "exponent_width": 4, "exponent_bias": 7}
    return {f"{o}_{k}": v for o in ("data_in", "weight", "bias") for k, v in keys.items()}


def test_detaching_makes_the_zeros_permanent_and_the_layer_plain(masked):
    layer, plain, _, x = masked
    before = layer._parameters["weight"]
    detach_mask(layer, "weight")
    assert type(layer) is type(plain)
    assert masks_of(layer) == {}
    assert "weight_mask" not in layer.state_dict()
    assert torch.equal(layer.weight, plain.weight)
    assert torch.equal(layer(x), plain(x))
    assert isinstance(layer.weight, nn.Parameter)
    assert layer.weight is not before, "the old one may be shared"


def test_two_parameters_can_have_masks():
    layer = nn.Linear(4, 3)
    attach_mask(layer, "bias", torch.tensor([True, False, True]))
    attach_mask(layer, "weight", torch.eye(4)[:3])
    assert list(masks_of(layer)) == ["bias", "weight"]
    x = torch.randn(2, 4)
    state = layer.state_dict()
    assert torch.equal(layer(x), F.linear(x, state["weight"] * torch.eye(4)[:3], layer.bias))
    assert layer.bias[1] == 0
    detach_mask(layer, "weight")
    assert list(masks_of(layer)) == ["bias"]


def test_infinite_weights_can_be_pruned():
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data[:] = torch.tensor([[float("inf"), -2.0]])
    attach_mask(layer, "weight", torch.tensor([[False, False]]))
    assert torch.equal(layer(torch.ones(1, 2)), torch.zeros(1, 1))
    assert not torch.signbit(layer.weight).any()


def test_training_leaves_pruned_weights_pruned_whatever_the_optimiser():
    torch.manual_seed(0)
    for optimiser in (torch.optim.SGD, torch.optim.AdamW):
        layer = nn.Linear(6, 5)
        attach_mask(layer, "weight", alternating(layer.weight))
        optimizer = optimiser(layer.parameters(), lr=0.1, weight_decay=0.1)
        before = layer.weight.detach().clone()
        for _ in range(3):
            optimizer.zero_grad()
            layer(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
        assert torch.equal(layer.weight == 0, ~alternating(layer.weight))
        assert not torch.equal(layer.weight, before)


def graph_of(model, x):
    mg, _ = init_metadata_analysis_pass(MaseGraph(model))
    return add_common_metadata_analysis_pass(mg, {"dummy_in": {"input": x}})[0]


def test_a_masked_model_can_be_traced_quantized_and_cloned():
    model, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), torch.randn(3, 6)
    attach_mask(model[0], "weight", alternating(model[0].weight))
    mg = graph_of(model, x)
    assert [n.name for n in mg.nodes] == ["input_1", "_0", "_1", "_2", "output"]
    assert torch.equal(mg.clone().model(x), model(x))
    quantize_transform_pass(mg, {"by": "type", "linear": {"config": INTEGER}})
    layer = mg.clone().modules["0"]
    assert type(layer).__name__ == "LinearInteger"
    assert torch.equal(masks_of(layer)["weight"], masks_of(model[0])["weight"])


def test_masks_move_to_half_precision_with_the_layer():
    layer = nn.Linear(6, 5)
    attach_mask(layer, "weight", alternating(layer.weight))
    assert layer.to(torch.bfloat16).weight.dtype == torch.bfloat16
    assert masks_of(layer)["weight"].dtype == torch.bool


@pytest.mark.parametrize(
    ("name", "mask", "error", "message"),
    [
        ("weigth", torch.ones(3, 4), KeyError, "did you mean 'weight'"),
        ("weight", torch.ones(4, 3), ValueError, r"shape \[4, 3\].*\[3, 4\]"),
        ("weight", torch.full((3, 4), 0.5), ValueError, "other numbers than 0 and 1"),
        ("weight", [[1]], TypeError, "must be a tensor, not list"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(name, mask, error, message):
    layer = nn.Linear(4, 3)
    with pytest.raises(error, match=message):
        attach_mask(layer, name, mask)
    assert masks_of(layer) == {}


def test_detaching_what_is_not_attached_is_refused():
    with pytest.raises(KeyError, match="unknown masked parameter 'weight'"):
        detach_mask(nn.Linear(2, 2), "weight")


def test_a_name_that_is_taken_is_refused():
    layer = nn.Linear(2, 2)
    layer.weight_mask = "mine"
    with pytest.raises(ValueError, match="already has an attribute 'weight_mask'; rename"):
        attach_mask(layer, "weight", torch.ones(2, 2))


def test_a_masked_quantized_layer_follows_its_weights_in_inference_mode():
    layer = nn.Linear(4, 3)
    attach_mask(layer, "weight", torch.eye(3, 4, dtype=torch.bool))
    layer = quantized_layer(layer, INTEGER).eval()
    x = torch.ones(2, 4)
    with torch.inference_mode():
        first = layer(x)
        assert torch.equal(layer(x), first)
    with torch.no_grad():
        layer._parameters["weight"].add_(1.0)
    with torch.inference_mode():
        assert torch.allclose(layer(x), first + 1.0)
