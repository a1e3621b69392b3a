"""Seeded, offline, and with golden files: `pytest --update-golden` writes them anew."""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

settings.register_profile("dev", max_examples=10, deadline=None, derandomize=True)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
# a shell that runs the tests in the background has its children ignore Ctrl-C
signal.signal(signal.SIGINT, signal.default_int_handler)
# small tensors, and a test process for each core, which hands this on to those that it starts
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Let what a module draws while it is imported be the same in every run."""
    if isinstance(collector, pytest.Module):
        torch.default_generator.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `sampled(count)`, mark all cases but that many as slow."""
    cases: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("sampled"):
            cases[item.nodeid.partition("[")[0], marker.args[0]].append(item)
    for (_, count), group in cases.items():
        kept = {index * len(group) // count for index in range(count)}
        for index, item in enumerate(group):
            if index not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keep thousands of tests out of every later search for garbage."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    # torch.manual_seed would note a traceback for every kind of device that is not here
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


@pytest.fixture(autouse=True)
def _logger_as_found() -> Iterator[None]:
    """Whatever a test, or a fixture of a module, does to the `chop` logger is undone."""
    _reset_logger()
    yield
    _reset_logger()


def _reset_logger() -> None:
    logger = logging.getLogger("chop")
    logger.handlers[:], logger.propagate = [], True
    logger.setLevel(logging.NOTSET)


IMPORTS = """
import json, logging, sys
import chop.models, chop.passes
from chop.numerics import FORMATS
from chop.numerics.fused import fused_mode
chop.models.get_model_info("vgg7")
FORMATS["integer"](8, 4)
handlers = [repr(handler) for handler in logging.getLogger("chop").handlers]
print(json.dumps({"modules": [*sys.modules], "handlers": handlers, "fused": fused_mode()}))
"""


@pytest.fixture(scope="session")
def after_imports() -> dict[str, Any]:
    """What a process has loaded and set up once it knows passes, models and number formats."""
    code = [sys.executable, "-c", IMPORTS]
    environment = os.environ | {"MASE_FUSED": "off"}
    process = subprocess.run(code, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(process.stdout))


@pytest.fixture(scope="session")
def package() -> Callable[[str], Any]:
    """`package("pandas")` imports a package of the extra test-all, or skips the test."""

    def imported(name: str) -> Any:
        distribution = name.partition(".")[0]
        return pytest.importorskip(name, reason=f"needs {distribution}: run `make test-all`")

    return imported


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real data beside the clone, for the tests that compare with it."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("genuine data and published networks are not beside this clone")
    return folder


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], Path]]:
    """`small_disk(KiB)` is a folder with that much space: a real disk where one can be mounted.

    Elsewhere no file can be larger than that.
    """
    # not in tmp_path: should the tests be killed, pytest could not remove a disk there
    folder, before = Path(tempfile.mkdtemp()), resource.getrlimit(resource.RLIMIT_FSIZE)

    def make(kib: int) -> Path:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=755", "tmpfs", str(folder)]
        if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
            resource.setrlimit(resource.RLIMIT_FSIZE, (kib * 1024, before[1]))
        return folder

    yield make
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    shutil.rmtree(folder)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("name.txt", text)` compares with `golden/name.txt` beside the test."""

    def check(name: str, text: str) -> None:
        path = Path(request.path).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}; make it with pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture
def here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[object, str, str]]]:
    """`here("train", …)` runs the command in this process, in an empty folder."""
    from chop import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    changed = (signal.SIGTERM, signal.SIGPIPE)
    before = {number: signal.getsignal(number) for number in changed}

    def run(*args: object) -> tuple[object, str, str]:
        try:
            cli.main([str(arg) for arg in args])
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)
