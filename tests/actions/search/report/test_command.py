"""`ch report` as users type it: the page, one-sentence errors, exit codes."""

import json

import pytest


@pytest.fixture
def report(tmp_path, here):
    """`report("name", …)` gives the exit code, the output and the errors."""
    return lambda *words: here("report", *words, "--project-dir", tmp_path / "out")


def test_it_prints_where_the_page_is(report, project):
    page = project("mine", 5) / "software" / "search_ckpts" / "report.html"
    assert report("mine") == (0, f"{page}\n", "")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_directory_for_the_page_is_created_and_named(report, project, tmp_path):
    project("mine", 5)
    page = tmp_path / "new" / "folder" / "page.html"
    assert report("mine", "--output", page) == (
        0,
        f"{page}\n",
        f"Created the directory {page.parent}\n",
    )
    assert report("mine", "--output", page) == (0, f"{page}\n", "")


def test_it_opens_the_browser_on_request_alone(report, project, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    project("mine", 5)
    report("mine")
    assert not opened
    code, _, _ = report("mine", "--open", "--output", tmp_path / "a b.html")
    assert code == 0
    assert opened == [(tmp_path / "a b.html").as_uri()]


@pytest.mark.parametrize(
    ("name", "start", "advice"),
    [
        ("mime", "ch: no project 'mime'", "did you mean 'mine'?"),
        ("trained", "ch: no search in ", "ch search --project trained"),
    ],
)
def test_a_project_without_a_search_is_wrong_usage(report, project, name, start, advice):
    (project("mine", 2).parent / "trained").mkdir()
    code, out, err = report(name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(start)
    assert advice in err


@pytest.mark.parametrize("text", ["{", json.dumps({"version": 99})])
def test_a_search_that_cannot_be_read_is_a_failure(report, project, text):
    folder = project("mine", 2)
    (folder / "software" / "search_ckpts" / "search.json").write_text(text)
    code, _, err = report("mine")
    assert code == 1
    assert err.count("\n") == 1


@pytest.mark.parametrize("content", [b"root:x:0:0:root\n", b"\x89PNG\r\n", b"[]", b"", b'{"a": 1}'])
def test_a_file_of_another_kind_is_not_called_damaged(report, tmp_path, content):
    file = tmp_path / "passwd"
    file.write_bytes(content)
    code, out, err = report(file)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"ch: {file} is not a search.json (")
    assert "--resume" not in err
    assert list(tmp_path.iterdir()) == [file]


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (nested(300), "it is nested too deeply"),
        (nested(2_000), "it is nested too deeply"),
        (nested(200_000), "it is nested too deeply"),
        ("1" + "0" * 400, "a number in it is too large"),
        ("1" + "0" * 5_000, "digits"),
    ],
)
@pytest.mark.parametrize("place", ["config", "software_metrics"])
def test_json_that_no_search_writes_is_a_failure_too(report, project, written, why, place):
    file = project("mine", 2) / "software" / "search_ckpts" / "search.json"
    content = json.loads(file.read_text())
    content["trials"][0][place] = {"a": "HERE"}
    file.write_text(json.dumps(content).replace('"HERE"', written))
    before = file.read_bytes()
    code, _, err = report("mine")
    assert code in (0, 1)
    if code:
        assert err.count("\n") == 1
        assert f"ch: {file} is damaged (" in err
        assert why in err
    assert file.read_bytes() == before


def test_text_that_is_not_unicode_is_a_failure_too(report, project):
    file = project("mine", 2) / "software" / "search_ckpts" / "search.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"model": "\udc80"}))
    code, _, err = report("mine")
    assert code == 1
    assert err.startswith(f"ch: {file} is damaged (a text in it is not Unicode)")
