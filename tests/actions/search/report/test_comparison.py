"""`ch report A B`: two fronts in the metrics that both searches have."""

import itertools
import json
import random
import re

import pytest

from chop.actions.config import ConfigError
from chop.actions.search.results.page import SearchRecord, comparison_page
from chop.actions.search.results.page.comparison import compared
from chop.actions.search.results.page.hypervolume import front_of, hypervolume

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'"


def record(points, goals=(("a", "maximize"), ("b", "minimize")), **facts):
    """A search with those metrics."""
    objectives = [{"name": name, "direction": better} for name, better in goals]
    names = [name for name, _ in goals]
    trials = [
        {"number": i, "state": "COMPLETE", "software_metrics": dict(zip(names, p, strict=True))}
        for i, p in enumerate(points)
    ]
    content = {"version": 1, "objectives": objectives, "trials": trials} | facts
    return SearchRecord.model_validate(content)


def numbers(comparison, search):
    return sorted(design.trial.number for design in comparison.fronts[search])


def test_each_front_has_its_share_of_one_box():
    one = record([(0.0, 4.0), (1.0, 4.0), (0.5, 2.0)])
    other = record([(0.0, 0.0), (1.0, 2.0), (0.5, 4.0)])
    both = compared([one, other], ["one", "other"])
    assert both.reference == {"a": (0.0, 1.0), "b": (4.0, 0.0)}
    assert (numbers(both, 0), numbers(both, 1)) == ([1, 2], [0, 1])
    assert both.hypervolume(0) == pytest.approx(0.25)
    assert both.hypervolume(1) == pytest.approx(0.5)
    assert (both.beaten(0), both.beaten(1)) == (2, 0)


@pytest.mark.parametrize("goals", [1, 2, 3])
def test_a_hypervolume_is_the_share_of_cells_that_are_dominated(goals):
    draw = random.Random(goals)
    points = [tuple(draw.randrange(7) / 6 for _ in range(goals)) for _ in range(25)]
    cells = list(itertools.product(range(6), repeat=goals))
    inside = sum(
        any(all(v >= (k + 0.5) / 6 for v, k in zip(p, cell, strict=True)) for p in points)
        for cell in cells
    )
    assert hypervolume(points) == pytest.approx(inside / len(cells))
    assert hypervolume(front_of(points)) == pytest.approx(inside / len(cells))
    assert hypervolume([]) == 0


def test_only_shared_metrics_count_and_fronts_are_those_in_them():
    goals = (("a", "maximize"), ("b", "minimize"), ("c", "minimize"))
    one = record([(1.0, 4.0, 9.0), (0.9, 5.0, 1.0)], goals)  # the second is there for its c alone
    both = compared([one, record([(0.5, 3.0)])], ["one", "other"])
    assert both.metrics == both.goals == ["a", "b"]
    assert numbers(both, 0) == [0]


def test_a_metric_that_one_search_only_measured_has_the_direction_of_the_other():
    other = record([(0.5, 3.0)], (("a", "maximize"),) * 1 + (("b", "minimize"),))
    one = record([(0.5,)], (("a", "maximize"),))
    one.trials[0].hardware_metrics["b"] = 4.0
    assert compared([one, other], ["one", "other"]).goals == ["a", "b"]


def test_a_metric_with_opposed_directions_is_drawn_but_not_compared():
    one, other = record([(0.5, 3.0)]), record([(0.6, 2.0)], (("a", "maximize"), ("b", "maximize")))
    both = compared([one, other], ["one", "other"])
    assert (both.metrics, both.goals) == (["a", "b"], ["a"])


def test_infeasible_failed_and_stopped_trials_are_on_no_front():
    one = record([(0.9, 1.0), (0.8, 2.0), (0.7, 3.0)])
    states = [{"feasible": False}, {"state": "PRUNED"}, {}]
    trials = [t.model_copy(update=s) for t, s in zip(one.trials, states, strict=True)]
    both = compared([one.model_copy(update={"trials": trials}), record([(0.1, 9.0)])], ["x", "y"])
    assert numbers(both, 0) == [2]


def test_searches_without_a_common_metric_are_refused_in_one_sentence():
    one, other = record([(0.5, 3.0)]), record([(1.0,)], (("loss", "minimize"),))
    said = r"no metric in common \(one has a, b; other has loss\); compare searches"
    with pytest.raises(ConfigError, match=said):
        comparison_page([one, other], ["one", "other"])
    with pytest.raises(ConfigError, match=r"one has a, b; other has none"):
        comparison_page([one, record([])], ["one", "other"])


def test_searches_without_a_common_objective_have_a_page_without_hypervolume():
    one, other = record([(0.5,)], (("a", "maximize"),)), record([(1.0,)], (("b", "minimize"),))
    for search, name in ((one, "c"), (other, "c")):
        search.trials[0].hardware_metrics[name] = 4.0
    assert "no objective is measured by both" in comparison_page([one, other], ["one", "other"])


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))


def test_the_page_holds_both_searches_and_says_where_data_differ(search):
    one = SearchRecord.model_validate(search(60))
    other = SearchRecord.model_validate(search(40, seed=1, fingerprints={"train": "another"}))
    text = comparison_page([one, other], ["one", "two"])
    data = data_of(text)
    assert data["searches"] == ["one", "two"]
    assert "Different data." in text
    assert "Different data." not in comparison_page([one, one], ["one", "two"])
    assert "one (1) and one (2)" in comparison_page([one, one], ["one", "one"])


def test_names_cannot_break_out_of_the_page(search):
    content = search(12, model=EVIL, command=EVIL, sampler=EVIL, dataset_title=EVIL)
    content["space"]["name"] = EVIL
    for trial in content["trials"]:
        trial["params"] = {EVIL: EVIL}
    one = SearchRecord.model_validate(content)
    text = comparison_page([one, one], [EVIL, "two"])
    assert "<img" not in text
    assert text.count("<script") == 2
    assert data_of(text)["searches"][0] == EVIL


def test_two_names_write_one_page_beside_the_first(here, project, tmp_path):
    one, _ = project("one", 20), project("two", 20, seed=1)
    page = one / "software" / "search_ckpts" / "compared_with_two.html"
    words = ("report", "one", "two", "--project-dir", tmp_path / "out")
    assert here(*words) == (0, f"{page}\n", "")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert here(*words, "--output", tmp_path / "c.html")[0] == 0
    assert (tmp_path / "c.html").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("one", "tow"), "no project 'tow' in "),
        (("one", "two", "one"), "ch report compares two searches, but 3 were given; omit"),
        (("one", "two", "--live"), "--live follows one search, but 2 were given; omit the others"),
        (("one", "--port", 0), "--port is the port of --live; add --live, or omit --port"),
        (("one", "--live", "--output", "x.html"), "--live serves the report instead of writing it"),
    ],
)
def test_wrong_usage_is_one_sentence(here, project, tmp_path, words, said):
    project("one", 3), project("two", 3)
    code, out, err = here("report", *words, "--project-dir", tmp_path / "out")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
