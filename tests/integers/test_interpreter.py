"""The integer graph equals the float simulation, for every op, rounding, overflow and width."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chop.integers import Codes, LinearCodes, MaxPoolCodes, Scale

from .checking import (
    BY_NAME,
    CASES,
    OVERFLOWS,
    ROUNDINGS,
    RULES,
    cached,
    mismatches,
    prepare,
    quantised,
)


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("rounding", "overflow"), RULES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_codes_equal_the_float_simulation(case, rounding, overflow):
    assert mismatches(cached(case, rounding, overflow, 200)) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("rounding", "overflow"), RULES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_codes_equal_the_float_simulation_on_ten_thousand_vectors(case, rounding, overflow):
    assert mismatches(prepare(case, rounding, overflow, 10_000)) == 0


bits = st.integers(2, 10)
shifts = st.integers(-2, 9)


MIXES = {
    "case": st.sampled_from([case for case in CASES if not case.others]),
    "rounding": st.sampled_from(ROUNDINGS),
    "overflow": st.sampled_from(OVERFLOWS),
    "widths": st.fixed_dictionaries(
        {
            **dict.fromkeys(("data_in_width", "weight_width", "bias_width"), bits),
            **dict.fromkeys(("data_in_frac_width", "weight_frac_width", "bias_frac_width"), shifts),
        }
    ),
}


@given(**MIXES)
def test_codes_equal_the_float_simulation_for_any_mix_of_widths(case, rounding, overflow, widths):
    assert mismatches(prepare(case, rounding, overflow, 60, **widths)) == 0


@pytest.mark.slow
@given(**MIXES)
def test_any_mix_of_widths_on_ten_thousand_vectors(case, rounding, overflow, widths):
    assert mismatches(prepare(case, rounding, overflow, 10_000, **widths)) == 0


def every_code(width, frac, inputs=1):
    """All inputs of so many bits, and quarters of a step around them."""
    codes = torch.arange(-(2 ** (width - 1)), 2 ** (width - 1)).double()
    grid = torch.cartesian_prod(*[codes] * inputs).view(-1, inputs)
    return torch.cat([grid + offset for offset in (0, 0.25, 0.5)]) * 2.0**-frac


POINTWISE = {
    "relu": nn.ReLU(),
    "leaky_relu": nn.LeakyReLU(0.01),
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(-0.3, 0.9),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "gelu": nn.GELU(),
    "silu": nn.SiLU(),
    "hardswish": nn.Hardswish(),
    "softplus": nn.Softplus(),
    "elu": nn.ELU(),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("rounding", "overflow"), RULES)
@pytest.mark.parametrize("op", POINTWISE)
def test_pointwise_ops_are_exhaustively_equal_for_twelve_bits(op, rounding, overflow):
    config = {"name": "integer", "data_in_width": 12, "data_in_frac_width": 8}
    config |= {"data_out_width": 7, "data_out_frac_width": 5}
    config |= {"rounding": rounding, "overflow": overflow}
    graph = quantised(nn.Sequential(POINTWISE[op]), (1,), {"by": "type", op: {"config": config}})
    x = every_code(12, 8).float()
    with torch.no_grad():
        assert torch.equal(graph.to_integers()(x), graph.model(x.clone()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rounding", "overflow"), RULES)
def test_a_linear_layer_is_exhaustively_equal_for_twelve_bits(rounding, overflow):
    config = {"name": "integer", "data_in_width": 6, "data_in_frac_width": 3, "weight_width": 6}
    config |= {"weight_frac_width": 5, "data_out_width": 6, "data_out_frac_width": 2}
    config |= {"rounding": rounding, "overflow": overflow}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3))
    graph = quantised(model, (2,), {"by": "type", "linear": {"config": config}})
    x = every_code(6, 3, inputs=2).float()
    with torch.no_grad():
        assert torch.equal(graph.to_integers()(x), graph.model(x))


def test_a_batch_in_parts_gives_the_same_codes():
    case = cached(BY_NAME["conv2d"], "even", "saturate", 200)
    whole = case.integers.run(case.inputs)
    parts = [case.integers.run(part) for part in case.inputs.split(37)]
    assert whole.dtype == torch.int64
    assert torch.equal(whole, torch.cat(parts))


def test_codes_stay_within_the_bounds_of_the_interval_analysis():
    for name in ("conv2d", "leaky relu", "avg pool of nine", "mul", "batch norm", "sigmoid"):
        case = cached(BY_NAME[name], "even", "saturate", 200)
        for node, codes in case.integers.trace(case.inputs).items():
            described = case.integers.codes(node)
            assert (codes >= described.low).all(), (name, node)
            assert (codes <= described.high).all(), (name, node)
            signed_low = -(2 ** (described.width - 1)) if described.signed else 0
            assert described.lowest >= signed_low
            assert described.highest <= signed_low + 2**described.width - 1


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_gpu_gives_the_same_codes(case):
    prepared = prepare(case, "even", "saturate", 1000)
    on_gpu = prepared.integers.run(prepared.inputs.cuda())
    assert on_gpu.is_cuda
    assert torch.equal(on_gpu.cpu(), prepared.integers.run(prepared.inputs))


def test_accumulators_have_as_many_bits_as_their_weights_need():
    model = nn.Sequential(nn.Linear(3, 2, bias=False))
    model[0].weight.data = torch.tensor([[1.0, -1.0, 0.5], [0.25, 0.0, 0.0]])
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 0}
    config |= {"weight_width": 8, "weight_frac_width": 2}
    graph = quantised(model, (3,), {"by": "type", "linear": {"config": config}})
    codes = graph.to_integers().codes("_0")
    assert codes.low.tolist() == [4 * -128 - 4 * 127 - 2 * 128, -128]
    assert codes.high.tolist() == [4 * 127 + 4 * 128 + 2 * 127, 127]
    assert (codes.width, codes.signed) == (12, True)


def test_sums_of_more_than_53_bits_are_exact():
    source = torch.Generator().manual_seed(0)
    weight = torch.randint(-(2**13), 2**13, (4, 6), generator=source)
    bias = torch.tensor([1, -5, 2**50 + 1, 3])
    op = LinearCodes(weight, bias, Scale.power(0), 14, shift=1)
    low, high = torch.tensor(-(2**44)), torch.tensor(2**44 - 1)
    described = Codes.reaching((6,), low, high, Scale.power(0))
    op = op.fitted(described)
    x = torch.randint(-(2**44), 2**44, (50, 6), generator=source)
    x[0], x[1] = -(2**44), 2**44 - 1
    rows = [
        [
            2 * sum(a * b for a, b in zip(row, ws, strict=True)) + c
            for ws, c in zip(weight.tolist(), bias.tolist(), strict=True)
        ]
        for row in x.tolist()
    ]
    assert op.run(x).tolist() == rows
    result = op.result(described)
    assert result.lowest <= min(map(min, rows))
    assert max(map(max, rows)) <= result.highest


def test_a_max_pool_of_more_than_53_bits_is_exact():
    x = torch.tensor([[[2**60, 2**60 + 1, -(2**60) - 1, -(2**60)]]])
    op = MaxPoolCodes((2,), (2,), (0,), (1,), reach=2**60 + 1)
    assert op.run(x).tolist() == [[[2**60 + 1, -(2**60)]]]
