"""`ch report` of a search that has not written its files: it runs, or it was killed."""

import json
import re
import signal

import pytest

from chop import cli

slow = pytest.mark.slow
TRIALS = 3  # before the search waits


@pytest.fixture
def report(capsys):
    """`report(folder)` gives the exit code, the output and the errors."""

    def run(*args):
        with pytest.raises(SystemExit) as ended:
            cli.main(["report", *map(str, args)])
        return ended.value.code or 0, *capsys.readouterr()

    return run


def trials_of(page):
    """The numbers of the trials that a page shows."""
    (block,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S)
    return json.loads(block)["number"]


class Waiting:
    """A process that has done some trials of the first search of its project, and waits."""

    def __init__(self, searches, storage, study):
        self.searches, self.folder = searches, searches.folder / "out" / "p"
        self.config = searches.config("n_trials = 6\nsampler = 'random'", odd="seconds = 0.0")
        # a path is one in the present folder, which is not that of `ch report`
        self.flags = ["--storage", storage, "--study", study] if storage else []
        self.process = searches.start(self.config, *self.flags, trials=TRIALS)
        head, _, file = storage.rpartition("///")
        path = searches.folder / file if file else searches.results() / "search.journal"
        url = f"{head}///{path}" if head else str(path)
        searches.until(lambda: len(searches.finished(url, study)) >= TRIALS, self.process)

    def go_on(self, code=0):
        self.searches.open_gate()
        self.searches.ended(self.process, code)

    @property
    def page(self):
        return (self.searches.results() / "report.html").read_text()


@pytest.fixture(
    params=[
        ("", "search"),
        pytest.param(("elsewhere.journal", "mine"), marks=slow),
        pytest.param(("sqlite:///study.db", "mine"), marks=slow),
    ]
)
def waiting(request, searches):
    return Waiting(searches, *request.param)


@pytest.mark.slow
def test_a_running_search_is_shown_as_far_as_it_is(waiting, report):
    assert not (waiting.searches.results() / "search.json").exists()
    code, out, err = report(waiting.folder)
    assert (code, err) == (0, "")
    assert out == f"{waiting.searches.results() / 'report.html'}\n"
    assert "This search is running." in waiting.page
    assert trials_of(waiting.page) == list(range(TRIALS))
    waiting.go_on()
    assert report(waiting.folder)[0] == 0
    assert "This search is running." not in waiting.page
    assert trials_of(waiting.page) == list(range(6))


@slow
def test_a_killed_search_is_shown_as_far_as_it_came(waiting, report):
    waiting.searches.kill(waiting.process)
    assert report(waiting.folder)[0] == 0
    assert "This search was cut off." in waiting.page
    assert trials_of(waiting.page) == list(range(TRIALS))
    waiting.searches.run(waiting.config, *waiting.flags, "--resume")
    assert report(waiting.folder)[0] == 0
    assert "This search was cut off." not in waiting.page
    assert trials_of(waiting.page) == list(range(6))


@slow
def test_a_resumed_search_is_shown_with_its_new_trials(waiting, report):
    searches = waiting.searches
    searches.signal(waiting.process, signal.SIGINT)
    waiting.go_on(130)
    done = len(searches.table())
    (searches.folder / "go").unlink()
    waiting.process = searches.start(waiting.config, *waiting.flags, "--resume", trials=1)

    def has_more():
        assert report(waiting.folder)[0] == 0
        return trials_of(waiting.page) == [*range(done + 1)]

    searches.until(has_more, waiting.process)
    assert "This search is running." in waiting.page
    waiting.go_on()
