"""One server and one set of samples for all inputs; each input has a folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from .corpus import build
from .harness import Sandbox, Server, seeded


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


@pytest.fixture
def sandbox(
    server: Server, corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """A folder to run one command in, which is kept if a promise was broken."""
    sandbox = Sandbox(server, tmp_path_factory.mktemp("fuzz"), corpus)
    yield sandbox
    if sandbox.ending is not None and not sandbox.ending.problems:
        shutil.rmtree(sandbox.folder)


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    """Random numbers that depend on the test, on its `index` and on `--fuzz-seed`."""
    seed = request.config.getoption("--fuzz-seed", default=0)
    return seeded(request.node.originalname, request.node.callspec.params["index"], seed)
