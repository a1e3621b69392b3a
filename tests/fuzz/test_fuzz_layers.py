"""Saved layers with tensors of other shapes, types and values, run by the C++ kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chop.numerics.compiled import find_compiler

from . import layers
from .harness import ENVIRONMENT

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")

FEW, MANY, SANITIZED = 36, 1440, 180
PLANTED = 253  # an input for which a kernel writes behind a tensor if nothing is checked


def endings(seed: int, first: int, count: int, *flags: str, **environment: str) -> dict[int, Any]:
    """Return what the inputs were and how they ended, by their numbers."""
    numbers = (f"--seed={seed}", f"--first={first}", f"--count={count}")
    done = subprocess.run(
        [sys.executable, "-P", layers.__file__, *numbers, *flags],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(layers.ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    found = {each["number"]: each for each in layers.lines(done.stdout)}
    assert len(found) == count, done.stderr
    for each in found.values():
        said = done.stderr.partition("ERROR: ")[2] if each["ending"].startswith("crash") else ""
        each["stderr"] = said[:2000]
    return found


def check(found: dict[int, Any]) -> None:
    """Fail for inputs that crashed or gave a traceback, unless none is accepted at all."""
    bad = [each for each in found.values() if not each["ending"].startswith(("loaded", "refused"))]
    assert not bad, bad[:3]
    counts = Counter(each["ending"][:7] for each in found.values())
    assert min(counts["loaded"], counts["refused"]) > len(found) / 5, counts


@pytest.fixture(scope="module")
def asan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a program whose kernels are built for AddressSanitizer."""
    homes = [_path_of(name) for name in ("libasan.so", "libstdc++.so.6")]
    if None in homes:
        pytest.skip("the compiler has no AddressSanitizer")
    return {
        "LD_PRELOAD": " ".join(map(str, homes)),  # torch throws by libstdc++
        "ASAN_OPTIONS": "detect_leaks=0",
        "MASE_CACHE": str(tmp_path_factory.mktemp("asan")),
    }


def _path_of(library: str) -> Path | None:
    command = [str(find_compiler()), f"-print-file-name={library}"]
    path = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    return path if path.is_absolute() and path.exists() else None


def test_a_saved_layer_is_loaded_or_refused(seed: int) -> None:
    check(endings(seed, 0, FEW))


@pytest.mark.slow
def test_many_saved_layers_are_loaded_or_refused(seed: int) -> None:
    check(endings(seed, FEW, MANY))


@pytest.mark.slow
def test_no_saved_layer_makes_a_kernel_leave_its_tensors(seed: int, asan: dict[str, str]) -> None:
    check(endings(seed, 0, SANITIZED, "--sanitize", **asan))


@pytest.mark.slow
def test_a_kernel_that_leaves_its_tensors_is_noticed(asan: dict[str, str]) -> None:
    (found,) = endings(0, PLANTED, 1, "--sanitize", "--unchecked", **asan).values()
    assert found["ending"].startswith("crash"), found
    assert found["stderr"].startswith("AddressSanitizer: heap-buffer-overflow"), found
