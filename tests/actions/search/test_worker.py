"""What measures a design, with runners that only look around."""

from types import SimpleNamespace

import pytest
import torch

from chop.actions.search.metrics.base import Runner
from chop.actions.search.run.worker import Worker
from chop.actions.search.run_study import warn_of_idle_workers
from chop.actions.search.space.base import Candidate, Parent
from chop.actions.search.spec.settings import settings_of
from chop.actions.search.spec.study_spec import build_spec

from .conftest import CHOICES, tables


class Threads(Runner):
    """A runner that counts the threads of torch."""

    side, trains = "software", False

    def __init__(self, context):
        pass

    def __call__(self, trial):
        return {"accuracy": float(torch.get_num_threads()), "average_bitwidth": 1.0}


class Greedy(Threads):
    """A runner for which there is not enough memory, in one trial."""

    def __call__(self, trial):
        if trial.number == 0:
            raise MemoryError("17 TB")
        return super().__call__(trial)


class Blind(Threads):
    """A runner that has no number for one trial."""

    def __call__(self, trial):
        return super().__call__(trial) | ({} if trial.number else {"accuracy": float("nan")})


@pytest.fixture
def worker():
    """`worker(threads=…)` measures nothing but that."""

    def make(*runners, **setup):
        pairs = tuple((cls, {}) for cls in runners or (Threads,))
        settings = settings_of(tables(**setup)).model_copy(update={"runners": pairs})
        candidate = Candidate(torch.nn.Identity(), None)
        facts = {"choices": CHOICES, "config_of": dict, "expect_training": lambda: None}
        space = SimpleNamespace(candidate=lambda config: candidate, **facts)
        graph, data = SimpleNamespace(model=torch.nn.Identity()), SimpleNamespace(dataset_info=None)
        parent = Parent(graph, None, "cls", data)
        return Worker(build_spec(parent, {}, settings, given_space=space))

    return make


@pytest.mark.parametrize("around", [1, 3])
@pytest.mark.parametrize(("setup", "wanted"), [({}, 1), ({"threads": 2}, 2)])
def test_a_trial_has_the_threads_of_the_file_wherever_it_runs(worker, around, setup, wanted):
    before = torch.get_num_threads()
    torch.set_num_threads(around)
    try:
        measured = worker(**setup)
        assert measured.run(0, {}).software["accuracy"] == wanted
        assert measured.baseline()["software"]["accuracy"] == wanted
        assert torch.get_num_threads() == around
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("runner", "error"),
    [(Greedy, "MemoryError: 17 TB"), (Blind, "ValueError: the metric accuracy is nan")],
)
def test_a_trial_without_enough_memory_or_a_number_fails_alone(worker, runner, error):
    measured = worker(runner)
    failed = measured.run(0, {})
    assert failed.state == "FAIL"
    assert failed.error.endswith(error)
    assert measured.run(1, {}).state == "COMPLETE"


@pytest.mark.parametrize(
    ("workers", "looks_back", "said"),
    [(4, True, ["Only 3 of 4 workers will be busy"]), (3, True, []), (4, False, [])],
)
def test_workers_that_will_be_idle_are_said(caplog, workers, looks_back, said):
    settings = settings_of(tables(in_flight=3))
    warn_of_idle_workers(workers, SimpleNamespace(looks_back=looks_back), settings)
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == said


class Learns(Threads):
    """A runner that trains, and says so."""

    trains = True

    def __call__(self, trial):
        trial.found["trained"] = 1.0
        return {"accuracy": 0.1, "average_bitwidth": 1.0}


class Looks(Threads):
    """A runner that looks at a network."""

    def __call__(self, trial):
        return {"accuracy": trial.found["trained"]}


@pytest.mark.parametrize("order", [(Learns, Looks), (Looks, Learns)])
def test_a_network_is_looked_at_after_it_was_trained_wherever_the_tables_stand(worker, order):
    assert worker(*order).run(0, {}).software["accuracy"] == 1.0
