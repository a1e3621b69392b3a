"""What is kept of a trial is a few numbers: the rest is shared, or on the disk."""

import dataclasses
import json
import tracemalloc

import pytest

from chop.actions.search.space.choices import Choices, OneOf, Parameter

from . import test_predecessor as predecessor
from .conftest import TWO, InOrder, run_loop
from .runners.conftest import make_scene

TEN = Choices(
    [Parameter(f"seq_blocks_{i}/config/weight_width", OneOf((2, 4, 8))) for i in range(10)]
)


class Weighed(InOrder):
    """Notes the memory in use after some of its trials."""

    def __init__(self, *at):
        super().__init__(1, TWO)
        self.at, self.used, self.done = at, [], 0

    def wait(self, seconds):
        (out,) = super().wait(seconds)
        self.done += 1
        if self.done in self.at:
            self.used.append(tracemalloc.get_traced_memory()[0])
        metrics = {"accuracy": out.number / 7, "loss": out.number / 9}
        return [dataclasses.replace(out, software=metrics, hardware={"bits": out.number / 11})]


def growth(path, sampler, first=300, last=1300):
    """Bytes that a search keeps of each trial."""
    engine = Weighed(first, last)
    tracemalloc.start()
    try:
        run_loop(path, sampler, engine, choices=TEN, n_trials=last + 10)
    finally:
        tracemalloc.stop()
    before, after = engine.used
    return (after - before) / (last - first)


# a sampler that learns has the trials in a study of its own
@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "most"),
    [("random", 2_500), pytest.param("nsgaii", 4_500, marks=pytest.mark.slow)],
)
def test_a_further_trial_costs_little_memory(tmp_path, sampler, most):
    assert growth(tmp_path / "j", sampler) < most


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
