"""Files in public layouts, and a folder for the cache."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def layouts():
    """The writers of `layouts.py`."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("layouts.py"))))


@pytest.fixture(scope="session")
def jets(layouts):
    """A thousand jets, genuine ones if they are at hand."""
    return layouts.jets()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("MASE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
