"""Layers on 8-bit kernels compute what the quantised layers compute, within the stated bounds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from chop.ir.ops import TransposedLinear
from chop.methods.deploy.codes import NotDeployed
from chop.methods.deploy.convert import deployed_layer
from chop.methods.deploy.kernels import KERNELS, why_not_on
from chop.passes.graph.transforms.quantize.quantize import quantized_layer

U = 2.0**-24  # half a unit in the last place of float32
FIXED = {"data_in_width": 8, "data_in_frac_width": 4, "weight_width": 8, "weight_frac_width": 6}
FIXED |= {"name": "integer", "bias_width": 8, "bias_frac_width": 6}
ROWS = {"name": "scale_integer", "data_in_width": 8, "weight_width": 8}
AFFINE = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.03, "weight_width": 8}
SHIFTED = AFFINE | {"data_in_zero_point": 7, "weight_zero_point": "calibrated", "weight_axis": 0}
FP8 = {"name": "fp8", "data_in_exponent_width": 4, "data_in_frac_width": 3}
FP8 |= {"weight_exponent_width": 4, "weight_frac_width": 3}
CONFIGS = {
    "integer": FIXED,
    "scale_integer": ROWS,
    "symmetric rows": ROWS | {"symmetric": True, "weight_width": 4},
    "affine": AFFINE,
    "affine per channel": AFFINE | {"weight_axis": 0, "symmetric": True},
    "zero points": SHIFTED,
    "unsigned codes": SHIFTED | {"data_in_signed": False, "weight_signed": False},
    "powers of two": AFFINE | {"power_of_two": True, "data_in_width": 6},
    "fp8": FP8,
    "fp8 that saturates": FP8 | {"saturate": True, "data_in_exponent_width": 5},
}
CONFIGS["fp8 that saturates"]["data_in_frac_width"] = 2


def target_of(config):
    return "cuda-fp8" if config["name"] == "fp8" else "cuda-int8"


def layers(config, inputs=20, outputs=7, *, bias=True, seed=0, output=None):
    """A quantised layer and its deployed form."""
    torch.manual_seed(seed)
    simulated = quantized_layer(nn.Linear(inputs, outputs, bias).eval(), config)
    return simulated, deployed_layer(simulated, target_of(config), output)


def bound(simulated, x):
    """The stated bound of the difference between both, for float32."""
    x, weight, bias = (None if t is None else t.double() for t in simulated.q_operands(x))
    sums = x.abs() @ weight.abs().T + (0 if bias is None else bias.abs())
    share = (x.shape[-1] + 12) * U
    return share / (1 - share) * sums


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 40)),
    bias=st.booleans(),
    seed=st.integers(0, 99),
    spread=st.sampled_from([0.01, 1.0, 30.0]),
)
@settings(max_examples=12, deadline=None)
def test_results_are_those_of_the_simulation_within_the_bound(name, sizes, bias, seed, spread):
    inputs, outputs, rows = sizes
    simulated, deployed = layers(CONFIGS[name], inputs, outputs, bias=bias, seed=seed)
    x = spread * torch.randn(rows, inputs)
    got, want = deployed(x), simulated(x)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert bool(((got.double() - want.double()).abs() <= bound(simulated, x)).all())


@torch.no_grad()
@pytest.mark.parametrize("rounding", ["even", "up", "floor"])
@pytest.mark.parametrize("overflow", ["saturate", "symmetric", "wrap"])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("width", [3, 8])
def test_fixed_point_has_equal_bits_however_it_rounds(rounding, overflow, signed, width):
    config = FIXED | {"rounding": rounding, "overflow": overflow, "data_in_signed": signed}
    simulated, deployed = layers(config | {"data_in_width": width, "weight_width": width}, 33, 9)
    x = torch.cat([8 * torch.randn(50, 33), torch.full((1, 33), torch.inf)])
    assert torch.equal(deployed(x), simulated(x))


@torch.no_grad()
def test_powers_of_two_have_equal_bits_below_24_bits_of_sum():
    simulated, deployed = layers(CONFIGS["powers of two"] | {"weight_width": 4}, 500, 30)
    x = torch.randn(40, 500)
    assert torch.equal(deployed(x), simulated(x))


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name, c in CONFIGS.items() if c["name"] != "fp8"])
def test_integers_are_exact_up_to_five_roundings(name):
    """The simulation's error grows with the number of inputs, the deployed layer's does not."""
    _, deployed = layers(CONFIGS[name], 3000, 11)
    deployed.bias = None
    x = torch.randn(30, 3000)
    codes, rows = deployed._input.codes(x)
    multiples = codes.double() + deployed._input.offset
    offset = 0 if deployed.weight_offset is None else deployed.weight_offset.unsqueeze(1)
    sums = multiples @ (deployed.weight.double() + offset).T
    exact = sums * deployed.scale.double() * (1 if rows is None else rows.double())
    assert bool(((deployed(x).double() - exact).abs() <= 5 * U * exact.abs()).all())


@torch.no_grad()
@pytest.mark.parametrize("shape", [(20,), (2, 3, 20), (0, 20), (1, 20), (16, 20), (17, 20)])
@pytest.mark.parametrize("name", ["integer", "zero points", "scale_integer", "fp8"])
def test_inputs_may_have_any_shape(shape, name):
    simulated, deployed = layers(CONFIGS[name])
    x = torch.randn(shape)
    got = deployed(x)
    assert got.shape == (*shape[:-1], 7)
    assert got.is_contiguous()
    torch.testing.assert_close(got, simulated(x))


@torch.no_grad()
@pytest.mark.parametrize("name", ["integer", "zero points", "scale_integer", "fp8"])
def test_a_row_does_not_depend_on_its_batch(name):
    _, deployed = layers(CONFIGS[name])
    x = torch.randn(40, 20)
    assert torch.equal(torch.cat([deployed(row) for row in x.split(1)]), deployed(x))


@torch.no_grad()
@pytest.mark.parametrize("name", ["integer", "zero points", "scale_integer", "fp8"])
@pytest.mark.parametrize("bias", [True, False])
def test_bfloat16_results_are_one_rounding_away(name, bias):
    simulated, deployed = layers(CONFIGS[name], bias=bias, output="bfloat16")
    x = torch.randn(30, 20)
    got, want = deployed(x), simulated(x)
    assert got.dtype == torch.bfloat16
    # the bias is stored in the dtype of results
    rounded = 0 if not bias else (simulated.q_parameter("bias") - deployed.bias).abs().double()
    limit = bound(simulated, x) + 2.0**-8 * want.abs().double() + rounded
    assert bool(((got.double() - want.double()).abs() <= limit).all())


@torch.no_grad()
def test_a_layer_in_half_precision_gives_half_precision():
    for dtype in (torch.bfloat16, torch.float16):
        simulated = quantized_layer(nn.Linear(20, 7).eval().to(dtype), FIXED)
        deployed = deployed_layer(simulated, "cuda-int8", None)
        x = torch.randn(5, 20).to(dtype)
        assert deployed(x).dtype == dtype
        torch.testing.assert_close(deployed(x), simulated(x), atol=0.05, rtol=0.02)


@torch.no_grad()
def test_results_are_rounded_to_the_format_of_data_out():
    config = FIXED | {"data_out_width": 6, "data_out_frac_width": 2}
    simulated, deployed = layers(config)
    x = torch.randn(30, 20)
    assert torch.equal(deployed(x), simulated(x))
    assert torch.equal(deployed(x) * 4, (deployed(x) * 4).round())


@torch.no_grad()
def test_nan_is_zero_for_integers_and_nan_for_fp8():
    x = torch.randn(3, 20)
    x[1, 4] = torch.nan
    for name, is_nan in (("integer", False), ("scale_integer", False), ("fp8", True)):
        _, deployed = layers(CONFIGS[name])
        assert bool(deployed(x)[1].isnan().all()) == is_nan
        if not is_nan:
            assert torch.equal(deployed(x), deployed(x.nan_to_num(nan=0.0)))


@torch.no_grad()
@pytest.mark.parametrize("config", [FIXED, AFFINE | {"weight_axis": 1}, FP8])
def test_a_weight_that_is_stored_transposed(config):
    torch.manual_seed(0)
    simulated = quantized_layer(TransposedLinear(7, 20).eval(), config)
    deployed = deployed_layer(simulated, target_of(config), None)
    x = torch.randn(5, 20)
    torch.testing.assert_close(deployed(x), simulated(x))


@torch.no_grad()
@pytest.mark.parametrize(("config", "kernel"), [(FIXED, "_int_mm"), (FP8, "scaled_mm")])
def test_operands_of_the_kernels_lie_row_by_row(config, kernel, monkeypatch):
    owner = torch if kernel == "_int_mm" else torch.nn.functional
    multiply, given = getattr(owner, kernel), []

    def noted(x, matrix, *others, **options):
        given.extend([x, matrix.t()])
        return multiply(x, matrix, *others, **options)

    simulated = quantized_layer(TransposedLinear(16, 32).eval(), config)
    deployed = deployed_layer(simulated, target_of(config), None)
    monkeypatch.setattr(owner, kernel, noted)
    x = torch.randn(32, 48).t()  # column by column
    assert torch.allclose(deployed(x), simulated(x), atol=1e-4)  # sums in another order
    assert all(operand.is_contiguous() for operand in given)
    assert deployed.weight.is_contiguous()


@torch.no_grad()
@pytest.mark.parametrize("name", ["integer", "zero points", "fp8"])
def test_weights_take_8_bits_and_keep_them(name):
    simulated, deployed = layers(CONFIGS[name], 64, 64)
    x = torch.randn(5, 64)
    before = deployed(x)
    for convert in (lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.double()):
        convert(deployed)
        assert deployed.weight.element_size() == 1
        assert torch.equal(deployed(x), before)
    assert all(not p.requires_grad for p in deployed.parameters())
    sizes = [sum(t.nbytes for t in m.state_dict().values()) for m in (simulated, deployed)]
    assert sizes[1] < 0.3 * sizes[0]


@torch.no_grad()
def test_a_state_dict_brings_another_layers_numbers():
    (_, first), (_, second) = (layers(SHIFTED, seed=seed) for seed in (0, 1))
    x = torch.randn(5, 20)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(x), first(x))


def test_training_and_gradients_are_refused():
    _, deployed = layers(FIXED)
    with pytest.raises(RuntimeError, match=r"for inference only.*call eval"):
        deployed.train()(torch.randn(2, 20))
    x = torch.randn(2, 20, requires_grad=True)
    y = deployed.eval()(x)
    with pytest.raises(RuntimeError, match="for inference only, and has no gradients: train the"):
        y.sum().backward()
    assert not deployed(x.detach()).requires_grad


def test_an_input_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"is 19, but the layer has 20 inputs; give \[..., 20\]"):
        layers(FIXED)[1](torch.randn(2, 19))


@torch.no_grad()
@pytest.mark.parametrize("name", ["integer", "zero points", "scale_integer", "fp8"])
def test_it_compiles_without_breaks(name):
    _, deployed = layers(CONFIGS[name])
    torch.compiler.reset()
    compiled = torch.compile(deployed, backend="eager", fullgraph=True)
    for rows in (1, 40):
        x = torch.randn(rows, 20)
        assert torch.equal(compiled(x), deployed(x))


REFUSED = [
    (FIXED | {"data_in_width": 12}, "its data_in has 12 bits, and the kernel takes 8; quantise"),
    (FIXED | {"weight_width": 9}, "its weight has 9 bits, and the kernel takes 8; quantise it"),
    (AFFINE | {"weight_width": 12}, "its weight has 12 bits"),
    (AFFINE | {"weight_axis": 1, "bias_width": 8}, "its weight has a scale per input; use weight_"),
    (
        {"name": "affine", "data_in_width": 8, "weight_width": 8},
        "cannot round yet: .*no scale yet; run calibrate",
    ),
    (FIXED | {"data_in_frac_width": 100, "weight_frac_width": 100}, "steps that float32 does not"),
    (FIXED | {"bypass": True}, "is bypassed, which multiplies no 8-bit numbers; quantise it other"),
    (FP8, "its data_in is fp8, which has no 8-bit codes; quantise it to integer, scale_integer"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED)
def test_what_int8_does_not_take_has_a_reason(config, reason):
    layer = quantized_layer(nn.Linear(20, 7), config)
    with pytest.raises(NotDeployed, match=reason):
        deployed_layer(layer, "cuda-int8", None)


def test_what_fp8_does_not_take_has_a_reason():
    def refused(config, scale=1.0):
        layer = quantized_layer(nn.Linear(20, 7), config)
        layer.weight.data *= scale
        with pytest.raises(NotDeployed) as error:
            deployed_layer(layer, "cuda-fp8", None)
        return str(error.value)

    assert refused(FIXED) == "it is integer; quantise it to fp8, or use target = 'cuda-int8'"
    both = FP8 | {f"{o}_{k}": n for o in ("data_in", "weight") for k, n in FIVE_TWO.items()}
    assert "E5M2 for both operands" in refused(both)
    wide = FP8 | {"weight_exponent_width": 5, "weight_frac_width": 2}
    assert "not finite in fp8; give weight_saturate = true" in refused(wide, 1e9)


FIVE_TWO = {"exponent_width": 5, "frac_width": 2}


def test_other_layers_have_a_reason():
    with pytest.raises(NotDeployed, match="is in float; quantise it first"):
        deployed_layer(nn.Linear(20, 7), "cuda-int8", None)
    conv = quantized_layer(nn.Conv2d(3, 4, 3), FIXED)
    with pytest.raises(NotDeployed, match="is Conv2d; only linear layers have kernels"):
        deployed_layer(conv, "cuda-int8", None)
    hooked = quantized_layer(nn.Linear(20, 7), FIXED)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(NotDeployed, match="has hooks, such as those that prune activations"):
        deployed_layer(hooked, "cuda-int8", None)
    turned = quantized_layer(TransposedLinear(7, 20), ROWS)
    with pytest.raises(NotDeployed, match="has a scale per input, as its weight is stored"):
        deployed_layer(turned, "cuda-int8", None)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_numbers_that_are_not_finite_are_refused(name):
    layer = quantized_layer(nn.Linear(20, 7), FIXED)
    getattr(layer, name).data.view(-1)[3] = torch.nan
    with pytest.raises(NotDeployed, match="train it again, or load other weights"):
        deployed_layer(layer, "cuda-int8", None)


def test_sums_that_int32_does_not_hold_are_refused():
    layer = quantized_layer(nn.Linear(2**17 + 8, 1, bias=False), FIXED)
    layer.weight.data.fill_(-2.0)
    with pytest.raises(NotDeployed, match="sums of 131,080 products may reach 2,147,614,720, and"):
        deployed_layer(layer, "cuda-int8", None)
    layer.weight.data[0, :16] = 0.0
    with torch.no_grad():
        x = torch.full((1, 2**17 + 8), -8.0)
        assert deployed_layer(layer.eval(), "cuda-int8", None)(x).item() == (2**17 - 8) * 16.0


@pytest.mark.parametrize("target", KERNELS)
def test_an_old_gpu_is_named_with_what_is_needed(monkeypatch, target):
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    reason = why_not_on(device, target)
    assert f"target {target!r} needs a GPU of compute capability 8." in reason
    assert "but Tesla T4 has 7.5; use a newer GPU, or run on the CPU" in reason
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert why_not_on(device, target) is None
    assert why_not_on(torch.device("cpu"), target) is None
