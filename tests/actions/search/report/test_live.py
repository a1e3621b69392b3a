"""`ch report --live`: a page on this machine that follows a search."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from chop.actions.search.results.page import find_record, live
from chop.actions.search.results.page.live import LivePage, LiveServer

from .test_running import TRIALS, Waiting, trials_of


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    """Look at the search at every request."""
    monkeypatch.setattr(live, "PAUSE", 0.0)
    monkeypatch.setattr(live, "SHARE", 1e9)


@pytest.fixture
def served():
    """`served(find)` serves a page; `ask(path)` gives the status, the headers and the text."""
    with contextlib.ExitStack() as stack:

        def start(find):
            server = stack.enter_context(LiveServer(LivePage(find)))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)

            def ask(path="/", host=None, method="GET"):
                connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
                headers = {} if host is None else {"Host": host}
                with contextlib.closing(connection):
                    connection.request(method, path, headers=headers)
                    answer = connection.getresponse()
                    return answer.status, answer.headers, answer.read().decode()

            return ask

        yield start


@pytest.fixture
def followed(served, project, tmp_path):
    """A page about a search of five trials, and its search.json."""
    file = project("mine", 5) / "software" / "search_ckpts" / "search.json"
    return served(lambda: find_record("mine", tmp_path / "out")), file


def test_the_page_may_ask_its_server_and_nothing_else(followed):
    ask, _ = followed
    status, headers, text = ask()
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Cache-Control"] == "no-store"
    assert re.search(r"default-src 'none'; .*connect-src 'self'\"", text)
    assert f'data-version="{ask("/version")[2]}"' in text


def test_a_page_in_a_file_asks_nothing(page):
    text = page(5)
    assert "connect-src" not in text
    assert 'id="live"' not in text


def test_the_version_changes_with_the_search_and_only_then(followed, search):
    ask, file = followed
    first = ask("/version")[2]
    assert ask("/version")[2] == first
    file.write_text(json.dumps(search(9)))
    assert ask("/version")[2] != first
    assert len(trials_of(ask()[2])) == len([t for t in search(9)["trials"] if t["state"] != "FAIL"])


@pytest.mark.parametrize("text", [None, "{", '{"version": 99}'])
def test_a_search_that_cannot_be_read_for_a_while_keeps_its_page(followed, text):
    ask, file = followed
    before = ask()[2]
    file.unlink() if text is None else file.write_text(text)
    assert ask()[0] == 200
    assert ask()[2] == before


@pytest.mark.parametrize("path", ["/search.json", "/../search.json", "/version/", "/?x"])
def test_there_is_nothing_else_to_get(followed, path):
    assert followed[0](path)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", ""])
def test_other_names_of_this_machine_are_refused(followed, host):
    assert followed[0](host=host)[0] == 403
    assert followed[0](method="POST")[0] == 501


def test_it_can_only_be_reached_from_this_machine(project, tmp_path):
    project("mine", 2)
    with LiveServer(LivePage(lambda: find_record("mine", tmp_path / "out"))) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert server.address == f"http://127.0.0.1:{server.server_port}/"


def test_a_search_without_trials_is_waited_for(served, tmp_path, search):
    folder = tmp_path / "p" / "software" / "search_ckpts"
    folder.mkdir(parents=True)
    (folder / "running.json").write_text('{"study": null}\n')
    ask = served(lambda: find_record("p", tmp_path))
    status, _, text = ask()
    assert status == 200
    assert "Waiting for the first trial" in text
    before = ask("/version")[2]
    (folder / "running.json").unlink()
    (folder / "search.json").write_text(json.dumps(search(5)))
    assert ask("/version")[2] != before
    assert "Pareto front" in ask()[2]


def test_a_port_that_is_taken_is_one_sentence(here, project, tmp_path):
    project("mine", 2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("report", "mine", "--live", "--port", port, "--project-dir", tmp_path / "out")
        code, out, err = here(*words)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"ch: cannot serve the report at port {port} (" in err
    assert "give another --port, or 0 for any free one" in err


def test_a_project_that_is_not_there_is_wrong_usage(here, tmp_path):
    code, out, err = here("report", "nothing", "--live", "--project-dir", tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith("ch: no project 'nothing'")


@pytest.mark.slow
@pytest.mark.parametrize("storage", [("", "search"), ("sqlite:///study.db", "mine")])
def test_a_running_search_is_followed_to_its_end(searches, served, storage):
    waiting = Waiting(searches, *storage)
    ask = served(lambda: find_record(waiting.folder, searches.folder))
    text = ask()[2]
    assert "This search is running." in text
    assert trials_of(text) == list(range(TRIALS))
    assert '"baselines":[0.' in text  # the parent was scored before the first trial
    before = ask("/version")[2]
    waiting.go_on()
    assert ask("/version")[2] != before
    text = ask()[2]
    assert "This search is running." not in text
    assert trials_of(text) == list(range(6))


@pytest.mark.slow
def test_ctrl_c_ends_it_cleanly(project, tmp_path):
    project("mine", 5)
    words = ["report", "mine", "--live", "--project-dir", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "chop", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    address = process.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
    assert process.stdout.readline() == "Ctrl-C ends it.\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
