"""Block formats against a slow reference: exact fractions, one block after the other."""

import bisect
import itertools
import math
from fractions import Fraction

import pytest
import torch

from chop.numerics import FORMATS
from chop.numerics.block_fp import BlockFP
from chop.numerics.block_log import BlockLog
from chop.numerics.block_minifloat import BlockMinifloat
from chop.numerics.blocks import BlockFormat, from_tiles, tile_amax, to_tiles
from chop.numerics.log import Log
from chop.numerics.minifloat import MinifloatIEEE
from chop.numerics.mx import MXFP, MXInt

NAN, INF = float("nan"), float("inf")
LARGEST = torch.finfo(torch.float32).max


def power(exponent):
    return Fraction(2) ** exponent


def floor_log2(value):
    return math.frexp(float(value))[1] - 1


def clamp(value, low, high):
    return max(low, min(high, value))


def fixed(value, step, low, high):
    return clamp(round(value / step), low, high) * step


def of_grid(value, positive):
    """The nearest of a list of magnitudes from zero, ties to the even code, with its sign."""
    size = min(abs(value), positive[-1])
    above = bisect.bisect_left(positive, size)
    if positive[above] == size:
        return math.copysign(1, value) * size
    down, up = size - positive[above - 1], positive[above] - size
    code = above - 1 if down < up or (down == up and above % 2) else above
    return (-1 if value < 0 else 1) * positive[code]


def block_fp(fmt, values, largest):
    """The smallest exponent above the largest element; with `carry`, also after rounding."""
    codes = 2 ** (fmt.width - 1) - 1
    low, high = -fmt.exponent_bias, 2**fmt.exponent_width - 1 - fmt.exponent_bias
    for exponent in range(low, min(high, 128) + 1):
        step = power(exponent - fmt.width + 1)
        if (round(largest / step) if fmt.carry else largest / step) < codes + 1:
            break
    return [fixed(value, step, -codes, codes) for value in values]


def mxint(fmt, values, largest):
    exponent = clamp(floor_log2(largest), -127, 127) if largest else -127
    if not fmt.ocp and power(exponent) < largest:
        exponent = min(exponent + 1, 127)
    codes = 2 ** (fmt.width - 1) - 1
    if fmt.ocp:
        return [fixed(v, power(exponent - fmt.width + 2), -codes, codes) for v in values]
    return [fixed(v, power(exponent - fmt.width + 1), -codes - 1, codes) for v in values]


OCP_LARGEST = {(4, 3): 448, (5, 2): 57344, (2, 3): Fraction(15, 2), (3, 2): 28, (2, 1): 6}


def mxfp(fmt, values, largest):
    e, f = fmt.exponent_width, fmt.frac_width
    bias = 2 ** (e - 1) - 1
    normal = [
        (1 + Fraction(m, 2**f)) * power(k - bias) for k in range(1, 2**e) for m in range(2**f)
    ]
    grid = [Fraction(m, 2**f) * power(1 - bias) for m in range(2**f)] + normal
    if fmt.ocp:
        grid = [value for value in grid if value <= OCP_LARGEST[e, f]]
    highest = floor_log2(grid[-1])
    scale = power(clamp(floor_log2(largest) - highest, -127, 127) if largest else -127)
    return [of_grid(value / scale, grid) * scale for value in values]


def block_minifloat(fmt, values, largest):
    top = 2**fmt.exponent_width - 1
    exponent = floor_log2(largest) if largest else -1000
    bias = clamp(top - exponent, 0, 2**fmt.exponent_bias_width - 1)
    unbiased = MinifloatIEEE(fmt.width, fmt.exponent_width, 0).values()
    grid = [Fraction(value) / power(bias) for value in unbiased.tolist() if value >= 0]
    return [of_grid(value, grid) for value in values]


def block_log(fmt, values, largest):
    top = 2 ** (fmt.width - 1) - 1
    exponent = -1000
    if largest:
        exponent = floor_log2(largest)
        exponent += power(exponent) < largest
    bias = clamp(top - exponent, 0, 2**fmt.exponent_bias_width - 1)

    def nearest(value):
        if value == 0:
            return 0 if fmt.zero else power(max(-bias, -149))
        k = floor_log2(abs(value))
        k += value * value > power(2 * k + 1)
        return math.copysign(1, value) * power(clamp(clamp(k, -bias, top - bias), -149, 127))

    return [nearest(value) for value in values]


REFERENCES = {
    BlockFP: block_fp,
    MXInt: mxint,
    MXFP: mxfp,
    BlockMinifloat: block_minifloat,
    BlockLog: block_log,
}


def test_every_block_format_has_a_reference():
    assert set(REFERENCES) == {cls for cls in FORMATS.values() if issubclass(cls, BlockFormat)}


def tiles(fmt, shape):
    """Index tuples of each block, from the rules as SPEC-4 tells them."""
    rank = len(shape)
    sizes = list(fmt.block_size)
    if hasattr(fmt, "block_dim") and len(sizes) == 1 and rank:
        full = [1] * rank
        full[fmt.block_dim] = sizes[0]
    else:
        # without a size: the last two dimensions are taken whole, those before them stay apart
        full = [1] * rank + [-1] * (2 - len(sizes)) + sizes
        full = full[len(full) - rank :]
        if fmt.batched:  # samples stay apart, and tiles are of the last two dimensions
            for i in range(rank - 1):
                full[i] = 1 if i == 0 or i < rank - 2 else full[i]
    full = [dim if size == -1 else size for size, dim in zip(full, shape, strict=True)]
    starts = itertools.product(
        *(range(0, dim, size) for dim, size in zip(shape, full, strict=True))
    )
    for start in starts:
        ranges = [
            range(s, min(s + size, dim)) for s, size, dim in zip(start, full, shape, strict=True)
        ]
        yield list(itertools.product(*ranges))


def reference(fmt, x):
    result = x.clone()
    for indices in tiles(fmt, tuple(x.shape)):
        known = [i for i in indices if not x[i].isnan()]
        values = [Fraction(clamp(x[i].item(), -LARGEST, LARGEST)) for i in known]
        largest = max((abs(value) for value in values), default=Fraction(0))
        if not values:
            continue
        rounded = REFERENCES[type(fmt)](fmt, values, largest)
        for i, value in zip(known, rounded, strict=True):
            result[i] = float(value)
    return result


def same(a, b):
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def samples(shape, seed):
    """Numbers of all sizes, with what is difficult strewn in."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    if seed % 3 == 1:  # far apart
        x = x * 2.0 ** torch.randint(-30, 30, shape, generator=generator)
    if seed % 3 == 2:  # powers of two, halves and quarters of steps
        exponents = torch.randint(-6, 6, shape, generator=generator)
        x = (x * 4).round() / 4 * 2.0**exponents
    return x


ROW = torch.tensor(
    [
        [0.0, 0.0, 0.0, 0.0],
        [NAN, 1.0, -3.0, 0.5],
        [NAN, NAN, NAN, NAN],
        [INF, 1.0, -INF, 1e38],
        [3e38, -3e38, 1e38, 1e-38],
        [LARGEST, -LARGEST, 2.0**127, 2.0**103],
        [2.0**127, -(2.0**126), 2.0**120, 1.0],
        [1e-45, -3e-45, 0.0, 2.0**-140],
        [2.0**-126, 2.0**-127, -(2.0**-149), 0.0],
        [1.0, 0.5, 0.25, 0.125],
        [1.0, -1.0, -0.99999, 0.999999],
        [0.9999999, 0.1, 1e-10, -0.0],
        [2.0**-60, 2.0**-70, 2.0**-80, 2.0**60],
    ]
)

KINDS = [
    *((BlockFP, kind) for kind in [(4, 8, None), (7, 8, 127), (12, 8, 120)]),
    (BlockFP, (8, 3, 2)),  # an exponent field that saturates on both sides
    *((BlockFP, kind) for kind in [(2, 8, None), (24, 8, 140)]),
    *((BlockMinifloat, kind) for kind in [(8, 4, 4), (8, 4, 8), (6, 2, 8), (6, 3, 1)]),
    *((BlockLog, kind) for kind in [(4, 8), (8, 4), (3, 1), (9, 8)]),
    *((MXInt, (width,)) for width in (4, 8, 2, 24)),
    *((MXFP, kind) for kind in [(4, 3), (5, 2), (2, 3), (3, 2), (2, 1), (1, 2), (8, 1)]),
]
REFINED = [
    *(MXFP(*kind, [4], ocp=True) for kind in OCP_LARGEST),
    MXInt(8, [4], ocp=True),
    MXInt(4, [4], ocp=True),
    BlockLog(4, 8, [4], zero=True),
    *(BlockFP(*fields, [1, 4], carry=True) for cls, fields in KINDS if cls is BlockFP),
]
FORMATS_OF_ROWS = [*(cls(*fields, [1, 4]) for cls, fields in KINDS), *REFINED]


@pytest.mark.parametrize("fmt", FORMATS_OF_ROWS, ids=repr)
class TestRows:
    @pytest.mark.sampled(11)
    def test_difficult_rows_are_rounded_as_the_reference_does(self, fmt):
        assert same(fmt(ROW), reference(fmt, ROW)), list(
            zip(ROW.tolist(), fmt(ROW).tolist(), reference(fmt, ROW).tolist(), strict=True)
        )

    @pytest.mark.sampled(11)
    @pytest.mark.parametrize("seed", range(3))
    def test_ordinary_rows_are_rounded_as_the_reference_does(self, fmt, seed):
        x = samples((25, 9), seed)
        assert same(fmt(x), reference(fmt, x))

    @pytest.mark.sampled(13)
    def test_in_double_precision_too(self, fmt):
        x = samples((25, 9), 1)
        assert torch.equal(fmt(x.double()).float(), fmt(x))

    @pytest.mark.sampled(13)
    def test_finite_numbers_stay_finite(self, fmt):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            top = torch.finfo(dtype).max
            x = torch.tensor([[top, -top, 1.0, 0.3], [-top, 0.0, 2e-7, 0.0]], dtype=dtype)
            assert fmt(x).isfinite().all()
            assert fmt(torch.full((4,), float("inf"), dtype=dtype)).isfinite().all()


SHAPES = [(), (1,), (7,), (5, 6), (1, 9), (3, 4, 5), (2, 3, 4, 5), (2, 1, 3, 2, 4)]
SIZES = [[4], [2, 3], [1, 4], [-1], [2, -1], [-1, 2], [100], [2, 1, 3], [1, 2, 3, 1, 2, 5]]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("cls", "fields"), [(BlockFP, (5, 8, None)), (MXFP, (2, 3))])
def test_any_rank_and_any_blocking(cls, fields, shape, sizes, batched):
    fmt = cls(*fields, sizes, batched=batched)
    x = samples(shape, 1)
    assert same(fmt(x), reference(fmt, x))


@pytest.mark.parametrize("block_dim", [0, 1, 2, -1, -2, -3])
def test_microscaling_blocks_run_along_any_dimension(block_dim):
    fmt = MXInt(5, [3], block_dim=block_dim)
    x = samples((4, 5, 7), 1)
    assert same(fmt(x), reference(fmt, x))
    moved = MXInt(5, [3])(x.movedim(block_dim, -1)).movedim(-1, block_dim)
    assert torch.equal(fmt(x), moved)


def test_a_dimension_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"block_dim must be one of the tensor's 1 dimensions"):
        MXInt(8, [4], block_dim=1)(torch.ones(3))


def all_blocks_of_two(step):
    """All pairs of multiples of `step` up to 2, with both signs."""
    values = torch.arange(-2, 2 + step, step)
    return torch.cartesian_prod(values, values)


@pytest.mark.parametrize("width", range(2, 7))
@pytest.mark.parametrize("carry", [False, True])
def test_all_small_blocks_are_rounded_by_a_step_at_most(width, carry):
    fmt = BlockFP(width, 8, None, [1, 2], carry=carry)
    x = all_blocks_of_two(1 / 16)
    assert torch.equal(fmt(fmt(x)), fmt(x))
    error, largest = (fmt(x) - x).abs().amax(-1), x.abs().amax(-1)
    step = 2.0 ** (torch.frexp(largest).exponent - width + 1)
    assert (error <= step).all()  # of the exponent of the largest element, with either rule
    if not carry:
        saturated = largest > (2 ** (width - 1) - 1) * step
        assert (error[~saturated] <= step[~saturated] / 2).all()


@pytest.mark.slow
@pytest.mark.parametrize("width", range(2, 7))
@pytest.mark.parametrize("carry", [False, True])
def test_all_small_blocks_are_rounded_as_the_reference_does(width, carry):
    fmt, x = BlockFP(width, 8, None, [1, 2], carry=carry), all_blocks_of_two(1 / 16)
    assert same(fmt(x), reference(fmt, x))


def test_raising_the_exponent_of_a_block_costs_all_its_other_elements():
    x = torch.tensor([[7.92, *(0.25 * n + 0.25 for n in range(15))]])  # multiples of the step
    saturated = BlockFP(6, 8, None, [1, 16])
    raised = BlockFP(6, 8, None, [1, 16], carry=True)
    assert saturated(x)[0, 0] == 7.75
    assert raised(x)[0, 0] == 8
    assert torch.equal(saturated(x)[0, 1:], x[0, 1:])
    assert not torch.equal(raised(x)[0, 1:], x[0, 1:])


@pytest.mark.parametrize("carry", [False, True])
def test_gradients_of_saturated_elements_pass(carry):
    x = torch.tensor([7.92, 0.3, -7.99, 0.0], requires_grad=True)
    BlockFP(6, 8, None, [4], carry=carry)(x).backward(torch.arange(1.0, 5.0))
    assert x.grad.tolist() == [1, 2, 3, 4]


def test_weights_are_blocked_across_rows_and_activations_are_not():
    fmt = BlockFP(4, 8, None, [16])
    x = torch.tensor([[1.0, 0.3], [64.0, 0.3]])
    assert fmt.for_operand("weight")(x).tolist() == [[0.0, 0.0], [64.0, 0.0]]
    assert fmt.for_operand("data_in")(x).tolist() == [[1.0, 0.25], [64.0, 0.0]]
    assert fmt.for_operand("data_in")(x[0]).tolist() == [1.0, 0.25]


@pytest.mark.parametrize("operand", ["data_in", "data_out"])
@pytest.mark.parametrize("shape", [(4, 32), (4, 3, 32), (4, 3, 8, 8)])
def test_one_sample_never_changes_another(operand, shape):
    x = torch.randn(shape)
    louder = x.clone()
    louder[1] *= 1e4
    for cls, fields in ((BlockFP, (4, 8, None)), (BlockMinifloat, (6, 2, 4)), (BlockLog, (4, 6))):
        fmt = cls(*fields, [16]).for_operand(operand)
        assert torch.equal(fmt(x)[0], fmt(louder)[0])


@pytest.mark.parametrize("sizes", [[16], [1, 16], [2, 2]])
def test_filters_of_a_convolution_do_not_share(sizes):
    fmt = BlockFP(4, 8, None, sizes).for_operand("weight")
    weight = torch.randn(4, 3, 3, 3)
    louder = weight.clone()
    louder[1] *= 1e4
    assert torch.equal(fmt(weight)[0], fmt(louder)[0])


def test_block_maxima_are_those_of_each_tile():
    x = torch.arange(12.0).reshape(3, 4) - 5
    tiles = to_tiles(x, [2, 3])
    assert tile_amax(tiles).flatten().tolist() == [5.0, 2.0, 5.0, 6.0]
    assert torch.equal(from_tiles(tiles, x.shape), x)


@pytest.mark.parametrize(
    ("fmt", "shape", "bits"),
    [
        (BlockFP(7, 8, 127, [1, 16]), (32, 64), 7 + 8 / 16),
        (BlockFP(7, 8, 127, [16]), (32, 64), 7 + 8 / (32 * 16)),  # all rows share
        (BlockFP(7, 8, 127, [16], batched=True), (32, 64), 7 + 8 / 16),
        (BlockFP(7, 8, 127, [1, 16]), (32, 17), 7 + 8 * 2 / 17),  # ragged
        (BlockFP(7, 8, 127, [-1]), (32, 17), 7 + 8 / (32 * 17)),
        (BlockFP(7, 8, 127, [1, 16]), (64, 32, 3, 3), 7 + 8 / 3),
        (BlockMinifloat(8, 4, 3, [2, 2]), (4, 4), 8 + 3 / 4),
        (BlockLog(4, 6, [8]), (8,), 4 + 6 / 8),
        (BlockLog(4, 6, [8], zero=True), (8,), 5 + 6 / 8),
        (MXInt(8, [32]), (4, 64), 8 + 8 / 32),
        (MXFP(4, 3, [32]), (4, 48), 8 + 8 * 2 / 48),
        (MXFP(2, 1, [32], block_dim=0), (64, 3), 4 + 8 / 32),
        (MXFP(2, 1, [32]), (), 12),
    ],
)
def test_storage_counts_every_shared_exponent(fmt, shape, bits):
    assert fmt.average_bits(shape) == pytest.approx(bits, rel=1e-15)


def test_full_blocks_are_what_bits_says():
    assert BlockFP(7, 8, 127, [4, 4]).bits == 7 + 8 / 16
    assert MXFP(4, 3, 32).bits == 8.25
    assert BlockLog(4, 6, [-1]).bits == 4


def test_a_block_of_one_is_the_elementwise_format():
    x = torch.randn(100).clamp(-1, 1)
    assert torch.equal(BlockLog(4, 8, [1])(x), Log(9, 127)(x))
