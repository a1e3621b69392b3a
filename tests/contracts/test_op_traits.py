"""Traits of ops are true, and whoever asks for one handles every op that has it."""

import pytest
import torch
from torch import nn

from chop.ir.ops import OPS, TABLE, ops_with
from chop.methods.logicnets.layers import ACTIVATIONS, OUTSIDE
from chop.methods.population.architecture import POINTWISE, POOLS
from chop.numerics.integer import Integer
from chop.numerics.log import Log
from chop.passes.graph.transforms.pruning import channels

ROWS = {op.name: op for op in TABLE}
LAYERS = [name for name in ops_with("activation") if OPS[name].modules]
SETTINGS = {"threshold": (0.1, 20.0), "hardtanh": (-0.5, 2.0)}

# counted for each number of the result, although it depends on others than those at its place
NOT_POINTWISE = {
    "prelu": "reads the weight of its channel",
    "glu": "halves a dimension",
    **dict.fromkeys(
        ("softmax", "softmin", "log_softmax", "gumbel_softmax"), "normalises a dimension"
    ),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), "runs along one"),
    **dict.fromkeys(("outer", "addr", "kron"), "multiplies numbers of different places"),
    "cross": "mixes three numbers",
    "diff": "subtracts neighbours",
    "bernoulli": "draws random numbers",
}
# positive exactly where their input is, but not read by naswot
NOT_SIGNED = {
    "mish": "scores of earlier searches would change",
    **dict.fromkeys(("tanh", "softsign", "tanhshrink", "hardtanh"), "as large for negative inputs"),
}


def layer(name):
    return OPS[name].modules[0](*SETTINGS.get(name, ()))


def with_trait(trait):
    return [name for name, op in ROWS.items() if trait in op.traits]


BY_ELEMENT = {name for name, op in ROWS.items() if op.flops and op.flops.per == "result"}


def test_every_pointwise_op_costs_a_number_for_each_element_or_nothing():
    assert set(with_trait("pointwise")) <= BY_ELEMENT | set(ops_with("no_arithmetic"))


def test_what_costs_by_element_is_pointwise_or_has_a_reason():
    assert {op for op in BY_ELEMENT if "pointwise" not in OPS[op].traits} == NOT_POINTWISE.keys()


def test_channels_pass_every_pointwise_op_pool_and_reshape():
    for name in with_trait("pointwise"):
        assert channels._rule(name) is channels._elementwise, name
    for name in with_trait("pool"):
        assert channels._rule(name) is channels._spatial, name
    for name in with_trait("reshape"):
        expected = None if name in channels.OTHER_SIZES else channels._reshape
        assert channels._rule(name) is expected, name
    for name in with_trait("weighted_sum"):
        assert channels._rule(name) is channels._layer, name


def test_populations_train_every_activation_and_pools_of_two_dimensions():
    assert set(with_trait("activation")) | {"identity"} == {*POINTWISE} & ROWS.keys()
    left_out = set(with_trait("pool")) - POOLS
    assert all(name.endswith("3d") or name.startswith("lp_pool") for name in left_out)


def test_tables_of_logicnets_hold_every_activation_that_is_not_left_out():
    classes = {cls for name in with_trait("activation") for cls in OPS[name].modules}
    outside = {cls for name in OUTSIDE for cls in OPS[name].modules}
    assert set(ACTIVATIONS) == classes - outside
    assert set(with_trait("activation")) > OUTSIDE


@pytest.mark.parametrize("name", LAYERS)
def test_an_activation_is_a_function_of_one_number(name):
    x = torch.linspace(-8, 8, 161)
    alone = torch.stack([layer(name)(number) for number in x])
    assert torch.allclose(layer(name)(x), alone, atol=1e-6)  # vectors round otherwise
    assert "pointwise" in OPS[name].traits


@pytest.mark.parametrize("name", LAYERS)
def test_signed_and_idempotent_activations_are(name):
    x = torch.linspace(-8, 8, 161)
    y = layer(name)(x)
    if torch.equal(y > 0, x > 0):
        assert "signed" in OPS[name].traits or name in NOT_SIGNED
    else:
        assert "signed" not in OPS[name].traits
    if "idempotent" in OPS[name].traits:
        assert torch.equal(layer(name)(y), y)


@pytest.mark.parametrize("name", with_trait("no_op"))
def test_a_no_op_returns_its_input_in_eval_mode(name):
    for cls in OPS[name].modules:
        rank = int(cls.__name__[-2]) if cls.__name__.endswith("d") else 1  # Dropout2d
        x = torch.randn(2, 3, *(2,) * rank)
        assert torch.equal(cls().eval()(x), x), cls
    assert "idempotent" in OPS[name].traits


@pytest.mark.parametrize("name", with_trait("homogeneous"))
def test_a_homogeneous_op_keeps_the_scale_of_each_channel(name):
    for cls in OPS[name].modules:
        dims = int(cls.__name__[-2]) if cls.__name__.endswith("d") else 2
        settings = (
            (2.0, 2) if name.startswith("lp_pool") else (2,) if "Pool" in cls.__name__ else ()
        )
        module = cls(*settings).eval()
        x, scale = torch.randn(2, 3, *(4,) * dims), torch.rand(3, *(1,) * dims) + 0.5
        torch.testing.assert_close(module(x * scale), module(x) * scale)


@pytest.mark.parametrize("name", LAYERS)
def test_activations_without_that_trait_are_not_homogeneous(name):
    x = torch.linspace(-8, 8, 161)
    same = torch.allclose(layer(name)(x * 3), layer(name)(x) * 3)
    assert same == ("homogeneous" in OPS[name].traits)


def test_layers_of_weighted_sums_have_a_weight():
    made = {"linear": nn.Linear(2, 3)} | {
        name: OPS[name].modules[0](2, 3, 1) for name in with_trait("convolution")
    }
    assert made.keys() == set(with_trait("weighted_sum"))
    for name, module in made.items():
        assert module.weight.shape[:2] == ((2, 3) if "transposed" in OPS[name].traits else (3, 2))


@pytest.mark.parametrize("name", with_trait("non_negative"))
def test_results_that_are_not_negative_are_not(name):
    for cls in OPS[name].modules:
        x = torch.linspace(-8, 8, 162).reshape(1, 2, 9, 9)
        module = cls(dim=1) if cls is nn.Softmax else cls()
        assert (module(x) >= 0).all(), cls


@pytest.mark.parametrize("name", LAYERS)
def test_a_rectifier_leaves_out_negative_numbers_and_changes_no_others(name):
    x = torch.linspace(-8, 8, 161)
    same = torch.equal(layer(name)(x), torch.where(x > 0, x, 0))
    assert same == ("rectifier" in OPS[name].traits)


@pytest.mark.parametrize("name", with_trait("keeps_grid"))
@pytest.mark.parametrize("fmt", [Integer(6, 2), Integer(4, 5), Log(5, 7, zero=True)])
def test_results_of_what_keeps_the_grid_are_numbers_of_its_format(name, fmt):
    x = fmt(torch.linspace(-8, 8, 161))
    y = layer(name)(x)
    assert torch.equal(fmt(y), y)
