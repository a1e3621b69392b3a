"""torch's fake_quantize judges the affine format, per tensor and per channel."""

import pytest
import torch

from chop.numerics.affine import Affine


def mixed(count):
    """Numbers of many magnitudes, and ties."""
    x = torch.randn(count) * 2.0 ** torch.randint(-12, 12, (count,))
    return torch.cat([x, torch.arange(-300, 300) / 4])


@pytest.mark.parametrize("scale", [2.0**e for e in (-20, -7, -4, 0, 3)])
@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_steps_that_are_powers_of_two_are_torchs_own(width, scale):
    x = mixed(2000) * scale
    for point in (0, 1, -2):
        fmt = Affine(width, scale=scale, zero_point=point)
        wanted = torch.fake_quantize_per_tensor_affine(x, scale, point, *fmt.codes)
        assert torch.equal(fmt(x), wanted)


@pytest.mark.parametrize("scale", [0.1, 0.003, 7.7])
def test_other_steps_differ_only_where_an_inverse_is_not_exact(scale):
    """Torch multiplies by 1 / scale, which may move a number across the middle of two codes."""
    x = torch.randn(20_000) * scale * 50
    fmt = Affine(8, scale=scale, zero_point=5)
    wanted = torch.fake_quantize_per_tensor_affine(x, scale, 5, *fmt.codes)
    found, exact = fmt(x), x.double() / torch.tensor(scale).double()
    other = found != wanted
    assert other.float().mean() < 1e-3
    middles = (exact - exact.floor() - 0.5).abs()
    assert (middles[other] < 1e-4).all()


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scales_per_channel_are_torchs_own(axis):
    x = torch.randn(4, 4, 4)
    scale, point = torch.tensor([0.5, 0.25, 2.0, 2.0**-6]), torch.tensor([0, 3, -4, 1])
    fmt = Affine(5, axis=axis, scale=scale.tolist(), zero_point=point.tolist())
    wanted = torch.fake_quantize_per_channel_affine(
        x, scale, point.to(torch.int32), axis % 3, *fmt.codes
    )
    assert torch.equal(fmt(x), wanted)
