"""What is kept of a trial is a few numbers: the rest is shared, or on the disk."""

import dataclasses
import json
import tracemalloc

import pytest

from chop.actions.search.coordinator import Coordinator
from chop.actions.search.outcome import Outcome
from chop.actions.search.record import Record
from chop.actions.search.search_space.choices import Choices, OneOf, Parameter
from chop.actions.search.settings import settings_of
from chop.actions.search.strategies.base import Quest, strategy_named

from . import test_predecessor as predecessor
from .conftest import InOrder, tables
from .runners.conftest import make_scene

TWO = ("maximize", "minimize")
TEN = Choices(
    [Parameter(f"seq_blocks_{i}/config/weight_width", OneOf((2, 4, 8))) for i in range(10)]
)


class Weighed(InOrder):
    """Notes the memory in use after some of its trials, among which a leader beats."""

    def __init__(self, record, at):
        super().__init__(1, TWO)
        self.record, self.at, self.used, self.done = record, at, [], 0

    def wait(self, seconds):
        (out,) = super().wait(seconds)
        self.done += 1
        if self.done % 50 == 0:
            self.record.note("beat", self.done)
        if self.done in self.at:
            self.used.append(tracemalloc.get_traced_memory()[0])
        metrics = {"accuracy": out.number / 7, "loss": out.number / 9}
        return [dataclasses.replace(out, software=metrics, hardware={"bits": out.number / 11})]


def growth(path, sampler, first=300, last=1300):
    """Bytes that a search keeps of each trial."""
    settings = settings_of(tables(TWO, sampler=sampler, n_trials=last + 10))
    record = Record(str(path), "s", TWO, TEN)
    strategy = strategy_named(sampler)(Quest(TEN, TWO, settings.n_trials, 7))
    engine = Weighed(record, (first, last))
    tracemalloc.start()
    try:
        Coordinator(strategy, engine, record, settings).run()
    finally:
        tracemalloc.stop()
    before, after = engine.used
    return (after - before) / (last - first)


# a sampler that learns has the trials in a study of its own
@pytest.mark.parametrize(
    ("sampler", "most"),
    [("random", 2_500), pytest.param("nsgaii", 4_500, marks=pytest.mark.slow)],
)
def test_a_further_trial_costs_little_memory(tmp_path, sampler, most):
    assert growth(tmp_path / "j", sampler) < most


def finished(number):
    return Outcome(
        number,
        "COMPLETE" if number % 3 else "FAIL",
        values=(number / 7, 1.0) if number % 3 else None,
        software={"accuracy": number / 7},
        violations=(0.5,),
        error=None if number % 3 else "Traceback\nValueError: é",
    )


def test_trials_that_are_read_share_what_they_have_in_common(tmp_path):
    ours = Record(str(tmp_path / "j"), "s", TWO, TEN)
    for number in range(3):
        ours.add(TEN.nth(number), {}, finished(number))
    first, *others = Record(str(tmp_path / "j"), "s", TWO, TEN).frozen()
    for other in others:
        for mine, theirs in zip(
            first.distributions.items(), other.distributions.items(), strict=True
        ):
            assert mine[0] is theirs[0]
            assert mine[1] is theirs[1]
        assert next(iter(first.user_attrs)) is next(iter(other.user_attrs))


def test_files_that_cannot_be_written_leave_those_that_were_there(tmp_path, monkeypatch):
    results = predecessor.run(make_scene(), tmp_path, predecessor.tables(setup={"n_trials": 3}))
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    config = results.config

    def broken(number):
        if number == 2:
            raise ArithmeticError("planted")
        return config(number)

    monkeypatch.setattr(results, "config", broken)
    with pytest.raises(ArithmeticError):
        results.write(tmp_path, {}, {"another": "key"})
    del before[tmp_path / "best.json"]  # which has its designs only
    assert {file: file.read_bytes() for file in before} == before
    assert not list(tmp_path.glob(".*.part"))
    assert len(json.loads((tmp_path / "log.json").read_text())) == 3
