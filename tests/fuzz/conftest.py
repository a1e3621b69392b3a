"""One server and one set of samples for all inputs; each input has a folder of its own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from .corpus import build
from .harness import Sandbox, Server, seeded

# the server asks Linux about its threads, and forks a process in which torch is loaded
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-seed", type=int, default=0, help="try other inputs than the usual")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def corpus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of good files, to be damaged."""
    return build(server, tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """What the inputs are drawn by; a run of the whole suite does not know the option."""
    return int(request.config.getoption("--fuzz-seed", default=0))


@pytest.fixture
def sandbox(
    server: Server, corpus: Path, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """A folder to run one command in, which is kept if a promise was broken."""
    sandbox = Sandbox(server, tmp_path_factory.mktemp("fuzz"), corpus, seed)
    yield sandbox
    if sandbox.ending is not None and not sandbox.ending.problems:
        shutil.rmtree(sandbox.folder)


@pytest.fixture
def random(request: pytest.FixtureRequest, seed: int) -> Random:
    """Random numbers that depend on the test, on its `index` and on `--fuzz-seed`."""
    return seeded(request.node.originalname, request.node.callspec.params["index"], seed)
