"""The networks of `benchmarks/networks.py`, which is a file and no package."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

NETWORKS = Path(__file__).parents[2] / "benchmarks" / "networks.py"


@pytest.fixture(scope="session")
def networks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("networks", NETWORKS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
