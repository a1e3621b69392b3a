"""What users do to quantized layers besides running them."""

import tomllib

import numpy as np
import pytest
import torch
from torch import nn

from chop.numerics import from_config, from_precision
from chop.passes.graph.transforms.quantize import quantized_func_map
from chop.passes.graph.transforms.quantize.quantized_modules.linear import LinearInteger
from chop.passes.module import quantize_module_transform_pass

INTEGER = {"name": "integer"} | {
    f"{operand}_{key}": value
    for operand in ("data_in", "weight", "bias")
    for key, value in (("width", 8), ("frac_width", 4))
}
BINARY_RESIDUAL = """
name = "binary_residual"
binary_training = true
data_in_residual_sign = false
data_in_levels = 2
data_in_width = 32
data_in_frac_width = 16
data_in_stochastic = 0
data_in_bipolar = 1
weight_width = 1
weight_stochastic = 0
weight_bipolar = 1
bias_width = 32
bias_stochastic = 0
bias_bipolar = 1
"""


def test_bypass_is_switched_by_an_attribute():
    layer, x = LinearInteger(4, 3, config=INTEGER), torch.randn(5, 4)
    rounded = layer(x)
    layer.bypass = True
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    layer.bypass = False
    assert torch.equal(layer(x), rounded)


def test_the_handle_of_a_hook_still_removes_it():
    plain = nn.Linear(4, 3)
    handle = plain.register_forward_hook(lambda *_: None)
    layer = LinearInteger.from_float(plain, INTEGER)
    assert layer._forward_hooks
    handle.remove()
    assert not layer._forward_hooks


def test_an_evaluated_layer_can_be_traced_by_torchscript():
    layer, x = LinearInteger(4, 4, config=INTEGER).eval(), torch.randn(2, 4)
    with torch.no_grad():
        layer(x)
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        traced = torch.jit.trace(layer, x, check_trace=False)
    assert torch.equal(traced(x), layer(x))


def test_the_labs_config_of_binary_residual_is_understood():
    config = tomllib.loads(BINARY_RESIDUAL)
    model, info = quantize_module_transform_pass(
        nn.Sequential(nn.Linear(4, 3)), {"by": "name", "0": {"config": config}}
    )
    assert info["quantized"] == ["0"]
    assert type(model[0]).__name__ == "LinearBinaryResidualSign"
    x = torch.randn(2, 4)
    assert torch.equal(model[0].x_quantizer(x), x)


def test_a_bias_keeps_a_refinement_of_its_own():
    config = {"name": "integer", "weight_width": 8, "weight_frac_width": 4, "bias_floor": True}
    assert from_config(config, "bias").floor
    assert not from_config(config, "weight").floor


def test_numpys_integers_are_integers():
    fmt = from_precision("integer", [np.int64(8), np.int32(4)])
    assert fmt.precision == [8, 4]
    assert all(type(number) is int for number in fmt.precision)


def test_multiplication_answers_to_its_older_name():
    assert quantized_func_map["mult_integer"] is quantized_func_map["mul_integer"]


def block_fp(*operands):
    keys = {"width": 4, "exponent_width": 8, "exponent_bias": 127, "block_size": [16]}
    return {"name": "block_fp"} | {f"{o}_{key}": keys[key] for o in operands for key in keys}


def test_batches_of_a_matrix_product_do_not_share_blocks():
    config = block_fp("data_in", "weight")
    a, b = torch.randn(4, 8, 16), torch.randn(4, 16, 16)
    louder = b.clone()
    louder[1] *= 1e4
    bmm = quantized_func_map["bmm_block_fp"]
    assert torch.equal(bmm(a, b, config=config)[0], bmm(a, louder, config=config)[0])


def test_samples_may_be_blocked_together_if_the_user_says_so():
    config = block_fp("data_in", "weight", "bias")
    apart = LinearInteger(16, 4, config=INTEGER).configure(config)
    joined = config | {"data_in_skip_first_dim": False}
    together = LinearInteger(16, 4, config=INTEGER).configure(joined)
    x = torch.tensor([[1.0] * 16, [64.0] * 16])
    assert apart.x_quantizer(x)[0, 0] == 1
    assert together.x_quantizer(x)[0, 0] == 0


def test_a_bypass_that_is_no_flag_is_refused():
    with pytest.raises(ValueError, match="bypass is 'yes'; give true or false"):
        LinearInteger(4, 3, config=INTEGER | {"bypass": "yes"})


class Doubling(LinearInteger):
    def q(self, operand, x):
        return x if x is None else 2 * x


class Halving(LinearInteger):
    def q_parameter(self, name):
        return getattr(self, name) / 2


@pytest.mark.parametrize(("cls", "factors"), [(Doubling, (2, 1, 1)), (Halving, (1, 0.5, 0.5))])
def test_a_layer_that_rounds_its_own_way_does_so_in_training_too(cls, factors):
    layer = cls(4, 3, config={**INTEGER, "data_in_width": 32, "data_in_frac_width": 20})
    x, weight, bias = torch.ones(2, 4), layer.q_parameter("weight"), layer.q_parameter("bias")
    if cls is Halving:
        assert torch.equal(weight, layer.weight / 2)
    y = nn.functional.linear(factors[0] * x, weight, bias)
    expected = 2 * y if cls is Doubling else y  # `q` is also for the result
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("ste", ["identity", "clip"])
def test_gradients_of_a_layer_are_those_of_its_operands_one_by_one(ste):
    layer = LinearInteger(4, 3, config={**INTEGER, "ste": ste})
    with torch.no_grad():
        layer.weight.mul_(40)
    x = (20 * torch.randn(5, 4)).requires_grad_()
    nn.functional.linear(
        layer.x_quantizer(x), layer.w_quantizer(layer.weight), layer.b_quantizer(layer.bias)
    ).square().sum().backward()
    expected = [tensor.grad.clone() for tensor in (x, layer.weight, layer.bias)]
    for tensor in (x, layer.weight, layer.bias):
        tensor.grad = None
    layer(x).square().sum().backward()
    for tensor, grad in zip((x, layer.weight, layer.bias), expected, strict=True):
        assert torch.equal(tensor.grad, grad)
