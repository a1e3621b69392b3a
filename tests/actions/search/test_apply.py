"""Which trial `--apply` means, and what it says of those that cannot be built."""

import pytest

from chop.actions.config import ConfigError
from chop.actions.search.metrics.objectives import Constraint, Objective, Objectives
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.results.apply import _number

from .test_seen import outcome, results_of

LEAST = Constraint("accuracy", ">=", 0.9)
GOALS = Objectives(
    (Objective("accuracy", "maximize"), Objective("bitops", "minimize")), None, (LEAST,)
)


def test_a_complete_trial_is_taken_by_its_number():
    assert _number("4", results_of(GOALS, outcome(0, 0.5, 3.0), outcome(4, 0.6, 4.0))) == 4


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("1", r"--apply 1: that trial was stopped early; .* \(complete trials: 0, 4\)"),
        ("2", r"--apply 2: that trial failed; use best, or a complete trial"),
        ("3", r"--apply 3: use best, or the number of a complete trial \(complete trials: 0, 4\)"),
        ("worst", "--apply worst: use best, or the number"),
        ("best", r"--apply best: no design meets accuracy >= 0.9; nearest is trial 4: accuracy"),
    ],
)
def test_what_cannot_be_built_is_said(wanted, said):
    complete = [outcome(0, 0.5, 3.0, (0.4,)), outcome(4, 0.6, 4.0, (0.3,))]
    others = [Outcome(1, "PRUNED"), Outcome(2, "FAIL", error="ValueError: planted")]
    with pytest.raises(ConfigError, match=said):
        _number(wanted, results_of(GOALS, *complete, *others))


def test_a_search_without_any_complete_trial_has_no_best():
    with pytest.raises(ConfigError, match="--apply best: no trial of this search was completed"):
        _number("best", results_of(GOALS, Outcome(0, "FAIL", error="ValueError: planted")))
