"""Best so far, and hypervolume so far, against what one computes by hand."""

import random

import pytest

from chop.actions.search.results.page.progress import best_so_far, curves, hypervolume_so_far
from chop.actions.search.results.page.record import Objective, SearchRecord

HIGH = Objective(name="accuracy", direction="maximize")
LOW = Objective(name="bits", direction="minimize")


@pytest.mark.parametrize(
    ("goal", "steps"), [(HIGH, [(0, 2.0), (3, 5.0)]), (LOW, [(0, 2.0), (1, 1.0)])]
)
def test_only_improvements_are_steps(goal, steps):
    values = [(0, 2.0), (1, 1.0), (2, None), (3, 5.0), (4, 5.0)]
    assert list(best_so_far(values, goal)) == steps


def test_a_hypervolume_by_hand():
    # shares: (0, 1), (1, 0), (0.5, 0.5); only the last dominates anything of the box
    pairs = [(0, 0.0, 2.0), (1, 1.0, 4.0), (2, 0.5, 3.0), (3, None, 1.0)]
    assert list(hypervolume_so_far(pairs, (HIGH, LOW))) == [(0, 0.0), (2, 0.25)]


def test_one_point_fills_its_own_box():
    assert list(hypervolume_so_far([(4, 0.3, 2.0)], (HIGH, LOW))) == [(4, 1.0)]
    assert list(hypervolume_so_far([], (HIGH, LOW))) == []


def test_the_hypervolume_is_the_share_of_cells_that_are_dominated():
    draw = random.Random(0)
    pairs = [(i, draw.randrange(11) / 10, draw.randrange(11) / 10) for i in range(60)]
    pairs += [(60, 0.0, 0.0), (61, 1.0, 0.0), (62, 0.0, 1.0)]
    last = list(hypervolume_so_far(pairs, (HIGH, HIGH)))[-1][1]
    cells = [
        any(x >= (i + 0.5) / 10 and y >= (j + 0.5) / 10 for _, x, y in pairs)
        for i in range(10)
        for j in range(10)
    ]
    assert last == pytest.approx(sum(cells) / 100)


def test_two_goals_have_three_curves_and_infeasible_trials_are_in_none(search):
    record = SearchRecord.model_validate(search(200))
    accuracy, bits, volume = curves(record)
    assert (accuracy.title, bits.title) == ("accuracy", "average_bitwidth")
    assert volume.title == "hypervolume"
    feasible = {t.number for t in record.trials if t.is_complete and t.feasible}
    assert {number for curve in curves(record) for number, _ in curve.points} <= feasible
    assert accuracy.baseline == 0.755


@pytest.mark.parametrize(("changes", "count"), [({"objectives": 1}, 1), ({"objectives": 3}, 3)])
def test_other_numbers_of_goals_have_no_hypervolume(search, changes, count):
    assert len(curves(SearchRecord.model_validate(search(50, **changes)))) == count
