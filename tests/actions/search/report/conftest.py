"""Searches to report on, made up by `synthetic.py`."""

import importlib.util
import json
import shutil
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


CHROMIUM = next(
    filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None
)
WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def browser(package):
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH: `apt-get install chromium`, or install Google Chrome")
    playwright = package("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def show(browser, search, tmp_path):
    """`show(trials, …)` opens a page, or `show(text=…)` that one.

    It may neither complain nor ask for anything else.
    """
    contexts, complaints, asked = [], [], []

    def run(trials=120, *, viewport=WIDE, scheme="light", **changes):
        file = tmp_path / "report.html"
        text = changes.pop("text", None)
        content = changes.pop("content", None) or search(trials, **changes)
        text = text or report_page(SearchRecord.model_validate(content))
        file.write_text(text, encoding="utf-8")
        context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        settle(page)
        return page

    yield run
    for context in contexts:
        context.close()
    assert not complaints
    asked = [url for url in asked if not url.startswith("blob:")]  # downloads
    assert {url.rpartition("/")[2] for url in asked} <= {"report.html"}


def settle(page):
    """Wait for the drawing that the next frame does."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
