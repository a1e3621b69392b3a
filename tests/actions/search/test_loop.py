"""Whatever happens to workers and processes, the table is that of a serial search."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chop.actions.search.metrics.rungs import KnownTrials
from chop.actions.search.run.engines.base import WorkerDied
from chop.actions.search.run.trial_table import NEXT, Phase, TrialEntry, TrialTable

from .conftest import TWO, InOrder, Killed, Shuffled, recorded, run_loop

pytestmark = pytest.mark.usefixtures("no_disk")

TRIALS = 14
RETRIES = 30  # more than a test can plan deaths


class Eventful(Shuffled):
    """Workers whose fates are planned: a trial ends, its worker dies, or the search is killed."""

    def __init__(self, slots, fates):
        super().__init__(slots, TWO)
        self.fates = fates

    def wait(self, seconds):
        fate, which = self.fates.pop(0) if self.fates else ("ends", 0)
        if fate == "killed":
            raise Killed
        self._random.randrange = lambda count: which % count
        (outcome,) = super().wait(seconds)
        return [WorkerDied(outcome.number, "died")] if fate == "dies" else [outcome]


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    path = tmp_path_factory.mktemp("serial") / "journal"
    run_loop(path, "tpe", InOrder(1, TWO), n_trials=TRIALS)
    return recorded(path)


fate = st.tuples(st.sampled_from(["ends", "ends", "dies", "killed"]), st.integers(0, 7))


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(fates=st.lists(fate, max_size=30), workers=st.integers(1, 5))
def test_random_deaths_and_resumes_give_the_serial_table(tmp_path_factory, serial, fates, workers):
    path, fates = tmp_path_factory.mktemp("any") / "journal", list(fates)
    while True:
        try:
            run_loop(path, "tpe", Eventful(workers, fates), n_trials=TRIALS, retries=RETRIES)
            break
        except Killed:
            continue
    assert recorded(path) == serial


def entry(number):
    return TrialEntry(number, {}, {}, KnownTrials())


@pytest.mark.parametrize("phase", Phase)
def test_a_trial_only_moves_to_a_phase_that_may_follow(phase):
    for target in Phase:
        table = TrialTable()
        table.add(entry(0))
        table[0].phase = phase
        outcome = "outcome" if target is Phase.DONE else None
        if target in NEXT[phase]:
            assert table.move(0, target, outcome).phase is target
        else:
            with pytest.raises(AssertionError, match=f"trial 0 is {phase.value}"):
                table.move(0, target, outcome)


def test_a_group_is_dropped_when_all_of_it_is_told():
    table = TrialTable(group_size=2)
    for number in range(4):
        table.add(entry(number))
    assert [member.number for member in table.group(3)] == [2, 3]
    for number in (0, 1):
        table.move(number, Phase.DONE, "outcome")
        table.move(number, Phase.TOLD)
    table.drop_group(1)
    assert 0 not in table
    assert [waiting.number for waiting in table.in_phase(Phase.ASKED)] == [2, 3]
