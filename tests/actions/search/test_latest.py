"""Which search of a folder is the latest, whatever the clock says."""

import datetime
import json
import os
import time

import pytest

from .conftest import config_text, search_words


class Folder:
    """A project in which several searches are run one after the other."""

    def __init__(self, folder, checkpoint, here):
        self.folder, self.checkpoint, self._here = folder, checkpoint, here
        self.results = folder / "out" / "p" / "software" / "search_ckpts"

    def search(self, *flags, seed=1, sampler="random"):
        file = self.folder / "a.toml"
        text = config_text(f"n_trials = 3\nsampler = '{sampler}'")
        file.write_text(text.replace("seed = 42", f"seed = {seed}"))
        code, _, said = self._here(*search_words(file, self.checkpoint, *flags))
        assert code == 0, said
        return said

    def page(self):
        return json.loads((self.results / "search.json").read_text())


@pytest.fixture
def folder(tmp_path, checkpoint, here):
    return Folder(tmp_path, checkpoint, here)


def set_back(path, days):
    moment = time.time() - 86_400 * days
    os.utime(path, (moment, moment))


@pytest.fixture
def twice(folder):
    """Two searches, the second of which has the older files."""
    folder.search(seed=1)
    first = (folder.results / "log.json").read_bytes()
    assert "Moved the results of the earlier search to" in folder.search(seed=2)
    assert (folder.results / "search" / "log.json").read_bytes() == first
    assert folder.page()["study"] == "search-1"
    set_back(folder.results / "search-1.journal", days=10)
    set_back(folder.results / "search.journal", days=1)
    return folder


def test_apply_builds_a_design_of_the_latest_search(twice):
    wanted = twice.page()["chosen"]
    said = twice.search("--apply", "best", seed=2)
    assert f"Applying trial {wanted}:" in said


def test_resume_goes_on_with_the_latest_search(twice):
    before = (twice.results / "search" / "log.json").read_bytes()
    trials = twice.page()["trials"]
    said = twice.search("--resume", seed=2)
    assert "Resumed the study 'search-1'" in said
    assert twice.page()["study"] == "search-1"
    assert twice.page()["trials"] == trials
    assert (twice.results / "search" / "log.json").read_bytes() == before


def test_a_new_search_has_the_next_number(folder):
    folder.search(seed=1)
    for number in range(3, 12):  # of which 1 and 2 were removed
        (folder.results / f"search-{number}.journal").touch()
    folder.search(seed=3)
    assert folder.page()["study"] == "search-12"
    folder.search("--resume", seed=3)
    assert folder.page()["study"] == "search-12"


FORGETFUL = """
import os
from chop.actions.search.samplers.base import Strategy, register_strategy

@register_strategy("forgetful")
class Forgetful(Strategy):
    def ask(self, number):
        return self.context.choices.nth(number)

    def adopt(self, number, chosen, notes):
        assert "FINISHED" not in os.environ

    def tell(self, number, values, violations=()):
        assert "FINISHED" not in os.environ
"""


def test_a_study_that_is_done_is_resumed_without_its_sampler(folder, monkeypatch):
    """Thousands of trials would be told to it one by one."""
    (folder.folder / "own.py").write_text(FORGETFUL)
    flags = ["--import", folder.folder / "own.py"]
    folder.search(*flags, sampler="forgetful")
    page = folder.page()
    assert len(page["trials"]) == 3
    monkeypatch.setenv("FINISHED", "1")
    folder.search(*flags, "--resume", sampler="forgetful")
    again = folder.page()
    assert again["trials"] == page["trials"]
    assert again["front"] == page["front"]


class SetBack(datetime.datetime):
    """Every look at the clock shows the day before the last look."""

    looks = 0

    @classmethod
    def now(cls, tz=None):
        SetBack.looks += 1
        return cls(2026, 1, 31, tzinfo=tz) - datetime.timedelta(days=cls.looks)


def test_a_clock_that_is_set_back_makes_no_negative_times(folder, monkeypatch):
    monkeypatch.setattr(datetime, "datetime", SetBack)
    folder.search()
    monkeypatch.undo()
    page = folder.page()
    assert SetBack.looks >= 1
    assert 0 <= page["seconds"] < 3600
    started, finished = (datetime.datetime.fromisoformat(page[k]) for k in ("started", "finished"))
    assert datetime.timedelta(0) <= finished - started < datetime.timedelta(hours=1)
    assert all(0 <= trial["seconds"] < 3600 for trial in page["trials"])
