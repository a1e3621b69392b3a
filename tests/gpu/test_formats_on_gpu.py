"""On a GPU every format gives the bits that it gives on the CPU, fused or not."""

import math

import pytest
import torch

from chop.numerics import FORMATS, fused
from chop.numerics.fast import cuda

pytestmark = pytest.mark.gpu

ELEMENTWISE = [
    *(("integer", p, {}) for p in ([8, 4], [64, 120], [16, -120], [1, 0], [32, 16], [24, 30])),
    ("affine", [8], {"scale": 0.1, "zero_point": 3}),
    ("affine", [16], {"scale": 2.0**-126, "signed": False}),
    ("affine", [32], {"scale": 1e-5}),
    ("integer", [8, 4], {"floor": True}),
    ("integer", [16, -120], {"floor": True}),
    ("integer", [8, 4], {"signed": False}),
    *(
        ("integer", p, {"rounding": rounding, "overflow": overflow, "signed": signed})
        for rounding in ("even", "up", "floor")
        for overflow in ("saturate", "symmetric", "wrap")
        for p, signed in (([8, 4], True), ([4, -2], False), ([64, 120], True), ([32, 0], False))
    ),
    *(("integer", [16, -120], {"rounding": "up", "overflow": o}) for o in ("saturate", "wrap")),
    *(("minifloat_ieee", p, {}) for p in ([8, 4, 7], [16, 5, 15], [16, 8, 127], [32, 8, 127])),
    *(("minifloat_ieee", p, {}) for p in ([9, 8, 127], [32, 1, 0], [2, 1, 0], [8, 4, -120])),
    *(("minifloat_ieee", p, {}) for p in ([8, 4, 140], [12, 8, 140])),
    *(("minifloat_denorm", p, {}) for p in ([8, 4, 7], [32, 8, 127], [3, 1, 0], [12, 8, 140])),
    *(("log", p, {}) for p in ([8, 63], [9, 127], [9, 140], [9, 0], [5, -100])),
    ("log", [4, 3], {"zero": True}),
    ("mixed_integer", [8, 4], {}),
    ("fp8", [4, 3], {}),
    ("fp8", [5, 2], {}),
    ("fp8", [4, 3], {"saturate": True}),
    ("binary", [1, False, True], {}),
    *(("binary_residual", [1, False, True], {"levels": n}) for n in (1, 2, 3)),
    ("ternary", [2, False, 1.0, None, None], {}),
    *(("scale_integer", [n], {}) for n in (2, 8, 24)),
    ("scale_integer", [8], {"signed": False}),
    ("scale_integer", [8], {"symmetric": True}),
]
BLOCKS = [
    *(("block_fp", p) for p in ([8, 8, 127], [24, 8, 127], [2, 8, 127], [12, 8, 140], [8, 3, 3])),
    *(("block_minifloat", p) for p in ([8, 4, 8], [8, 4, 4], [12, 6, 8], [32, 8, 8], [9, 7, 8])),
    *(("block_minifloat", p) for p in ([32, 1, 8], [2, 1, 8])),
    *(("block_log", p) for p in ([8, 8], [4, 8], [9, 8], [5, 3])),
    *(("mxint", p) for p in ([8], [24], [2])),
    *(("mxfp", p) for p in ([4, 3], [5, 2], [2, 1], [8, 22], [1, 0], [7, 5], [6, 22])),
]
LAYOUTS = [  # shape, block, batched
    ((64, 512), (1, 16), False),
    ((64, 512), (16, 16), False),
    ((3, 70), (1, 16), True),
    ((37, 150), (16, 16), False),
    ((300, 80), (16,), False),
    ((2, 1024, 64), (16,), True),
    ((4, 33, 65), (5, 7), True),
    ((2, 20000), (-1,), True),
    ((6, 5000), (-1,), True),
    ((6, 8192), (1, 4096), False),
    ((6, 10000), (1, 4096), False),
    ((4096, 512), (16,), False),
    ((3, 5000, 48), (16,), True),
    ((256, 300), (-1, -1), False),
    ((1500, 1024), (-1, -1), False),
    ((100,), (3,), False),
]


@pytest.fixture(autouse=True)
def _always_fused():
    before = fused.fused_mode()
    fused.set_fused("on")
    yield
    fused.set_fused(before)


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 2.0**-126, 3.4028235e38]
SPECIAL += [0.70710677, 0.7071068, 1.4142135, 1.4142137, 0.5, 1.5, 2.5, -0.5, 448, 464, 465, 480]


def numbers(shape, dtype=torch.float32):
    """Random bits, so all exponents; in part numbers of one size, so that blocks mean something."""
    n = math.prod(shape)
    whole = torch.int32 if dtype == torch.float32 else torch.int16
    info = torch.iinfo(whole)
    bits = torch.randint(info.min, info.max + 1, (n,), dtype=torch.int64).to(whole).view(dtype)
    scale = torch.randint(-140, 120, (1,)).float().exp2() if torch.rand(()) < 0.5 else 1.0
    x = torch.where(torch.rand(n) < torch.rand(()), bits, (torch.randn(n) * scale).to(dtype))
    x[: len(SPECIAL)] = torch.tensor(SPECIAL[:n]).to(dtype)
    return x[torch.randperm(n)].view(shape)


def same_bits(a, b):
    whole = torch.int32 if a.dtype == torch.float32 else torch.int16
    return bool(((a.view(whole) == b.view(whole)) | (a.isnan() & b.isnan())).all())


def check(fmt, x):
    expected = fmt.rounded(x)
    on_gpu = x.cuda()
    assert same_bits(fmt(on_gpu).cpu(), expected)
    eager = fmt.rounded(on_gpu).cpu()  # the sign of zero is the device's affair
    assert torch.equal(eager.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))


def is_fused(fmt, x):
    return cuda.round_on_cuda(fmt, x.cuda()) is not None


@pytest.mark.parametrize(("name", "precision", "more"), ELEMENTWISE)
def test_elementwise_formats_give_the_bits_of_the_cpu(name, precision, more):
    fmt = FORMATS[name](*precision, **more)
    assert is_fused(fmt, torch.randn(8))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for shape in ((64, 4096), (3, 1001)):
            check(fmt, numbers(shape, dtype))


@pytest.mark.parametrize("overflow", ["saturate", "symmetric", "wrap"])
@pytest.mark.parametrize("rounding", ["even", "up", "floor"])
def test_every_half_becomes_the_integer_that_it_is_on_the_cpu(rounding, overflow):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for width, frac_width, signed in ((8, 4, True), (12, -3, True), (6, 9, False), (1, 0, True)):
        if width == 1 and overflow == "symmetric":  # which holds only 0 and is refused
            continue
        fmt = FORMATS["integer"](width, frac_width, signed, rounding, overflow)
        for dtype in (torch.float16, torch.bfloat16):
            check(fmt, bits.view(dtype))
            check(fmt, bits.view(dtype).float())


@pytest.mark.parametrize(("name", "precision"), BLOCKS)
def test_block_formats_give_the_bits_of_the_cpu(name, precision):
    more = {"block_fp": {"carry": True}, "block_log": {"zero": True}}
    more |= {"mxint": {"ocp": True}, "mxfp": {"ocp": True}}
    for shape, block, batched in LAYOUTS:
        fmt = FORMATS[name](*precision, block, batched=batched)
        check(fmt, numbers(shape))
    for dtype in (torch.bfloat16, torch.float16):
        check(fmt, numbers((100,), dtype))
    fmt = FORMATS[name](*precision, (1, 32), **more.get(name, {}))
    assert is_fused(fmt, torch.randn(4, 64))
    check(fmt, numbers((64, 512)))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_mx_blocks_along_any_dimension(dim):
    check(FORMATS["mxfp"](4, 3, 32, block_dim=dim), numbers((64, 40, 96)))


def test_every_format_is_tested_here():
    tested = {name for name, *_ in ELEMENTWISE + BLOCKS}
    assert {FORMATS[name] for name in tested | {"float"}} == set(FORMATS.values())


MEANS = [
    FORMATS["binary"](1, False, True, scaled=True),
    FORMATS["binary"](1, False, False),
    FORMATS["ternary"](2, False, None, None, None),
    FORMATS["ternary"](2, True, None, None, None),
    FORMATS["ternary"](2, True, 1.0, None, None),
]
ROWS = [(64, 512), (3, 1001), (2, 5, 7, 9), (3000,), (40, 3), (7, 1), (130, 16), (5, 5000)]
ROWS += [(5, 16384), (3, 20000), (2, 8, 4096), (50000,), (1, 2**20)]


@pytest.mark.parametrize("fmt", MEANS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", ROWS)
def test_formats_with_means_give_the_bits_of_the_cpu(fmt, dtype, shape):
    for x in (numbers(shape, dtype), torch.randn(shape).to(dtype), torch.zeros(shape, dtype=dtype)):
        assert is_fused(fmt, x)
        check(fmt, x)


@pytest.mark.parametrize("fmt", [*MEANS, FORMATS["scale_integer"](8)])
def test_many_long_rows_give_the_bits_of_the_cpu(fmt, monkeypatch):
    monkeypatch.setattr(cuda, "MANY_ROWS", 1)
    for shape in ((3, 20000), (2, 2**16)):
        check(fmt, numbers(shape))


def test_scales_give_the_bits_of_the_cpu_for_millions_of_numbers():
    for length in (1, 7, 64, 1024, 5000, 16384, 30000):
        for width, symmetric in ((2, True), (8, False), (8, True), (16, True), (24, True)):
            fmt = FORMATS["scale_integer"](width, symmetric=symmetric)
            shape, scale = (2**19 // length, length), 2.0 ** float(torch.randint(-140, 120, ()))
            check(fmt, numbers(shape))
            check(fmt, torch.rand(shape) * scale)


def test_residual_signs_may_leave_the_operand_as_it_is():
    fmt = FORMATS["binary_residual"](1, False, True, residual_sign=False)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(64, 4096).to(dtype)
        assert not is_fused(fmt, x)
        assert same_bits(fmt(x.cuda()).cpu(), x)


@pytest.mark.parametrize(
    "arrange",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[1:, 3:],
        lambda x: x[:1].expand(64, -1),
        lambda x: x.view(4, 16, 16, 32).to(memory_format=torch.channels_last),
    ],
)
@pytest.mark.parametrize("name", ["integer", "block_fp"])
def test_any_arrangement_in_memory(arrange, name):
    fmt = FORMATS["integer"](8, 4) if name == "integer" else FORMATS[name](8, 8, 127, (1, 16))
    x = numbers((64, 512))
    assert same_bits(fmt(arrange(x.cuda())).cpu().contiguous(), fmt(arrange(x)).contiguous())


@pytest.mark.parametrize("block", [(1, 16), (16, 16)])
def test_gradients_pass_and_identity_costs_nothing(block):
    for fmt in (FORMATS["integer"](8, 4), FORMATS["block_fp"](8, 8, 127, block)):
        x = torch.randn(64, 512, device="cuda", requires_grad=True)
        y, grad = fmt(x), torch.randn(64, 512, device="cuda")
        (found,) = torch.autograd.grad(y, x, grad)
        assert found.data_ptr() == grad.data_ptr()


def test_clip_passes_gradients_within_the_range_only():
    fmt = FORMATS["integer"](8, 4, ste="clip")
    x = torch.tensor([-9.0, -8.0, 0.0, 7.9375, 7.938], device="cuda", requires_grad=True)
    fmt(x).sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 0]


def test_one_compilation_serves_all_widths():
    kernel = cuda._kernels().round_elements
    x = torch.randn(2**14, device="cuda")
    FORMATS["integer"](8, 4)(x)
    before = {device: len(entry[0]) for device, entry in kernel.device_caches.items()}
    for width in range(2, 33):
        FORMATS["integer"](width, width // 2)(x)
    assert before == {device: len(entry[0]) for device, entry in kernel.device_caches.items()}


def test_compiled_models_and_vmap_use_plain_operations():
    fmt = FORMATS["integer"](8, 4)
    x = torch.randn(64, 512, device="cuda")
    expected = fmt.rounded(x)
    compiled = torch.compile(fmt.quantize, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), expected)
    assert torch.equal(torch.func.vmap(fmt)(x), expected)


def test_a_captured_graph_replays():
    fmt = FORMATS["block_fp"](8, 8, 127, (1, 16))
    x = torch.randn(64, 512, device="cuda")
    fmt(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fmt(x)
    x.normal_()
    graph.replay()
    assert torch.equal(y, fmt.rounded(x))
