"""ml_dtypes judges the small floats, bit for bit: the formats of one number, and those of OCP MX.

The scales of blocks follow the OCP Microscaling Formats Specification 1.0, section 6.3, in numpy.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chop.numerics.fp8 import FP8
from chop.numerics.minifloat import MinifloatIEEE
from chop.numerics.mx import MXFP, MXInt

ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes: run `make test-all`")


def every_kind() -> np.ndarray:
    """All numbers of float16 and bfloat16, and 200,000 of float32 with random bits."""
    words = np.arange(2**16, dtype=np.uint32)
    halves = words.astype(np.uint16).view(np.float16).astype(np.float32)
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    return np.concatenate([halves, (words << 16).view(np.float32), bits.view(np.float32)])


def cast(x: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):  # numpy warns of what becomes infinite
        return x.astype(getattr(ml_dtypes, dtype)).astype(np.float32)


def assert_same_bits(found: torch.Tensor, wanted: np.ndarray) -> None:
    one, other = found.numpy(), np.ascontiguousarray(wanted)
    same = (one.view(np.uint32) == other.view(np.uint32)) | (np.isnan(one) & np.isnan(other))
    assert same.all(), (one[~same][:4], other[~same][:4])


@pytest.mark.parametrize(
    ("bits", "dtype", "largest", "end"),
    # what E4M3 makes of larger numbers, 448 or NaN, differs between versions of torch
    [((4, 3), "float8_e4m3fn", 448.0, 464.0), ((5, 2), "float8_e5m2", 57344.0, np.inf)],
)
def test_fp8(bits, dtype, largest, end):
    x = every_kind()
    x = x[~(np.abs(x) > end)]
    assert_same_bits(FP8(*bits)(torch.from_numpy(x)), cast(x, dtype))
    x = every_kind()
    inside = np.clip(x, -largest, largest)
    assert_same_bits(FP8(*bits, saturate=True)(torch.from_numpy(x)), cast(inside, dtype))


# without codes for infinity and NaN, and with them: as far as both have numbers
ALL_NUMBERS = {"float4_e2m1fn": (4, 2), "float6_e2m3fn": (6, 2), "float6_e3m2fn": (6, 3)}
NUMBERS_BELOW = {"float8_e3m4": (8, 3), "float8_e4m3": (8, 4), "float8_e5m2": (8, 5)}


@pytest.mark.parametrize("dtype", ALL_NUMBERS | NUMBERS_BELOW)
def test_minifloats(dtype):
    width, exponent = (ALL_NUMBERS | NUMBERS_BELOW)[dtype]
    fmt = MinifloatIEEE(width, exponent, 2 ** (exponent - 1) - 1)
    x = every_kind()
    x = x[~np.isnan(x)]
    largest = fmt.largest if dtype in ALL_NUMBERS else float(ml_dtypes.finfo(dtype).max)
    inside = np.clip(x, -largest, largest)
    assert_same_bits(fmt(torch.from_numpy(inside)), cast(inside, dtype))
    if dtype in ALL_NUMBERS:
        assert_same_bits(fmt(torch.from_numpy(x)), cast(inside, dtype))


ELEMENTS = {
    "float8_e4m3fn": (4, 3),
    "float8_e5m2": (5, 2),
    "float6_e2m3fn": (2, 3),
    "float6_e3m2fn": (3, 2),
    "float4_e2m1fn": (2, 1),
}


def blocks() -> np.ndarray:
    """Blocks of 32 of all magnitudes: normal numbers, and blocks that are zero or nearly so."""
    random = np.random.default_rng(0)
    x = random.normal(size=(4000, 32)) * 2.0 ** random.integers(-120, 121, (4000, 1))
    x *= 2.0 ** random.integers(-12, 1, x.shape)
    x[:8], x[8:16, 1:] = 0, 0
    x[16:200] = np.sign(x[16:200]) * 2.0 ** np.floor(np.log2(np.abs(x[16:200])))  # the ends
    return x.astype(np.float32)


def scales(x: np.ndarray, emax: int) -> np.ndarray:
    """The power of two of E8M0: that of the largest magnitude over that of the largest element."""
    largest = np.abs(x).max(axis=-1, keepdims=True)
    _, exponent = np.frexp(np.where(largest == 0, np.float32(2.0**-126), largest))
    return np.ldexp(np.float64(1), np.clip(exponent - 1 - emax, -127, 127))


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_mxfp(dtype):
    x, largest = blocks(), float(ml_dtypes.finfo(dtype).max)
    scale = scales(x, int(np.log2(largest)))
    elements = cast(np.clip(x / scale, -largest, largest), dtype)
    wanted = (elements * scale).astype(np.float32)
    fmt = MXFP(*ELEMENTS[dtype], block_size=[32], ocp=True)
    assert_same_bits(fmt(torch.from_numpy(x)), wanted)


def test_mxint8():
    x = blocks()
    scale = scales(x, 0)
    codes = np.clip(np.rint(x / scale * 64), -127, 127)
    wanted = (codes / 64 * scale).astype(np.float32)
    assert_same_bits(MXInt(8, block_size=[32], ocp=True)(torch.from_numpy(x)), wanted)
