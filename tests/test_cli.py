"""`ch` as users type it: real processes, exit codes, one-sentence errors."""

import json
import subprocess
import sys

import pytest

from chop.catalogue import KINDS
from chop.version import __version__


def ch(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "chop", *args], capture_output=True, text=True)


def test_version_is_one_line():
    run = ch("--version")
    assert (run.returncode, run.stdout) == (0, f"mase {__version__}\n")


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["list", "--help"]])
def test_help_teaches_and_succeeds(args):
    run = ch(*args)
    assert run.returncode == 0
    assert "list" in run.stdout


def test_list_counts_every_kind():
    run = ch("list", "--json")
    counts = {row["kind"]: row["count"] for row in json.loads(run.stdout)}
    assert counts.keys() == KINDS.keys()
    assert counts["ops"] > 300
    assert counts["passes"] >= 15


def test_a_kind_is_listed_as_a_table_with_every_name():
    run = ch("list", "passes")
    assert run.returncode == 0
    for row in KINDS["passes"].rows():
        assert row["name"] in run.stdout
    assert "    by: Literal['type', 'name', 'regex_name']" in run.stdout


def test_a_pipe_that_closes_early_is_no_error_message():
    run = subprocess.run(
        f"{sys.executable} -m chop list ops | head -1", shell=True, capture_output=True, text=True
    )
    assert run.stderr == ""


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_json_has_the_rows_of_the_registry(kind):
    run = ch("list", kind, "--json")
    assert json.loads(run.stdout) == json.loads(json.dumps(KINDS[kind].rows()))


def test_every_row_says_what_it_is():
    for kind in ("formats", "passes", "statistics"):
        for row in KINDS[kind].rows():
            assert row["about"], f"{kind} {row['name']} has no docstring"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["list", "pases"], "ch: unknown kind 'pases'; did you mean 'passes'?"),
        (["lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["list", "--jsn"], "No such option: --jsn"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_fix(args, message):
    run = ch(*args)
    assert run.returncode == 2
    assert message in run.stderr
    assert run.stdout == ""
    assert "Traceback" not in run.stderr


def test_no_command_shows_the_help():
    run = ch()
    assert "Usage: ch" in run.stdout + run.stderr
