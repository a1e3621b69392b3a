"""One seed, one table of trials: whoever measures them, and however often that was killed."""

import contextlib
import functools
import random

import pytest

from chop.actions.search.results.files import Results
from chop.actions.search.samplers.base import SamplerContext, strategy_named
from chop.actions.search.space.choices import Choices, OneOf, Parameter, Range

from .conftest import (
    CHOICES,
    NUMBERS,
    TWO,
    InOrder,
    Shuffled,
    killed_again_and_again,
    recorded,
    run_loop,
    tables,
)

pytestmark = pytest.mark.usefixtures("no_disk")

ONE = ("maximize",)
LIAR = {"constant_liar": True, "n_startup_trials": 5}
# sampler, objectives, choices, trials, further keys of setup
CASES = {
    "tpe": ("tpe", TWO, CHOICES, 40, {}),
    "tpe, one objective": ("tpe", ONE, CHOICES, 40, {}),
    "tpe that counts what runs": ("tpe", TWO, CHOICES, 30, {"sampler_options": LIAR}),
    "nsgaii": ("nsgaii", TWO, CHOICES, 60, {"sampler_options": {"population_size": 6}}),
    "nsgaiii": ("nsgaiii", TWO, CHOICES, 40, {"sampler_options": {"population_size": 6}}),
    "random": ("random", TWO, CHOICES, 40, {}),
    "qmc": ("qmc", TWO, CHOICES, 40, {}),
    "gp": ("gp", ONE, CHOICES, 14, {"sampler_options": {"n_startup_trials": 5}, "in_flight": 3}),
    "cmaes": ("cmaes", ONE, NUMBERS, 40, {"in_flight": 5}),
    "brute": ("brute", TWO, CHOICES, 60, {}),
}


# more of the same, or expensive
FURTHER = ("tpe, one objective", "tpe that counts what runs", "nsgaiii", "gp")


@pytest.fixture(
    scope="module",
    params=[pytest.param(c, marks=[pytest.mark.slow] if c in FURTHER else []) for c in CASES],
)
def case(request):
    return CASES[request.param]


@pytest.fixture(scope="module")
def alone(tmp_path_factory, case):
    """The table of a search by one worker that nobody disturbed."""
    sampler, ways, choices, count, setup = case
    engine, path = InOrder(1, ways), tmp_path_factory.mktemp("alone") / "journal"
    run_loop(path, sampler, engine, choices=choices, n_trials=count, **setup)
    table = recorded(path, choices, ways)
    assert len(table) == count
    return table


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_workers_gives_the_same_table(tmp_path, case, alone, workers):
    sampler, ways, choices, count, setup = case
    engine = Shuffled(workers, ways, seed=workers)
    run_loop(tmp_path / "n", sampler, engine, choices=choices, n_trials=count, **setup)
    assert recorded(tmp_path / "n", choices, ways) == alone


def test_the_importance_of_keys_does_not_depend_on_who_finished_first(tmp_path):
    shares = []
    for engine in (InOrder(1, TWO), Shuffled(4, TWO, seed=0)):
        loop = run_loop(tmp_path / str(engine.slots), "random", engine, n_trials=40)
        results = Results(loop.store, loop.settings.objectives, config_of=lambda chosen: {})
        *_, summary = results.content({})
        shares.append(summary["importance"])
    assert shares[0] == shares[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_search_that_was_killed_again_and_again_gives_the_same_table(
    tmp_path, case, alone, workers
):
    sampler, ways, choices, count, setup = case
    setup = setup | {"choices": choices, "n_trials": count}
    run = functools.partial(run_loop, tmp_path / "k", sampler, **setup)
    engine = functools.partial(InOrder if workers == 1 else Shuffled, workers, ways)
    killed_again_and_again(run, engine, workers, count // 4)
    assert recorded(tmp_path / "k", choices, ways) == alone


@pytest.mark.sampled(1)
def test_a_search_whose_n_trials_was_raised_goes_on_as_if_it_had_been_so(tmp_path, case, alone):
    sampler, ways, choices, count, setup = case
    for trials in (1, count // 3, count // 3 + 1, count):
        engine = Shuffled(2, ways, seed=trials)
        run_loop(tmp_path / "r", sampler, engine, choices=choices, n_trials=trials, **setup)
        assert len(recorded(tmp_path / "r", choices, ways)) == trials
    assert recorded(tmp_path / "r", choices, ways) == alone


@pytest.mark.sampled(2)
def test_another_seed_gives_another_table(tmp_path, case, alone):
    sampler, ways, choices, count, setup = case
    engine = InOrder(1, ways)
    run_loop(tmp_path / "o", sampler, engine, choices=choices, n_trials=count, seed=8, **setup)
    assert recorded(tmp_path / "o", choices, ways) != alone


def test_trials_that_start_together_are_different_designs(case, alone):
    first = [repr(chosen) for _, chosen, *_ in alone[:8]]
    assert len(set(first)) >= 5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sampler", ["tpe", "nsgaii", "random", "qmc", "gp"])
def test_every_key_varies_even_if_only_some_designs_have_it(sampler):
    keys = [Parameter(f"{n}/width", Range(0, 50), "name", (n,)) for n in "abcd"]
    choices = Choices([Parameter("name", OneOf(tuple("abcd"))), *keys])
    strategy = strategy_named(sampler)(SamplerContext(choices, ONE, 30, 3))
    found = {}
    for number in range(30):
        chosen = strategy.ask(number)
        strategy.tell(number, [float(number % 7)])
        found.setdefault(chosen["name"], []).append(chosen[f"{chosen['name']}/width"])
    assert all(len(set(widths)) > 1 for widths in found.values() if len(widths) > 3)


def test_what_a_trial_is_stopped_by_does_not_depend_on_the_workers(tmp_path):
    """The front that a trial has to get onto is part of the question."""
    fronts = []
    for workers in (1, 16):
        seen = {}

        class Noting(Shuffled):
            def submit(self, task, seen=seen):
                seen[task.number] = task.known.front
                super().submit(task)

        table = tables(TWO, sampler="random", n_trials=40)
        table["strategy"]["sw_runner"] = {"basic_train": {"max_epochs": 1}}
        table["strategy"]["early_stopping"] = {"margin": {"accuracy": 0.1}}
        run_loop(tmp_path / str(workers), "random", Noting(workers, TWO), table=table)
        fronts.append(seen)
    assert fronts[0] == fronts[1]
    assert any(fronts[0].values())


@pytest.mark.parametrize("sampler", ["tpe", "nsgaii", "cmaes"])
def test_a_study_that_was_asked_otherwise_is_not_replayed(tmp_path, sampler):
    run_loop(tmp_path / "j", sampler, InOrder(1, ONE), choices=NUMBERS, n_trials=12, seed=1)
    refused = pytest.raises(ValueError, match="samples another design for trial 2 than")
    with contextlib.nullcontext() if sampler == "tpe" else refused:  # tpe goes by the trials alone
        run_loop(tmp_path / "j", sampler, InOrder(1, ONE), choices=NUMBERS, n_trials=14, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "nsgaii"])
def test_the_command_gives_one_table_for_any_workers_and_when_it_was_killed(searches, sampler):
    setup = f"n_trials = 40\nsampler = '{sampler}'"
    config = searches.config(setup, odd="seconds = 0.02")
    searches.run(config, out="alone")
    table = searches.table("alone")
    assert len(table) == 40
    assert (searches.results("alone") / "study.pkl").exists()
    for workers in (2, 4):
        searches.run(config, "--workers", workers, out=f"w{workers}")
        assert searches.table(f"w{workers}") == table
    moments = random.Random(sampler)
    for life in range(3):  # of 12 trials at most
        flags = ["--workers", 2, *(["--resume"] if life else [])]
        wanted = searches.written("killed") + moments.randrange(3, 10)
        process = searches.start(config, *flags, out="killed", trials=6)
        searches.until(lambda wanted=wanted: searches.written("killed") >= wanted, process)
        searches.kill(process)
    searches.run(config, "--resume", out="killed")
    assert searches.table("killed") == table
