"""Rungs: who goes on is decided by exactly those trials that had been told, whoever measures."""

import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chop.actions import search
from chop.actions.config import ConfigError
from chop.actions.search.metrics.objectives import dominates
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.metrics.rungs import Rungs, RungScore, ranked
from chop.actions.search.samplers.base import strategy_named

from .conftest import TWO, InOrder, Shuffled, killed_again_and_again, recorded, run_loop, tables

pytestmark = pytest.mark.usefixtures("no_disk")

RUNGS = Rungs((1, 3), 0.5)
costs = st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3))
losses = st.sampled_from([0.1, 0.5, 0.9, float("nan"), float("inf")])


def mark(loss, costs=None):
    return RungScore({"loss": loss}, costs)


@given(st.lists(st.builds(mark, losses, costs), max_size=12))
def test_the_best_are_those_whom_fewest_dominate_then_by_loss(marks):
    known = [m.costs for m in marks if m.costs is not None]

    def key(place):
        mine = marks[place]
        beaten = 0 if mine.costs is None else sum(dominates(other, mine.costs) for other in known)
        finite = mine.loss < float("inf")
        return not finite, beaten, mine.loss if finite else 0, place

    assert ranked(marks) == sorted(range(len(marks)), key=key)


@pytest.mark.parametrize(("keep", "least"), [(0.5, 2), (0.33, 4), (0.25, 4)])
def test_nobody_is_stopped_before_enough_others_have_come(keep, least):
    rungs = Rungs((1,), keep)
    better = [mark(0.1) for _ in range(least)]
    assert rungs.goes_on(mark(0.9), better[1:])
    assert not rungs.goes_on(mark(0.9), better)


def test_a_share_of_nothing_is_refused():
    assert Rungs.of("basic_train", [1], None, 4) == Rungs((1,), 0.5)
    assert Rungs.of("basic_train", None, None, 4) == Rungs(())
    with pytest.raises(
        ValueError, match=r"keep = 0\.3 is the share .* set rungs, as in rungs = \["
    ):
        Rungs.of("basic_train", None, 0.3, 4)


def test_a_share_of_those_that_have_come_goes_on():
    others = [mark(loss / 10) for loss in range(8)]
    assert RUNGS.goes_on(mark(0.35), others)  # the fifth of nine, of whom five go on
    assert not RUNGS.goes_on(mark(0.45), others)


def test_a_cheap_candidate_need_not_be_accurate():
    others = [mark(0.1, (-0.9, 8.0)), mark(0.2, (-0.8, 8.0)), mark(0.3, (-0.7, 8.0))]
    assert RUNGS.goes_on(mark(0.9, (-0.2, 4.0)), others)
    assert not RUNGS.goes_on(mark(0.9, (-0.2, 9.0)), others)


# --- the fixed order


class Climbing(Shuffled):
    """An engine whose trials are compared at rungs; it may be killed at any moment."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.seen = {}

    def submit(self, task):
        self.seen[task.number] = task.known
        super().submit(task)

    def wait(self, seconds):
        (out,) = super().wait(seconds)
        return [climbed(out, self.seen[out.number])]


class ClimbingInOrder(Climbing, InOrder):
    """One at a time."""


def climbed(out, before):
    """The outcome of a trial that is no better at a rung than it is in the end."""
    if out.values is None:
        return out
    marks = {}
    for rung in RUNGS.epochs:
        mine = marks[rung] = RungScore({"loss": -out.values[0]}, (-out.values[0], out.values[1]))
        if not RUNGS.goes_on(mine, before.rung_scores.get(rung, ())):
            accuracy, bits = {"accuracy": out.values[0]}, {"average_bitwidth": out.values[1]}
            facts = {"software": accuracy, "hardware": bits, "error": f"left at {rung}"}
            return Outcome(out.number, "PRUNED", rungs=marks, **facts)
    return Outcome(out.number, "COMPLETE", values=out.values, rungs=marks)


def table_of(sampler, n_trials=40, **setup):
    made = tables(TWO, sampler=sampler, n_trials=n_trials, **setup)
    options = {"max_epochs": 9, "rungs": [1, 3], "keep": 0.5}
    made["strategy"]["sw_runner"] = {"basic_train": options}
    return made


@pytest.fixture(params=["tpe", "random", "nsgaii"])
def sampler(request):
    return request.param


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_table(tmp_path, sampler):
    found = []
    for workers in (1, 2, 4, 16):
        kind = ClimbingInOrder if workers == 1 else Climbing
        engine = kind(workers, TWO, seed=workers)
        run_loop(tmp_path / str(workers), sampler, engine, table=table_of(sampler))
        found.append((recorded(tmp_path / str(workers)), engine.seen))
    assert all(other == found[0] for other in found)
    states = [state for _, _, state, _ in found[0][0]]
    assert states.count("PRUNED") > 5
    assert states.count("COMPLETE") > 5


@pytest.mark.slow
def test_a_search_that_was_killed_again_and_again_gives_the_same_table(tmp_path, sampler):
    run_loop(tmp_path / "a", sampler, ClimbingInOrder(1, TWO), table=table_of(sampler))
    run = functools.partial(run_loop, tmp_path / "k", sampler, table=table_of(sampler))
    killed_again_and_again(run, functools.partial(Climbing, 3, TWO), 3, 10)
    assert recorded(tmp_path / "k") == recorded(tmp_path / "a")


def test_a_trial_knows_of_those_told_and_no_others(tmp_path):
    engine = Climbing(4, TWO)
    loop = run_loop(tmp_path / "j", "random", engine, table=table_of("random", in_flight=4))
    outcomes = loop.store.outcomes
    for number, before in engine.seen.items():
        told = [outcomes[n] for n in range(number - 3)]
        for rung in RUNGS.epochs:
            reached = tuple(out.rungs[rung] for out in told if rung in out.rungs)
            assert before.rung_scores.get(rung, ()) == reached


class Learner(strategy_named("random")):
    """Remembers what it is told."""

    def __init__(self, context):
        super().__init__(context)
        self.lessons = {}

    def tell(self, number, values, violations=()):
        self.lessons[number] = (values, list(violations))


def learned(path, engine, table):
    """What a strategy is told in a search, and the outcomes, by trial."""
    loop = run_loop(path, Learner, engine, table=table)
    return loop.strategy.lessons, loop.store.outcomes


def test_a_strategy_learns_from_what_a_stopped_trial_had_come_to(tmp_path):
    table = table_of("random")
    table["strategy"]["constraints"] = ["average_bitwidth <= 12"]
    lessons, outcomes = learned(tmp_path / "j", Climbing(2, TWO), table)
    states = set()
    for number, out in outcomes.items():
        values, violations = lessons[number]
        states.add(out.state)
        if out.state == "PRUNED":
            bits = out.hardware["average_bitwidth"]
            assert values == [out.software["accuracy"], bits]
            assert violations == [bits - 12]
        else:
            assert values == out.values
    assert states == {"COMPLETE", "PRUNED", "FAIL"}


class StoppedAtOnce(InOrder):
    """Every other trial is stopped with these metrics."""

    def __init__(self, software):
        super().__init__(1, TWO)
        self.software = software

    def wait(self, seconds):
        (out,) = super().wait(seconds)
        if out.number % 2:
            return [out]
        hardware = {"average_bitwidth": 3.0}
        return [Outcome(out.number, "PRUNED", software=self.software, hardware=hardware)]


@pytest.mark.parametrize("software", [{}, {"accuracy": float("nan")}])
def test_a_trial_that_was_stopped_too_soon_teaches_nothing(tmp_path, software):
    lessons, _ = learned(tmp_path / "j", StoppedAtOnce(software), table_of("random"))
    assert [lessons[number] for number in range(0, 40, 2)] == [(None, [])] * 20


# --- a search that trains


WIDTHS = {f"{operand}_width": [2, 4, 8] for operand in ("data_in", "weight")}
FRACTIONS = {f"{operand}_frac_width": [None] for operand in ("data_in", "weight")}
SPACE = {
    "name": "graph/quantize/mixed_precision_ptq",
    "setup": {"by": "type"},
    "seed": {"linear": {"config": {"name": ["integer"], **WIDTHS, **FRACTIONS}}},
}


@pytest.fixture(scope="module")
def network():
    import torch

    from chop.dataset import MaseDataModule
    from chop.models import get_model, get_model_info

    torch.manual_seed(3)
    data = MaseDataModule("jsc-sim", batch_size=8192, num_workers=0)
    data.prepare_data()
    data.setup("fit")
    model = get_model("jsc-tiny", task="cls", dataset_info=data.dataset_info)
    return model, get_model_info("jsc-tiny"), "cls", data.dataset_info, data


def trained(n_trials=9, **options):
    options = {"max_epochs": 3, "learning_rate": 0.02, "num_val_samples": 2000} | options
    return {
        "search_space": SPACE,
        "strategy": {
            "sw_runner": {"basic_train": options},
            "setup": {"n_trials": n_trials, "in_flight": 2, "sampler": "random"},
            "metrics": {"accuracy": {}},
        },
    }


def rows(folder):
    """The trials as they are written, without times."""
    times = ("seconds", "started", "worker")
    trials = json.loads((folder / "search.json").read_text())["trials"]
    return [{k: v for k, v in trial.items() if k not in times} for trial in trials]


@pytest.mark.slow
def test_trials_leave_at_rungs_with_what_they_had_come_to(network, tmp_path):
    results = search(*network, trained(rungs=[1, 2], keep=0.34), tmp_path, "cpu")
    states = [results.outcomes[n].state for n in range(9)]
    assert states[:4] == ["COMPLETE"] * 4  # two in flight, and three have to be there first
    assert "PRUNED" in states
    for out in results.outcomes.values():
        last = max(out.rungs)
        if out.state == "PRUNED":
            assert out.error == f"left at the rung after epoch {last}"
            assert out.software == out.rungs[last].metrics
        else:
            assert set(out.rungs) == {1, 2}
    written = rows(tmp_path)
    assert all(set(row["rungs"]["1"]) == {"accuracy", "loss"} for row in written)
    # and the same again, with fewer trials at first
    search(*network, trained(5, rungs=[1, 2], keep=0.34), tmp_path / "r", "cpu")
    search(*network, trained(9, rungs=[1, 2], keep=0.34), tmp_path / "r", "cpu", resume=True)
    assert rows(tmp_path / "r") == written


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_workers_train_the_same_table(network, tmp_path, workers):
    tables = trained(12, rungs=[1, 2])
    search(*network, tables, tmp_path / "a", "cpu")
    search(*network, tables, tmp_path / "w", "cpu", workers=workers)
    assert rows(tmp_path / "w") == rows(tmp_path / "a")


def test_a_study_is_not_resumed_with_other_rungs(network, tmp_path):
    search(*network, trained(2, rungs=[1]), tmp_path, "cpu")
    with pytest.raises(ValueError, match="its runners"):
        search(*network, trained(2, rungs=[2]), tmp_path, "cpu", resume=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rungs": [2, 1]}, r"basic_train: rungs must be epochs in increasing order, not \[2, 1\]"),
        ({"rungs": [1, 1]}, "rungs must be epochs in increasing order"),
        ({"rungs": [1, 3]}, "there is nothing left to train, as the budget ends in"),
        ({"rungs": [1], "max_steps": 3}, "the budget ends in epoch 1; lower the rung or raise"),
        ({"rungs": 1}, r"search\.strategy\.sw_runner\.basic_train\.rungs: .*list, not 1"),
        ({"rungs": [0]}, "rungs.0: .*greater than or equal to 1"),
        ({"rungs": [1], "keep": 1.0}, "keep: .*less than 1, not 1.0"),
        ({"rungs": [1], "keep": 0.0}, "keep: .*greater than 0, not 0.0"),
    ],
)
def test_rungs_that_make_no_sense_are_refused(network, tmp_path, options, said):
    with pytest.raises(ConfigError, match=said) as caught:
        search(*network, trained(**options), tmp_path, "cpu")
    assert "\n" not in str(caught.value)
