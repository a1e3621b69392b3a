"""The C++ kernels give the bits of the formats themselves, and nobody waits for them."""

import logging
import math
import os
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chop.numerics import FORMATS, compiled, fused
from chop.numerics.fast import cpu
from chop.numerics.fast.plans import plan_of

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, compiled.COMPILERS)), reason="needs a C++ compiler"
)


@pytest.fixture(autouse=True)
def _as_found():
    before = fused.fused_mode()
    yield
    fused.set_fused(before)


def same_bits(a, b):
    whole = {4: torch.int32, 2: torch.int16}[a.dtype.itemsize]
    a, b = a.contiguous(), b.contiguous()
    return bool(((a.view(whole) == b.view(whole)) | (a.isnan() & b.isnan())).all())


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 2.0**-126, 3.4028235e38]
SPECIAL += [0.70710677, 0.7071068, 1.4142135, 1.4142137, 0.5, 1.5, 2.5, -0.5, 448, 464, 465, 480]


def numbers(shape, seed, dtype=torch.float32):
    """Random bits, in part numbers of one size so that blocks mean something, and special ones."""
    draw = torch.Generator().manual_seed(seed)
    n = math.prod(shape)
    whole = torch.int32 if dtype == torch.float32 else torch.int16
    info = torch.iinfo(whole)
    bits = torch.randint(info.min, info.max + 1, (n,), dtype=torch.int64, generator=draw)
    scale = torch.randint(-140, 120, (1,), generator=draw).float().exp2()
    alike = (torch.randn(n, generator=draw) * scale).to(dtype)
    share = torch.rand((), generator=draw)
    x = torch.where(torch.rand(n, generator=draw) < share, bits.to(whole).view(dtype), alike)
    x[: len(SPECIAL)] = torch.tensor(SPECIAL[:n]).to(dtype)
    return x[torch.randperm(n, generator=draw)].view(shape)


def widths(low, high):
    return st.integers(low, high)


flags = st.booleans()
ELEMENTWISE = {
    "integer": st.builds(
        lambda width, frac, signed, rounding, overflow: FORMATS["integer"](
            max(width, 2) if signed and overflow == "symmetric" else width,
            frac, signed, rounding, overflow,
        ),
        widths(1, 64), widths(-120, 120), flags,
        st.sampled_from(["even", "up", "floor"]),
        st.sampled_from(["saturate", "symmetric", "wrap"]),
    ),
    "mixed_integer": st.builds(
        FORMATS["mixed_integer"], widths(2, 64), widths(-120, 120), flags,
        st.sampled_from(["even", "up", "floor"]), st.sampled_from(["saturate", "wrap"]),
    ),
    "affine": st.builds(
        lambda width, scale, point, **more: FORMATS["affine"](
            width, scale=scale, zero_point=point % 2**width - 2 ** (width - 1), **more
        ),
        widths(2, 16), st.floats(2.0**-126, 2.0**100, width=32), widths(0, 2**16),
        power_of_two=flags,
    ),
    "minifloat_ieee": st.builds(
        lambda e, f, bias: FORMATS["minifloat_ieee"](1 + e + f, e, bias),
        widths(1, 8), widths(0, 23), widths(-126, 140),
    ),
    "minifloat_denorm": st.builds(
        lambda e, f, bias: FORMATS["minifloat_denorm"](1 + e + f, e, bias),
        widths(1, 8), widths(1, 23), widths(-126, 140),
    ),
    "log": st.builds(FORMATS["log"], widths(2, 9), widths(-126, 140), zero=flags),
    "fp8": st.builds(
        lambda kind, saturate: FORMATS["fp8"](*kind, saturate=saturate),
        st.sampled_from([(4, 3), (5, 2)]), flags,
    ),
    "binary": st.just(FORMATS["binary"](1, False, True)),
    "binary_residual": st.builds(
        lambda levels: FORMATS["binary_residual"](1, False, True, levels=levels), widths(1, 3)
    ),
    "ternary": st.builds(
        lambda border: FORMATS["ternary"](2, False, None, None, None, threshold=border),
        st.floats(0, 100),
    ),
    "scale_integer": st.builds(
        FORMATS["scale_integer"], widths(2, 24), signed=flags, symmetric=flags
    ),
}  # fmt: skip
BLOCKS = {
    "block_fp": st.tuples(widths(2, 24), widths(1, 8), widths(-126, 140)),
    "block_minifloat": widths(1, 8).flatmap(
        lambda e: st.tuples(widths(e + 1, 32), st.just(e), widths(1, 8))
    ),
    "block_log": st.tuples(widths(2, 9), widths(1, 8)),
    "mxint": st.tuples(widths(2, 24)),
    "mxfp": st.tuples(widths(1, 8), widths(0, 22)),
}
REFINED = {"block_fp": "carry", "block_log": "zero", "mxint": "ocp", "mxfp": "ocp"}


@needs_compiler
class TestBits:
    @pytest.fixture(autouse=True)
    def _kernels_only(self, monkeypatch):
        """Whatever has a kernel goes through it."""
        fused.set_fused("on")
        monkeypatch.setattr(cpu, "THREAD", 256)  # so that small tests have threads

    @staticmethod
    def check(fmt, x):
        plan = plan_of(fmt, x.device)
        assert cpu.KERNELS.ready(x.numel(), wait=True)
        found = cpu._by_library(plan, fmt, x)
        assert found is not None
        assert found.stride() == torch.empty_like(x).stride() or plan.kind != "elements"
        assert same_bits(found, fmt.rounded(x))
        assert same_bits(fmt(x), found)

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("name", ELEMENTWISE)
    @given(data=st.data())
    def test_of_every_width(self, name, data):
        fmt = data.draw(ELEMENTWISE[name])
        shape = data.draw(st.lists(widths(1, 40), min_size=1, max_size=3))
        dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
        self.check(fmt, numbers(shape, data.draw(widths(0, 2**31)), dtype))

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("name", BLOCKS)
    @given(data=st.data())
    def test_of_every_width_and_block(self, name, data):
        size = st.one_of(widths(1, 40), st.just(-1))
        block = data.draw(st.lists(size, min_size=1, max_size=2))
        refined = {REFINED[name]: data.draw(flags)} if name in REFINED else {}
        fmt = FORMATS[name](*data.draw(BLOCKS[name]), block, batched=data.draw(flags), **refined)
        shape = data.draw(st.lists(widths(1, 70), min_size=1, max_size=2))
        dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
        self.check(fmt, numbers(shape, data.draw(widths(0, 2**31)), dtype))

    @pytest.mark.parametrize("dim", [0, 1, 2])
    def test_of_mx_blocks_along_any_dimension(self, dim):
        self.check(FORMATS["mxfp"](4, 3, 32, block_dim=dim), numbers((64, 40, 96), dim))

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
    def test_of_any_arrangement_in_memory(self, arrange, name):
        fmt = FORMATS["integer"](8, 4) if name == "integer" else FORMATS[name](8, 8, 127, (1, 16))
        self.check(fmt, arrange(numbers((64, 512), 0)))

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize(
        "fmt",
        [
            FORMATS["binary"](1, False, True, scaled=True),
            FORMATS["binary"](1, False, False),
            FORMATS["ternary"](2, False, None, None, None),
            FORMATS["ternary"](2, True, None, None, None),
            FORMATS["ternary"](2, True, 0.5, None, None),
        ],
    )
    @given(data=st.data())
    def test_of_formats_with_means(self, fmt, data):
        shape = data.draw(st.lists(widths(1, 40), min_size=1, max_size=4))
        dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
        self.check(fmt, numbers(shape, data.draw(widths(0, 2**31)), dtype))

    def test_of_every_sample_also_in_blocks_of_three_dimensions(self):
        fmt = FORMATS["block_fp"](8, 8, 127, (2, 2, 2))
        x = numbers((5, 7, 9), 0)
        assert cpu._by_library(plan_of(fmt, x.device), fmt, x) is None
        assert same_bits(fmt(x), fmt.rounded(x))


class Slow:
    """A build that ends when it is told to."""

    def __init__(self, monkeypatch, result):
        self.go, self.calls, self.result = threading.Event(), 0, result
        monkeypatch.setattr(compiled, "load", self)

    def __call__(self):
        self.calls += 1
        assert self.go.wait(30)
        return self.result()


@pytest.fixture
def kernels(monkeypatch):
    """As in a fresh process."""
    fresh = compiled.Kernels()
    monkeypatch.setattr(cpu, "KERNELS", fresh)
    fused.set_fused("auto")
    return fresh


LOAD = compiled.load
FORM = FORMATS["log"](8, 63)
EXAMPLES = [
    FORM,
    FORMATS["integer"](8, 4),
    FORMATS["mxint"](8, 32),
    FORMATS["binary"](1, False, True),
]


def test_few_numbers_build_nothing(kernels, monkeypatch):
    slow = Slow(monkeypatch, LOAD)
    for _ in range(100):
        FORM(torch.randn(1000))
    assert slow.calls == 0


@needs_compiler
def test_nobody_waits_for_the_build(kernels, monkeypatch):
    monkeypatch.setattr(compiled, "PAYS", 1000)
    slow = Slow(monkeypatch, LOAD)
    x = torch.randn(1000)
    assert torch.equal(FORM(x), FORM.rounded(x))  # while the build goes on
    assert kernels.library is None
    slow.go.set()
    kernels._builder.join()
    assert torch.equal(FORM(x), FORM.rounded(x))
    assert kernels.library is not None
    assert slow.calls == 1


@needs_compiler
def test_on_waits_for_it(kernels):
    fused.set_fused("on")
    FORM(torch.randn(8))
    assert kernels.library is not None


def test_off_builds_nothing(kernels, monkeypatch):
    slow = Slow(monkeypatch, LOAD)
    monkeypatch.setattr(compiled, "PAYS", 1)
    fused.set_fused("off")
    FORM(torch.randn(1000))
    assert slow.calls == 0


def refuses(error):
    def raises(*_, **__):
        raise error

    return raises


@pytest.mark.parametrize(
    "error", [RuntimeError("c++ failed: no such header"), PermissionError("read-only")]
)
def test_a_failed_build_is_tried_once(kernels, monkeypatch, caplog, error):
    monkeypatch.setattr(compiled, "load", refuses(error))
    monkeypatch.setattr(compiled, "PAYS", 1)
    x = torch.randn(1000)
    with caplog.at_level(logging.DEBUG, logger="chop.numerics.compiled"):
        for _ in range(2):
            assert torch.equal(FORM(x), FORM.rounded(x))
            kernels._builder.join()
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert "plain torch operations" in caplog.text


def test_on_warns_once_if_there_is_no_compiler(kernels, monkeypatch, caplog):
    fused.set_fused("on")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    x = torch.randn(1000)
    for _ in range(2):
        assert torch.equal(FORM(x), FORM.rounded(x))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "MASE_FUSED=on" in caplog.text
    assert "no C++ compiler was found; install g++ or clang++" in caplog.text


class TestTheKeptLibrary:
    @pytest.fixture(autouse=True)
    def _only_noted(self, monkeypatch):
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name else None)
        monkeypatch.setattr(compiled, "load_library", lambda *asked: asked)

    def test_has_a_function_for_every_rule(self):
        _, _, symbols = compiled.load()
        plans = {fmt.plan(torch.device("cpu")) for fmt in EXAMPLES} - {None}
        assert {f"round_{plan.rule}" for plan in plans} <= set(symbols)

    def test_is_built_exactly(self):
        _, command, _ = compiled.load()
        assert set(compiled.EXACT) <= set(command)
        assert not any("fast" in flag for flag in command)

    def test_follows_its_source_and_the_machine(self, monkeypatch, tmp_path):
        names = {compiled.load()[0], compiled.load()[0]}
        monkeypatch.setattr(compiled, "SOURCE", tmp_path / "other.cpp")
        compiled.SOURCE.write_text("int x;")
        names.add(compiled.load()[0])
        monkeypatch.setattr(compiled.platform, "machine", lambda: "another machine")
        names.add(compiled.load()[0])
        assert len(names) == 3


# rounds numbers, and ends as soon as the compiler has been started
ROUNDING = """
import subprocess, threading, torch
from chop.numerics import FORMATS, compiled

begun = threading.Event()

class Noted(subprocess.Popen):
    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        if options.get("start_new_session"):
            begun.set()

subprocess.Popen = Noted
compiled.PAYS = 1
FORMATS["log"](8, 63)(torch.ones(1000))
assert begun.wait(600)
"""


@pytest.mark.slow
@needs_compiler
def test_a_build_outlives_the_process_that_wanted_it(tmp_path):
    environment = os.environ | {"MASE_CACHE": str(tmp_path), "MASE_FUSED": "auto"}
    subprocess.run([sys.executable, "-c", ROUNDING], env=environment, check=True)
    for _ in range(6000):
        if [file.suffix for file in tmp_path.glob("libraries/*")] == [".so"]:
            return
        time.sleep(0.1)
    raise AssertionError("no library within ten minutes")


def test_a_number_that_lies_negated_in_memory_is_seen_as_it_is():
    fused.set_fused("on")
    x = torch.complex(torch.randn(9), torch.randn(9)).conj().imag
    assert x.is_neg()
    assert torch.equal(FORM(x), FORM(x.resolve_neg()))


def test_every_format_with_a_kernel_is_tested_here():
    assert {FORMATS[name] for name in ELEMENTWISE | BLOCKS} == {
        cls for cls in FORMATS.values() if "plan" in vars(cls)
    }


def test_the_source_is_installed_with_the_package():
    root = Path(__file__).parents[2]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {file for p in patterns["package-data"]["chop"] for file in (root / "chop").glob(p)}
    assert root / "chop" / "numerics" / "kernels" / "rounding.cpp" in found
