"""The networks of `benchmarks/networks.py`, which is a file and no package."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from chop.ir import op_spec as ops

NETWORKS = Path(__file__).parents[2] / "benchmarks" / "networks.py"


@pytest.fixture(scope="session")
def networks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("networks", NETWORKS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def own_op_table(monkeypatch):
    """A copy of the table of ops, so that rows which a test adds are gone after it."""
    monkeypatch.setattr(ops.OPS, "_items", dict(ops.OPS._items))
    for index in ("_BY_MODULE", "_BY_FUNCTION", "_BY_NAME"):
        monkeypatch.setattr(ops, index, dict(getattr(ops, index)))
    yield
    ops.module_op.cache_clear()
