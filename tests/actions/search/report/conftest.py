"""Searches to report on, made up by `synthetic.py`."""

import importlib.util
import json
from pathlib import Path

import pytest

from chop.actions.search.results.page import SearchRecord, report_page

SYNTHETIC = Path(__file__).parent / "synthetic.py"
spec = importlib.util.spec_from_file_location("synthetic", SYNTHETIC)
synthetic = importlib.util.module_from_spec(spec)
spec.loader.exec_module(synthetic)


@pytest.fixture(scope="session")
def search():
    """`search(trials, **changes)` is the content of a `search.json`."""
    return synthetic.search


@pytest.fixture
def page(search):
    """`page(trials, **changes)` is the text of its page."""
    return lambda *args, **kwargs: report_page(SearchRecord.model_validate(search(*args, **kwargs)))


@pytest.fixture
def project(search, tmp_path):
    """`project("name", trials, **changes)` is a project folder with a search in it."""

    def make(name, *args, **kwargs):
        folder = tmp_path / "out" / name / "software" / "search_ckpts"
        folder.mkdir(parents=True)
        (folder / "search.json").write_text(json.dumps(search(*args, **kwargs)))
        return tmp_path / "out" / name

    return make
