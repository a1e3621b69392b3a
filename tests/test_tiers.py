"""`make test` is quick and needs few packages; `make test-all` leaves nothing out."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


def packages(*extras):
    return {re.match(r"[\w.-]+", need).group() for extra in extras for need in EXTRAS[extra]}


def command(target):
    """The shell command of a target of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    variables = dict(re.findall(r"^(RUN|TEST) = (.*)$", text, re.MULTILINE))
    (line,) = re.findall(rf"^{target}:.*\n\t(.*)$", text, re.MULTILINE)
    return re.sub(r"\$\((RUN|TEST)\)", lambda name: variables[name[1]], line)


class Case:
    """What the hook asks of a test, of which this one has a case."""

    def __init__(self, number):
        self.nodeid, self.marks = f"tests/test_it.py::test_it[{number}]", []

    def get_closest_marker(self, name):
        return pytest.mark.sampled(3).mark

    def add_marker(self, marker):
        self.marks.append(marker.name)


def test_all_cases_of_a_sampled_test_but_some_evenly_spread_are_slow(request):
    hooks = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    cases = [Case(number) for number in range(7)]
    hooks.pytest_collection_modifyitems(cases)
    assert [number for number, case in enumerate(cases) if not case.marks] == [0, 2, 4]
    assert {mark for case in cases for mark in case.marks} == {"slow"}


def test_make_test_installs_the_extra_dev_alone_and_make_test_all_both():
    assert re.findall(r"--extra (\S+)", command("test")) == ["dev"]
    assert re.findall(r"--extra (\S+)", command("test-all")) == ["dev", "test-all"]
    assert not packages("dev") & packages("test-all")


def test_make_test_all_has_the_packages_of_every_feature_that_can_be_tested_offline():
    assert packages("labs", "tables", "cluster", "postgres") <= packages("test-all")


def test_make_test_all_runs_slow_tests_too():
    assert "slow" not in command("test-all")


def test_ci_runs_both_tiers_and_its_output_closes_with_the_summary_of_pytest():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line.partition("#")[0].strip() for line in lines]
    assert [line for line in commands if line.startswith("make ")] == [
        "make lint",
        "make test",
        "make test-all",
    ]
    assert commands[-1] == "make test-all"
