"""The fast ways give the bits of the format itself, and step aside where they must."""

import logging
import math
import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

from chop.numerics import FORMATS, fused
from chop.numerics.base import quantize_all
from chop.numerics.fast import cpu, cuda
from chop.numerics.fast.plans import plan_of
from chop.numerics.fast.tiling import tiling
from chop.numerics.straight_through import straight_through

FORMS = [
    FORMATS["integer"](8, 4),
    FORMATS["integer"](8, 4, floor=True),
    FORMATS["integer"](8, 4, rounding="up", overflow="wrap"),
    FORMATS["affine"](8, scale=0.1, zero_point=3),
    FORMATS["minifloat_ieee"](8, 4, 7),
    FORMATS["minifloat_denorm"](8, 4, 7),
    FORMATS["log"](8, 63),
    FORMATS["fp8"](4, 3),
    FORMATS["binary"](1, False, True),
    FORMATS["binary_residual"](1, False, True),
    FORMATS["block_fp"](8, 8, 127, (1, 16)),
    FORMATS["block_minifloat"](8, 4, 8, (16, 16)),
    FORMATS["block_log"](8, 8, 16, batched=True),
    FORMATS["mxint"](8, 32),
    FORMATS["mxfp"](4, 3, 32),
]


@pytest.fixture(autouse=True)
def _as_found(monkeypatch):
    before = fused.fused_mode()
    fused.set_fused("auto")
    monkeypatch.setattr(cpu, "PIECE", 256)  # so that small tests have pieces
    torch.compiler.reset()
    yield
    fused.set_fused(before)


def numbers(*shape):
    """Random bits: all exponents, NaN and infinities among them."""
    return torch.randint(-(2**31), 2**31, shape).to(torch.int32).view(torch.float32)


def same_bits(a, b):
    whole = {4: torch.int32, 2: torch.int16}[a.dtype.itemsize]
    return bool(((a.view(whole) == b.view(whole)) | (a.isnan() & b.isnan())).all())


def never(*_):
    raise AssertionError("not the way for this tensor")


@pytest.mark.sampled(29)
@pytest.mark.parametrize("fmt", FORMS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("shape", [(256, 128), (8, 32, 128), (33, 1001)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pieces_give_the_bits_of_the_whole(fmt, shape, dtype):
    x = numbers(*shape).to(dtype)
    assert same_bits(fmt(x), fmt.rounded(x))


@pytest.mark.parametrize("fmt", FORMS, ids=lambda fmt: fmt.name)
def test_large_contiguous_tensors_go_in_pieces(fmt):
    plan = plan_of(fmt, torch.device("cpu"))
    assert (cpu._in_pieces(plan, fmt, torch.randn(256, 128)) is None) == fmt.light
    assert cpu._in_pieces(plan, fmt, torch.randn(128, 256).t()) is None
    assert cpu._in_pieces(plan, fmt, torch.randn(8, 8)) is None


def test_formats_that_look_at_the_whole_tensor_are_left_whole(monkeypatch):
    monkeypatch.setattr(cpu.KERNELS, "library", None)
    monkeypatch.setattr(cpu.KERNELS, "_seen", -(2**40))
    for fmt in (
        FORMATS["binary"](1, False, True, scaled=True),
        FORMATS["ternary"](2, False, None, None, None),
    ):
        x = torch.randn(256, 128)
        assert cpu.round_on_cpu(fmt, x) is None
        assert torch.equal(fmt(x), fmt.rounded(x))


def test_blocks_that_fill_the_tensor_are_left_whole():
    fmt = FORMATS["block_fp"](8, 8, 127, (-1, -1))
    plan = plan_of(fmt, torch.device("cpu"))
    assert cpu._in_pieces(plan, fmt, torch.randn(256, 128)) is None


def test_a_derived_format_has_a_fast_path_only_with_a_plan_of_its_own():
    class Inherits(FORMATS["integer"]):
        pass

    class Plans(FORMATS["integer"]):
        def plan(self, device):
            return super().plan(device)

    device = torch.device("cpu")
    assert plan_of(FORMATS["integer"](8, 4), device) is not None
    assert plan_of(Inherits(8, 4), device) is None
    assert plan_of(Plans(8, 4), device) == plan_of(FORMATS["integer"](8, 4), device)


def test_a_derived_format_rounds_its_own_way():
    class Halved(FORMATS["integer"]):
        def round(self, x):
            return x / 2

    x = torch.randn(256, 128)
    assert torch.equal(Halved(8, 4)(x), x / 2)


def test_off_means_plain_operations(monkeypatch):
    fused.set_fused("off")
    monkeypatch.setattr(fused, "round_on_cpu", never)
    fmt = FORMATS["integer"](8, 4)
    x = torch.randn(256, 128)
    assert torch.equal(fmt(x), fmt.rounded(x))


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValueError, match="MASE_FUSED must be one of auto, off, on, not 'fast'"):
        fused.set_fused("fast")


@pytest.mark.slow
def test_the_environment_decides(after_imports):
    assert after_imports["fused"] == "off"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "on", "auto"])
def test_the_environment_knows_every_mode(mode):
    code = "from chop.numerics.fused import fused_mode; print(fused_mode())"
    run = [sys.executable, "-c", code]
    found = subprocess.run(run, env=os.environ | {"MASE_FUSED": mode}, capture_output=True)
    assert found.stdout.decode().strip() == mode


@pytest.mark.slow
def test_formats_load_neither_triton_nor_a_compiler(after_imports):
    compilers = {"triton", "torch._inductor", "torch._dynamo"}
    assert compilers.isdisjoint(after_imports["modules"])


def test_without_triton_there_are_no_kernels(monkeypatch, caplog):
    cuda._kernels.cache_clear()
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: None)
    with caplog.at_level(logging.DEBUG, logger="chop.numerics.fast.cuda"):
        assert cuda._kernels() is None
        assert cuda.round_on_cuda(FORMATS["integer"](8, 4), torch.randn(256, 128)) is None
    assert len(caplog.records) == 1
    cuda._kernels.cache_clear()


def test_a_broken_compiler_is_tried_once(monkeypatch, caplog):
    def work():
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(cuda, "_broken", False)
    monkeypatch.setattr(cuda, "_kernels", lambda: object())
    monkeypatch.setattr(cuda, "_round_elements", lambda *_: work())
    fmt, x = FORMATS["integer"](8, 4), torch.randn(256, 128)
    with caplog.at_level(logging.DEBUG, logger="chop.numerics.fast.cuda"):
        assert cuda.round_on_cuda(fmt, x) is None
        assert cuda.round_on_cuda(fmt, x) is None
    assert len(caplog.records) == 1
    assert "no C compiler" in caplog.text


class TestTracing:
    """Whoever looks at the operations gets to see plain ones."""

    @pytest.fixture(autouse=True)
    def _nothing_fused(self, monkeypatch):
        monkeypatch.setattr(fused, "round_on_cpu", never)

    @pytest.mark.parametrize("fmt", FORMS, ids=lambda fmt: fmt.name)
    def test_vmap(self, fmt):
        x = torch.randn(8, 64, 64)
        each = torch.stack([fmt.rounded(sample) for sample in x])
        assert torch.equal(torch.func.vmap(fmt)(x), each)

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("fmt", FORMS, ids=lambda fmt: fmt.name)
    def test_compiled_without_a_break(self, fmt):
        x = torch.randn(64, 64)
        compiled = torch.compile(fmt.quantize, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), fmt.rounded(x))

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
    @pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
    def test_compiled_for_any_shape(self):
        fmt, x = FORMATS["integer"](8, 4), torch.randn(64, 48)
        compiled = torch.compile(fmt.quantize, dynamic=True, fullgraph=True)
        assert torch.equal(compiled(x), fmt.rounded(x))  # its limits are no symbols of inductor

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("fmt", FORMS, ids=lambda fmt: fmt.name)
    def test_export(self, fmt):
        class Rounded(nn.Module):
            def forward(self, x):
                return fmt(x)

        x = torch.randn(64, 64)
        exported = torch.export.export(Rounded(), (x,))
        assert torch.equal(exported.module()(x), fmt.rounded(x))

    def test_make_fx(self):
        from torch.fx.experimental.proxy_tensor import make_fx

        fmt, x = FORMATS["integer"](8, 4), torch.randn(64, 64)
        assert torch.equal(make_fx(lambda given: fmt(given))(x)(x), fmt.rounded(x))

    def test_fake_and_meta_tensors(self):
        fmt = FORMATS["block_fp"](8, 8, 127, (1, 16))
        assert fmt(torch.empty(64, 64, device="meta")).shape == (64, 64)


class TestGradients:
    @pytest.mark.parametrize("fmt", FORMS, ids=lambda fmt: fmt.name)
    def test_identity_hands_the_gradient_on(self, fmt):
        x = torch.randn(64, 64, requires_grad=True)
        y, grad = fmt(x), torch.randn(64, 64)
        (found,) = torch.autograd.grad(y, x, grad)
        assert found.data_ptr() == grad.data_ptr()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.half])
    @pytest.mark.parametrize("limits", [(-1.0, 1.0), (0.0, 15.9375), (-8.0, 7.9375), (-0.7, 0.3)])
    def test_clip_includes_its_limits_and_nothing_beyond(self, dtype, limits):
        edges = torch.tensor(limits, dtype=dtype)
        far = torch.tensor(math.inf, dtype=dtype)
        x = torch.cat(
            [edges, edges.nextafter(far), edges.nextafter(-far), torch.zeros(1).to(dtype)]
        )
        x.requires_grad_()
        straight_through(x, torch.round, limits).sum().backward()
        inside = (x.double() >= limits[0]) & (x.double() <= limits[1])
        assert torch.equal(x.grad, inside.to(dtype))

    @pytest.mark.parametrize("ste", ["identity", "clip"])
    def test_functional_and_batched_gradients(self, ste):
        fmt = FORMATS["integer"](8, 4, ste=ste)
        x = 10 * torch.randn(8, 64)
        leaf = x.clone().requires_grad_()
        (fmt(leaf) ** 2).sum().backward()

        def loss(sample):
            return (fmt(sample) ** 2).sum()

        assert torch.equal(torch.func.grad(loss)(x), leaf.grad)
        assert torch.equal(torch.func.vmap(torch.func.grad(loss))(x), leaf.grad)

    # torch.compile instantiates autograd functions, and torch warns of that
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
    @pytest.mark.parametrize("ste", ["identity", "clip"])
    def test_compiled_gradients(self, ste):
        fmt = FORMATS["integer"](8, 4, ste=ste)
        x = (10 * torch.randn(8, 64)).requires_grad_()
        (expected,) = torch.autograd.grad((fmt(x) ** 2).sum(), x)
        compiled = torch.compile(fmt.quantize, backend="aot_eager", fullgraph=True)
        (found,) = torch.autograd.grad((compiled(x) ** 2).sum(), x)
        assert torch.equal(found, expected)


class TestTogether:
    """Several tensors go through one node of the graph, as each would alone."""

    FORMS = (
        FORMATS["integer"](8, 4, ste="clip"),
        FORMATS["integer"](4, 2),
        FORMATS["integer"](4, 2, ste="clip"),
    )

    def alone(self, tensors, grads):
        leaves = [x.clone().requires_grad_() for x in tensors]
        for fmt, x, grad in zip(self.FORMS, leaves, grads, strict=True):
            fmt(x).backward(grad)
        return [x.grad for x in leaves]

    def test_values_and_gradients(self):
        tensors, grads = ([10 * torch.randn(n) for n in (5, 6, 7)] for _ in range(2))
        leaves = [x.clone().requires_grad_() for x in tensors]
        found = quantize_all(list(zip(self.FORMS, leaves, strict=True)))
        assert all(
            torch.equal(y, fmt.rounded(x))
            for fmt, x, y in zip(self.FORMS, tensors, found, strict=True)
        )
        assert len({y.grad_fn for y in found}) == 1
        torch.autograd.backward(found, grads)
        for leaf, expected in zip(leaves, self.alone(tensors, grads), strict=True):
            assert torch.equal(leaf.grad, expected)

    def test_a_tensor_without_gradient_has_none_afterwards(self):
        x, w = torch.randn(5), torch.randn(5, requires_grad=True)
        b = torch.randn(5, requires_grad=True)
        found = quantize_all(list(zip(self.FORMS, (x, w, b), strict=True)))
        assert [y.requires_grad for y in found] == [False, True, True]
        found[1].sum().backward()  # nothing comes back through the other one
        assert w.grad is not None
        assert b.grad is None

    def test_what_is_no_tensor_or_has_no_format_is_left(self):
        x = torch.randn(5, requires_grad=True)
        found = quantize_all([(None, x), (self.FORMS[0], None), (self.FORMS[0], x)])
        assert found[0] is x
        assert found[1] is None
        assert torch.equal(found[2], self.FORMS[0].rounded(x.detach()))

    def test_a_format_that_quantizes_its_own_way_does(self):
        class Doubled(FORMATS["integer"]):
            def quantize(self, x):
                return 2 * x

        w, b = (torch.randn(5, requires_grad=True) for _ in range(2))
        found = quantize_all([(Doubled(8, 4), w), (self.FORMS[1], b)])
        assert torch.equal(found[0], 2 * w)

    def test_integers_are_refused(self):
        with pytest.raises(TypeError, match="rounds floating-point tensors"):
            quantize_all([(self.FORMS[1], torch.ones(3, dtype=torch.int64))])


class TestTiling:
    @pytest.mark.parametrize(
        ("shape", "block", "expected"),
        [
            ([64], [16], (1, 1, 64, 1, 16)),
            ([64, 70], [1, 16], (1, 64, 70, 1, 16)),
            ([64, 70], [64, 16], (1, 64, 70, 64, 16)),
            ([8, 64, 64], [1, 16, 16], (1, 512, 64, 16, 16)),
            ([8, 65, 64], [1, 16, 16], (8, 65, 64, 16, 16)),
            ([8, 6, 64], [1, 6, 64], (1, 1, 3072, 1, 384)),
            ([4, 64, 40], [1, 32, 1], (1, 256, 40, 32, 1)),
        ],
    )
    def test_dimensions_join(self, shape, block, expected):
        assert tiling(shape, block) == expected

    def test_what_three_dimensions_share_is_left_alone(self):
        assert tiling([5, 7, 9], [2, 2, 2]) is None
