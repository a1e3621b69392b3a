"""What a person sees of a search: on a terminal, in the log, in the folder."""

import contextlib
import os
import pty
import subprocess
import sys
from types import SimpleNamespace

import pytest

from chop.actions.search.metrics.objectives import Constraint, Objective, Objectives
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.results.display import plan, progress_bar
from chop.actions.search.results.files import Results
from chop.actions.search.run.loop import Forecast, Progress
from chop.actions.search.space.choices import Choices, OneOf, Parameter, Range
from chop.actions.search.spec.settings import settings_of

from .conftest import search_words, tables

GOALS = Objectives((Objective("accuracy", "maximize"), Objective("bitops", "minimize")))


def results_of(objectives, *outcomes):
    """The results of a study that is only in memory."""
    by_number = {out.number: out for out in outcomes}
    designs = {number: {"width": number} for number in by_number}
    return Results(SimpleNamespace(outcomes=by_number, designs=designs), objectives, None)


def outcome(number, accuracy, bitops, violations=()):
    metrics = {"accuracy": accuracy}, {"bitops": bitops}
    return Outcome(number, "COMPLETE", (accuracy, bitops), violations, *metrics)


def test_the_best_is_the_cheapest_that_is_about_as_good():
    """A front runs down to designs that nobody wants, which must not decide what is best."""
    front = [outcome(0, 0.25, 10.0), outcome(1, 0.63, 150.0), outcome(2, 0.70, 330.0)]
    assert results_of(GOALS, *front, outcome(3, 0.703, 900.0)).chosen.number == 2


def test_of_one_objective_the_best_is_the_best():
    objectives = Objectives(GOALS.members, summed="maximize")
    outcomes = [Outcome(n, "COMPLETE", (value,)) for n, value in enumerate((0.1, 0.9, 0.5))]
    assert results_of(objectives, *outcomes).chosen.number == 1


def test_constraints_that_no_design_meets_are_said_with_the_nearest():
    objectives = Objectives(GOALS.members, constraints=(Constraint("bitops", "<=", 5.0),))
    made = results_of(objectives, outcome(0, 0.5, 10.0, (5.0,)), outcome(1, 0.4, 7.0, (2.0,)))
    assert made.chosen is None
    assert made.nearest_miss() == "No design meets bitops <= 5; nearest is trial 1: bitops = 7"


def test_the_bar_is_drawn_before_the_number_of_trials_is_known(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar(GOALS, wanted=True, log=print) as show:
        show(Progress(None))
        show(Progress(1200, done=3))


@pytest.mark.slow
def test_a_search_on_a_terminal_shows_a_bar_and_ends_well(searches):
    config = searches.config("sampler = 'random'\nn_trials = 30")
    ours, theirs = pty.openpty()
    words = search_words(config, searches.checkpoint)
    words.remove("--no-progress")
    environment = os.environ | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "chop", *words], stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(ours, 4096):
            said += part
    os.close(ours)
    assert process.wait(60) == 0, said.decode()
    assert b"/30 trials" in said
    assert b"Searching is completed" in said


@pytest.mark.slow
def test_the_number_of_trials_can_be_given_and_raised_on_the_command_line(searches):
    config = searches.config("sampler = 'random'\nn_trials = 30")
    assert "3 trials by random" in searches.run(config, "--n-trials", 3)
    assert len(searches.table()) == 3
    searches.run(config, "--n-trials", 5, "--resume")
    assert len(searches.table()) == 5


JOINT = """
[search.search_space]
name = "graph/joint"
[search.search_space.passes.prune.seed.weight]
sparsity = [0.25, 0.5]
method = ["l1-norm"]
[search.search_space.passes.quantize.setup]
by = "type"
[search.search_space.passes.quantize.seed.linear.config]
name = ["integer"]
data_in_width = [8]
data_in_frac_width = [4]
weight_width = [4, 8]
weight_frac_width = ["NA"]
bias_width = [8]
bias_frac_width = [4]
"""


@pytest.mark.slow
def test_a_pruned_and_quantized_design_can_be_tested_afterwards(searches, ch, tmp_path):
    text = searches.config("sampler = 'brute'\nn_trials = 4").read_text()
    start, end = text.index("[search.search_space]"), text.index("[search.strategy]")
    config = tmp_path / "joint.toml"
    config.write_text(text[:start] + JOINT + text[end:])
    said = searches.run(config)
    assert "Pruning module" not in said  # of every trial
    searches.run(config, "--apply", "best")
    (folder,) = searches.results().glob("trial_*")
    tested = ch("test", "jsc-tiny", "jsc-sim", "--load", str(folder), "--load-type", "mz")
    assert "test_acc_epoch" in tested.stdout + tested.stderr


def test_the_plan_says_ranges_in_words():
    keys = [Parameter("a/config/name", OneOf(("x", "y"))), Parameter("a/config/w", Range(2, 8))]
    said = plan(SimpleNamespace(choices=Choices(keys)), settings_of(tables()), 1)
    assert "2 to 8" in said
    assert "1 node, 2 keys with a choice, 14 designs" in said
    assert "Only" not in said


def left_after(done, total, seconds_of, startup=0.0):
    """What is forecast after `done` of the trials, and how long the rest takes."""
    forecast, clock = Forecast(), 100.0
    forecast.note(0, clock)
    clock += startup
    for number in range(done):
        clock += seconds_of(number)
        forecast.note(number + 1, clock)
    return forecast.seconds_left(total), sum(map(seconds_of, range(done, total)))


@pytest.mark.parametrize("done", [2, 10, 100, 5000])
@pytest.mark.parametrize("startup", [0.0, 30.0])
def test_the_time_left_is_that_of_whole_trials(done, startup):
    """Starting the workers is not part of every trial."""
    forecast, truth = left_after(done, 10_000, lambda number: 0.05, startup)
    assert forecast == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize(("done", "error"), [(400, 3.0), (1000, 1.5), (2000, 1.2), (3900, 1.1)])
def test_a_sampler_that_becomes_slower_is_expected_to_go_on_so(done, error):
    forecast, truth = left_after(done, 4000, lambda number: 1e-3 + 1e-5 * number)
    assert truth / error < forecast < truth * error


def test_one_slow_moment_does_not_grow_for_ever():
    forecast, truth = left_after(80, 4000, lambda number: 0.015 if 50 < number <= 80 else 0.01)
    assert forecast < 4 * truth


def test_nothing_is_forecast_before_a_trial_has_ended():
    assert left_after(0, 10, float)[0] is None
    assert Progress(None).seconds_left is None
    assert left_after(10, 10, float)[0] == 0


def test_the_forecast_of_a_resumed_search_leaves_out_earlier_runs():
    progress = Progress(110)
    progress.done = 100
    progress.begin()
    assert progress.seconds_left is None
    progress.count(Outcome(100, "COMPLETE"))
    assert progress.seconds_left < 60
