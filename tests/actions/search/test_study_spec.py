"""A study is set up once, and its page is made of what is in memory."""

import sys

import pytest

from chop.actions.search.spec.settings import settings_of

from .test_parent import FILE


def test_the_tables_are_checked_once_even_if_the_parent_is_trained_first(here, tmp_path):
    calls = []

    def count(frame, event, _):
        if event == "call" and frame.f_code is settings_of.__code__:
            calls.append(frame.f_lineno)

    file = tmp_path / "a.toml"
    file.write_text(FILE.replace("max_epochs = 3", "max_epochs = 1"))
    sys.setprofile(count)
    try:
        code, _, said = here("search", "--config", file, "--project-dir", tmp_path, "--no-progress")
    finally:
        sys.setprofile(None)
    assert code == 0, said
    assert "Training the parent" in said
    assert len(calls) == 1


@pytest.mark.slow
def test_the_page_of_a_search_is_that_of_its_file(here, searches):
    """Which `ch report` reads; one trial fails."""
    setup = "n_trials = 5\nsampler = 'random'"
    searches.run(searches.config(setup, odd="what = 'raise'\nat = 2"))
    page = searches.results() / "report.html"
    from_memory = page.read_bytes()
    page.unlink()
    code, _, said = here("report", "p", "--project-dir", searches.folder / "out")
    assert code == 0, said
    assert b"the planted error" in from_memory
    assert page.read_bytes() == from_memory
