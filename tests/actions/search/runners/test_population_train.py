"""`population_train`: many trials as one, each as `basic_train` would have it alone."""

import dataclasses
import logging

import pytest
import torch
from torch import nn

from chop.actions.search.metrics.base import RUNNERS, Stopped, check_options
from chop.methods.population import population as population_module
from chop.passes import run_pass

from .conftest import graph_of, make_scene, make_trial

Train, Alone = RUNNERS["population_train"], RUNNERS["basic_train"]
BUDGET = {"max_epochs": 3, "batch_size": 8192, "learning_rate": 0.02, "num_val_samples": 2000}
WIDTHS = (3, 8, 5, 12)


@pytest.fixture(scope="module", autouse=True)
def _quiet():
    """The passes that make candidates say what they do."""
    logger = logging.getLogger("chop.passes")
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(logging.NOTSET)


def network(width):
    return nn.Sequential(
        *(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU()),
        *(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 5)),
    )


def joint(number, **facts):
    """A candidate of other widths, other formats and, if odd, pruned; in float64."""
    torch.manual_seed(number)
    graph = graph_of(network(6), torch.randn(4, 16))
    width = {"config": {"name": "both", "width": WIDTHS[number % 4]}}
    graph, _ = run_pass("redefine", graph, {"by": "name", "_3": width, "weights": "fresh"})
    if number % 2:
        options = {"scope": "local", "granularity": "elementwise", "method": "l1-norm"}
        graph, _ = run_pass("prune", graph, {"weight": {**options, "sparsity": 0.5}})
    bits = {f"{o}_width": 5 + number for o in ("data_in", "weight", "bias")}
    bits |= {f"{o}_frac_width": 4 for o in ("data_in", "weight", "bias")}
    linear = {"config": {"name": "integer", **bits}}
    graph, _ = run_pass(
        "quantize", graph, {"by": "type", "default": {"config": {"name": None}}, "linear": linear}
    )
    graph.model.double()
    return make_trial(graph, number=number, seed=10 + number, config={"n": number}, **facts)


def plain(number, width=6, **facts):
    torch.manual_seed(number)
    graph = graph_of(network(width), torch.randn(4, 16))
    graph.model.double()
    return make_trial(graph, number=number, seed=number, **facts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_steps": 11, "lr_scheduler": "cosine", "num_warmup_steps": 3},
        {"optimizer": "sgd", "weight_decay": 0.01, "lr_scheduler": "constant"},
    ],
)
def test_each_trial_comes_to_what_it_comes_to_alone(jets, options):
    options = BUDGET | options
    found = Train(jets, population=4, **options)(joint(0))
    together = Train(jets, population=4, **options).together([joint(n) for n in range(4)])
    alone = {n: Alone(jets, **options)(joint(n)) for n in range(4)}
    assert together.keys() == alone.keys()
    for number, metrics in alone.items():
        assert together[number] == pytest.approx(metrics, rel=1e-6)
    assert found == alone[0]


@pytest.mark.slow
def test_the_weights_are_those_of_alone_and_modes_and_random_numbers_stay(jets):
    trials = [joint(number) for number in range(3)]
    for trial in trials:
        trial.model.eval()
    random = torch.get_rng_state()
    Train(jets, **BUDGET).together(trials)
    assert torch.equal(random, torch.get_rng_state())
    for number, trial in enumerate(trials):
        assert not any(module.training for module in trial.model.modules())
        single = joint(number)
        Alone(jets, **BUDGET)(single)
        theirs = single.model.state_dict()
        for key, value in trial.model.state_dict().items():
            assert torch.allclose(value.double(), theirs[key].double(), atol=1e-7), key


@pytest.mark.slow
def test_one_that_diverges_fails_alone(jets):
    trials = [plain(number) for number in range(3)]
    with torch.no_grad():
        trials[1].model.get_submodule("0").weight.fill_(float("inf"))
    found = Train(jets, **BUDGET).together(trials)
    assert isinstance(found[1], FloatingPointError)
    for number in (0, 2):
        assert found[number] == pytest.approx(Alone(jets, **BUDGET)(plain(number)), rel=1e-6)


def test_a_trial_is_stopped_by_the_search(jets):
    told = []

    def enough(epoch, metrics):
        told.append(epoch)
        if epoch == 2:
            raise Stopped("dominated")

    trials = [plain(0), plain(1, report=enough), plain(2)]
    found = Train(jets, **BUDGET).together(trials)
    assert isinstance(found[1], Stopped)
    assert str(found[1]) == "dominated"
    assert told == [1, 2, 2]  # the last says why, also to a process that resumed
    assert found[2] == pytest.approx(Alone(jets, **BUDGET)(plain(2)), rel=1e-6)


# --- rungs


@pytest.mark.slow
def test_rungs_let_the_better_half_go_on(jets):
    options = BUDGET | {"rungs": [1, 2]}
    losses = {}
    trials = [
        plain(n, report=lambda epoch, m, n=n: losses.setdefault(epoch, {}).update({n: m["loss"]}))
        for n in range(5)
    ]
    found = Train(jets, **options).together(trials)
    assert sorted(len(at) for at in losses.values()) == [2, 3, 5]
    best = sorted(losses[1], key=losses[1].get)[:3]
    assert set(losses[2]) == set(best)
    survivors = sorted(losses[2], key=losses[2].get)[:2]
    stopped = {n for n, result in found.items() if isinstance(result, Stopped)}
    assert stopped == set(range(5)) - set(survivors)
    assert str(found[sorted(stopped)[0]]).startswith("left at the rung after epoch")
    for number in survivors:
        assert found[number] == pytest.approx(Alone(jets, **BUDGET)(plain(number)), rel=1e-6)
    again = Train(jets, **options).together([plain(n) for n in range(5)])
    assert {n for n, r in again.items() if isinstance(r, Stopped)} == stopped


def test_a_rung_asks_for_all_goals(jets):
    def costs(number):
        return lambda metrics: (metrics["loss"], 0.0 if number == 0 else 1.0)

    trials = [plain(n, width=(1 if n == 0 else 12), costs=costs(n)) for n in range(4)]
    with torch.no_grad():
        trials[0].model.get_submodule("5").weight.fill_(0)  # the worst, but the cheapest
    found = Train(jets, **BUDGET, rungs=[1]).together(trials)
    assert isinstance(found[0], dict)
    assert sum(isinstance(result, dict) for result in found.values()) == 2


# --- what cannot be stacked


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def test_another_depth_is_another_population(jets, caplog):
    deep = nn.Sequential(*network(6), nn.ReLU(), nn.Linear(5, 5))
    trials = [plain(0), plain(1), make_trial(graph_of(deep, torch.randn(4, 16)), number=2)]
    trials[2].model.double()
    with caplog.at_level(logging.WARNING):
        runner = Train(jets, **BUDGET)
        found = runner.together(trials)
        runner.together([plain(0), plain(1), trials[2]])
    assert found.keys() == {0, 1}
    [said] = messages(caplog)
    assert said.startswith("population_train: trials 2 are trained one by one: candidate 1 has 8")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"distill": 0.5}, "distill needs the parent's scores"),
        ({"gradient_accumulation_steps": 2}, "does not support accumulate_grad_batches"),
    ],
)
def test_what_populations_cannot_do_is_said_once(jets, caplog, options, reason):
    runner = Train(jets, **BUDGET, **options)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert runner.together([plain(0), plain(1)]) == {}
    [said] = messages(caplog)
    assert reason in said


def test_one_network_for_all_designs_is_no_population(jets, caplog):
    trial = plain(0)
    other = make_trial(trial.graph, number=1)
    assert Train(jets, **BUDGET).together([trial, other]) == {}
    assert "one network for all designs" in caplog.text


def test_a_network_that_does_not_fit_leaves_the_others_to_themselves(jets, caplog):
    wrong = make_trial(graph_of(nn.Sequential(nn.Linear(9, 5)), torch.randn(4, 9)), number=0)
    other = make_trial(graph_of(nn.Sequential(nn.Linear(16, 5)), torch.randn(4, 16)), number=1)
    assert Train(jets, **BUDGET).together([wrong, other]) == {}
    assert "are trained one by one" in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rungs": [2, 1]}, "rungs must be epochs in increasing order"),
        ({"rungs": [1, 3]}, "after the rung 3 there is nothing left to train"),
    ],
)
def test_rungs_that_make_no_sense_are_refused(jets, given, said):
    with pytest.raises(ValueError, match=said):
        Train(jets, **BUDGET, **given)


@pytest.mark.parametrize("given", [{"population": 0}, {"keep": 1.0}, {"rungs": [0]}, {"rungs": 1}])
def test_options_are_checked(given):
    with pytest.raises(ValueError, match=f"here.{next(iter(given))}"):
        check_options(Train, {"max_epochs": 1, **given}, "here")


def test_it_takes_all_options_of_basic_train():
    assert Alone.options().keys() < Train.options().keys()
    options = {"max_epochs": 2, "keep": 0.3}
    assert check_options(Train, options, "") == options


# --- snapshots


class Killed(BaseException):
    """The process is gone."""


def scene_in(folder, seed=0):
    return dataclasses.replace(make_scene(seed=seed), folder=folder)


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_population_that_was_killed_goes_on_from_its_last_epoch(tmp_path, monkeypatch, epoch):
    options = BUDGET | {"rungs": [2], "population": 4}
    whole = Train(scene_in(None), **options).together([joint(n) for n in range(4, 8)])
    context, finish = scene_in(tmp_path / "kept"), population_module.Population.enter_scores
    taken = []

    def fatal(self, **how):
        taken.append(self.epoch)
        if len(taken) == epoch:
            raise Killed
        return finish(self, **how)

    monkeypatch.setattr(population_module.Population, "enter_scores", fatal)
    with pytest.raises(Killed):
        Train(context, **options).together([joint(n) for n in range(4, 8)])
    files = list((tmp_path / "kept").iterdir())
    assert [file.name.startswith("4-0-") for file in files] == [True] * (epoch > 1)
    resumed = Train(context, **options).together([joint(n) for n in range(4, 8)])
    assert taken == [*range(epoch), *range(epoch - 1, 3)]
    assert resumed.keys() == whole.keys()
    for number, result in whole.items():
        if isinstance(result, Stopped):
            assert repr(resumed[number]) == repr(result)
        else:
            assert resumed[number] == pytest.approx(result, rel=1e-9)


@pytest.mark.slow
def test_other_options_do_not_go_on_from_a_snapshot(tmp_path):
    context = scene_in(tmp_path)
    trials = [plain(0), plain(1)]
    Train(context, **BUDGET).together(trials)
    other = BUDGET | {"learning_rate": 0.005}
    found = Train(context, **other).together([plain(0), plain(1)])
    assert found[0] == pytest.approx(Alone(context, **other)(plain(0)), rel=1e-6)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_another_parent_does_not_go_on_from_a_snapshot(tmp_path):
    Train(scene_in(tmp_path), **BUDGET).together([plain(0), plain(1)])
    Train(scene_in(tmp_path, seed=1), **BUDGET).together([plain(0), plain(1)])
    assert len(list(tmp_path.iterdir())) == 2, "each has one of its own"
    Train(scene_in(tmp_path), **BUDGET).together([plain(0), plain(1)])
    assert len(list(tmp_path.iterdir())) == 2, "the same parent finds its own again"


@pytest.mark.parametrize("runner", [Train, Alone])
def test_the_parent_is_scored_once_and_as_it_is(jets, trial, runner):
    measure = runner(jets, **BUDGET)
    before = {key: value.clone() for key, value in trial.model.state_dict().items()}
    score = RUNNERS["basic_evaluation"](jets, num_samples=BUDGET["num_val_samples"])(trial)
    found = measure.parent_metrics(trial)
    assert found == pytest.approx(score, rel=1e-6)
    assert measure.parent_metrics(trial) is found
    for key, value in trial.model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert measure.samples_by_metric() == {"accuracy": BUDGET["num_val_samples"]}
