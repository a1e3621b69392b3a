"""A weight that nobody trains is rounded once, and every change of it is noticed."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from chop.numerics import frozen_weights
from chop.numerics.integer import Integer
from chop.passes.graph.transforms.pruning.masks import attach_mask
from chop.passes.graph.transforms.quantize.quantized_modules import (
    Conv2dInteger,
    LayerNormInteger,
    LinearInteger,
)

WIDTHS = {"width": 8, "frac_width": 4}
CONFIG = {f"{o}_{k}": v for o in ("data_in", "weight", "bias") for k, v in WIDTHS.items()}
FORMAT = Integer(8, 4)


@pytest.fixture
def rounded(monkeypatch):
    """Every tensor that the format is asked to round."""
    seen = []
    original = Integer.quantize

    def quantize(self, x):
        seen.append(x)
        return original(self, x)

    monkeypatch.setattr(Integer, "quantize", quantize)
    return seen


@pytest.fixture
def layer():
    return LinearInteger(4, 3, config=CONFIG).eval()


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def expected(layer, weight_format=FORMAT, x=X):
    return F.linear(FORMAT(x), weight_format(layer.weight), FORMAT(layer.bias))


@torch.no_grad()
def test_in_eval_mode_without_gradients_parameters_are_rounded_once(layer, rounded):
    for _ in range(3):
        layer(X)
    assert len(rounded) == 3 + 2  # each input, the weight, the bias


@torch.no_grad()
@pytest.mark.parametrize(
    ("made", "x"),
    [
        (lambda: Conv2dInteger(2, 3, 3, config=CONFIG), torch.ones(1, 2, 4, 4)),
        (lambda: LayerNormInteger(4, config=CONFIG), X),
    ],
)
def test_other_layers_keep_their_parameters_too(made, x, rounded):
    layer = made().eval()
    first = layer(x)
    assert torch.equal(layer(x), first)
    assert len(rounded) == 2 + 2


def test_with_gradients_or_in_train_mode_nothing_is_kept(layer, rounded):
    layer(X)
    layer(X).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        layer.train()(X)
    assert len(rounded) == 3 * 3
    assert layer._kept == {}


def test_what_was_kept_is_not_used_once_gradients_are_wanted(layer):
    with torch.no_grad():
        layer(X)
    layer(X).sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((3,), 2.0))
    assert torch.equal(layer.weight.grad, FORMAT(X).sum(0).expand(3, 4))


def test_under_inference_mode_and_after_it(layer):
    with torch.inference_mode():
        assert torch.equal(layer(X), expected(layer))
    with torch.no_grad():
        assert torch.equal(layer(X), expected(layer))
    layer(X).sum().backward()


def step(layer, optimiser=torch.optim.SGD, **options):
    optimizer = optimiser(layer.parameters(), lr=0.5, **options)
    with torch.enable_grad():
        layer(X).square().sum().backward()
    optimizer.step()


def adam_step(layer):
    step(layer, torch.optim.Adam, foreach=True)


def swap_rows(layer):
    layer.weight.data.copy_(layer.weight.data.flip(0))


def through_numpy(layer):
    layer.weight.detach().numpy()[0, 0] += 1


def new_state(layer, assign=False):
    layer.load_state_dict({k: v + 1 for k, v in layer.state_dict().items()}, assign=assign)


def assigned_state(layer):
    new_state(layer, assign=True)


def sign_of_zero(layer):
    layer.weight.data.zero_()
    layer(X)
    layer.weight.data.neg_()


def swapped(name):
    def change(layer):
        setattr(layer, name, nn.Parameter(getattr(layer, name) + 1))

    return change


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.weight.add_(1),
        lambda layer: layer.weight[0].add_(1),
        lambda layer: layer.weight.copy_(torch.ones(3, 4)),
        lambda layer: layer.weight.data.mul_(2),
        lambda layer: layer.bias.data.mul_(-1),
        lambda layer: setattr(layer.weight, "data", torch.ones(3, 4)),
        lambda layer: setattr(layer.weight, "data", layer.weight.data.flip(1)),
        swap_rows,
        through_numpy,
        new_state,
        assigned_state,
        step,
        adam_step,
        sign_of_zero,
        swapped("weight"),
        swapped("bias"),
        lambda layer: setattr(layer, "bias", None),
        lambda layer: nn.init.constant_(layer.weight, 0.3),
        lambda layer: layer.weight.data.fill_(float("nan")),
        lambda layer: layer.apply(lambda m: m.weight.data.normal_()),
    ],
    ids=lambda change: change.__qualname__.rpartition(".")[2].strip("<>"),
)
def test_every_change_of_a_parameter_is_noticed(layer, change):
    before = layer(X)
    change(layer)
    bias = FORMAT(layer.bias) if layer.bias is not None else None
    now = F.linear(FORMAT(X), FORMAT(layer.weight), bias)
    assert torch.equal(layer(X).nan_to_num(7), now.nan_to_num(7))
    assert torch.equal(layer(X).signbit(), now.signbit())
    assert change is sign_of_zero or not torch.equal(now, before)


@torch.no_grad()
def test_a_change_of_dtype_is_noticed(layer):
    layer(X)
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        layer.to(dtype)
        result = layer(X.to(dtype))
        assert result.dtype == dtype
        assert torch.equal(result, expected(layer, x=X.to(dtype)))


@torch.no_grad()
def test_a_change_of_the_config_is_noticed(layer):
    before = layer(X)
    layer.configure({**CONFIG, "weight_frac_width": 1, "weight_width": 4})
    assert torch.equal(layer(X), expected(layer, Integer(4, 1)))
    assert not torch.equal(layer(X), before)
    for option in ({"rounding": "floor"}, {"rounding": "up"}, {"overflow": "wrap"}):
        layer.configure({**CONFIG, "weight_frac_width": 6, **option})
        weight = Integer(CONFIG["weight_width"], 6, **option)
        assert torch.equal(layer.get_quantized_weight(), weight(layer.weight))
    layer.configure({**CONFIG, "bypass": True})
    assert torch.equal(layer(X), F.linear(X, layer.weight, layer.bias))
    layer.configure(CONFIG)
    assert torch.equal(layer(X), before)


@torch.no_grad()
def test_a_change_of_a_format_by_hand_is_noticed(layer):
    layer(X)
    layer.formats["weight"] = Integer(3, 1)
    assert torch.equal(layer(X), expected(layer, Integer(3, 1)))


@torch.no_grad()
def test_nan_does_not_make_a_weight_be_rounded_again_and_again(layer, rounded):
    layer.weight[0, 0] = float("nan")
    for _ in range(3):
        layer(X)
    assert len(rounded) == 3 + 2


@torch.no_grad()
def test_what_is_kept_stays_out_of_states_copies_and_pickles(layer):
    size = len(pickle.dumps(layer))
    layer(X)
    assert layer._kept.keys() == {"weight", "bias"}
    assert layer.state_dict().keys() == {"weight", "bias"}
    assert dict(layer.named_buffers()) == {}
    for twin in (copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin._kept == {}
        assert torch.equal(twin(X), layer(X))
    assert len(pickle.dumps(layer)) == size
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.load(file, weights_only=False)._kept == {}


@torch.no_grad()
def test_two_layers_that_share_a_parameter_keep_their_own(layer):
    other = LinearInteger.from_float(layer, {**CONFIG, "weight_width": 3, "weight_frac_width": 1})
    for _ in range(2):
        assert torch.equal(layer(X), expected(layer))
        assert torch.equal(other(X), expected(layer, Integer(3, 1)))
        layer.weight.mul_(2)


@torch.no_grad()
def test_a_caller_cannot_spoil_what_is_kept(layer):
    expected = layer(X)
    layer.get_quantized_weight().zero_()
    layer(X).zero_()
    assert torch.equal(layer(X), expected)


@torch.no_grad()
def test_a_network_at_rest_looks_at_its_parameters_once(layer, monkeypatch):
    compared, equal = [], torch.equal
    monkeypatch.setattr(torch, "equal", lambda *both: compared.append(both) or equal(*both))
    layer(X)
    with frozen_weights(nn.Sequential(layer)):
        for _ in range(3):
            layer(X)
    assert len(compared) == 2  # the weight, the bias
    layer(X)
    assert len(compared) == 2 + 2  # at rest no more


@torch.no_grad()
def test_what_changed_before_and_after_a_rest_is_noticed(layer):
    layer(X)
    layer.weight.data.mul_(2)
    with frozen_weights(layer):
        assert torch.equal(layer(X), expected(layer))
        assert torch.equal(layer(X), expected(layer))
    layer.weight.data.mul_(2)
    assert torch.equal(layer(X), expected(layer))


@torch.no_grad()
def test_a_network_at_rest_can_be_configured_and_copied(layer):
    with frozen_weights(layer):
        layer(X)
        twin = copy.deepcopy(layer)
        twin.weight.data.mul_(2)
        assert torch.equal(twin(X), expected(twin))  # whose parameters are not at rest
        layer.configure({**CONFIG, "weight_frac_width": 1, "weight_width": 4})
        assert torch.equal(layer(X), expected(layer, Integer(4, 1)))
    assert torch.equal(layer(X), expected(layer, Integer(4, 1)))


@torch.no_grad()
def test_rests_may_be_nested_and_end_with_an_error(layer):
    with frozen_weights(layer):
        with pytest.raises(RuntimeError), frozen_weights(layer):
            layer(X[:, :2])
        assert torch.equal(layer(X), expected(layer))
    layer.bias.data.add_(1)
    assert torch.equal(layer(X), expected(layer))


def test_a_network_at_rest_still_learns(layer):
    with frozen_weights(layer):
        layer(X).sum().backward()
        assert torch.equal(layer.bias.grad, torch.full((3,), 2.0))


@torch.no_grad()
def test_another_parameter_in_its_place_is_noticed_at_rest(layer):
    others = {name: 2 * p for name, p in layer.named_parameters()}
    with frozen_weights(layer):
        before = layer(X)
        found = torch.func.functional_call(layer, others, (X,))
        now = F.linear(FORMAT(X), FORMAT(others["weight"]), FORMAT(others["bias"]))
        assert torch.equal(found, now)
        assert torch.equal(layer(X), before)


class Twice(nn.Module):
    def forward(self, weight):
        return 2 * weight


@torch.no_grad()
def test_parameters_that_are_made_at_each_look_are_never_vouched_for(layer):
    parametrize.register_parametrization(layer, "weight", Twice())
    others = {name: torch.randn_like(tensor) for name, tensor in layer.state_dict().items()}
    expected = torch.func.functional_call(layer, others, (X,))
    with frozen_weights(layer):
        layer(X)
        assert torch.equal(torch.func.functional_call(layer, others, (X,)), expected)


@torch.no_grad()
def test_masks_may_change_at_rest(layer):
    attach_mask(layer, "weight", torch.ones(3, 4, dtype=torch.bool))
    with frozen_weights(layer):
        layer(X)
        layer.weight_mask.zero_()
        assert torch.equal(layer(X), FORMAT(layer.bias).expand(2, 3))


@torch.no_grad()
def test_a_network_at_rest_may_change_its_type(layer):
    with frozen_weights(layer):
        layer(X)
        layer.double()
        assert layer(X.double()).dtype == torch.float64
