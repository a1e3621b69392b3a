"""After the search: designs trained to the end, tested once, and shown beside the baseline."""

import json
import logging
import re
import shutil
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from chop.actions import search
from chop.actions.config import ConfigError
from chop.actions.search.metrics.base import metric
from chop.actions.search.results import retrain
from chop.actions.search.results.page.page import write_report
from chop.actions.search.run.worker import Worker
from chop.actions.search.spec.study_spec import check_retrain_splits
from chop.checkpoints import load_graph
from chop.dataset import MaseDataModule
from chop.methods.population import groups, retraining
from chop.models import get_model, get_model_info

from .conftest import Killed

WIDTHS = {f"{operand}_width": [8] for operand in ("data_in", "bias")}
FRACTIONS = {f"{operand}_frac_width": [None] for operand in ("data_in", "weight", "bias")}
INTEGER = {"name": ["integer"], "weight_width": [2, 4, 8], **WIDTHS, **FRACTIONS}
SPACE = {
    "name": "graph/quantize/mixed_precision_ptq",
    "setup": {"by": "type"},
    "seed": {"linear": {"config": INTEGER}},
}
HOW = {"max_epochs": 2, "early_stopping": 1, "learning_rate": 0.01}


EVERY = {"late": {"direction": "maximize"}, "early": {"direction": "minimize"}}


class Watched(MaseDataModule):
    """Calls `when_tested` each time that the test split is looked at."""

    when_tested = staticmethod(lambda: None)

    @property
    def test_dataset(self):
        self.when_tested()
        return super().test_dataset


@pytest.fixture(scope="module")
def prepared():
    made = Watched("jsc-sim", batch_size=8192)
    made.prepare_data()
    made.setup()
    return made


@pytest.fixture
def data(prepared):
    """The data module, which forgets `when_tested` after the test."""
    yield prepared
    vars(prepared).pop("when_tested", None)


@contextmanager
def listening(heard):
    """Meanwhile, `heard` is called with each message of the retraining, and may raise."""
    logger, listener = logging.getLogger(retraining.__name__), logging.Handler(logging.INFO)
    listener.emit = lambda record: heard(record.getMessage())
    level = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)


@pytest.fixture
def run(data, tmp_path):
    """`run(designs=…)` searches three designs and retrains those.

    With `every`, each of the three is on the front.
    """

    def go(resume=False, parent=1, every=False, **how):
        torch.manual_seed(parent)
        model = get_model("jsc-tiny", task="cls", dataset_info=data.dataset_info, pretrained=False)
        tables = {
            "search_space": SPACE,
            "strategy": {
                "sw_runner": {"basic_evaluation": {"num_samples": 512}},
                "hw_runner": {"late": {}, "early": {}} if every else {"average_bitwidth": {}},
                "setup": {"sampler": "brute", "n_trials": 3},
                "metrics": EVERY if every else {"accuracy": {}, "average_bitwidth": {}},
            },
            "retrain": HOW | ({"designs": "front"} if every else {}) | how,
        }
        info = data.dataset_info
        facts = (get_model_info("jsc-tiny"), "cls", info, data, tables, tmp_path, "cpu")
        results = search(model, *facts, resume=resume)
        return results, json.loads((tmp_path / "search.json").read_text())

    return go


def numbers(page):
    return {int(key) for key in page["test"] if key != "baseline"}


def test_the_best_design_is_trained_tested_and_saved(run, tmp_path):
    results, page = run()
    best = results.chosen.number
    assert numbers(page) == {best}
    for scores in page["test"].values():
        assert scores.keys() == {"validation", "test"}
        assert all(0 <= s["accuracy"] <= 1 and s["loss"] > 0 for s in scores.values())
    mine, parent = page["test"][str(best)], page["test"]["baseline"]
    assert mine["validation"]["loss"] < parent["validation"]["loss"]
    saved = load_graph(tmp_path / "search.retrained" / f"trial_{best}" / "transformed_ckpt")
    assert any(type(m).__name__ == "LinearInteger" for m in saved.model.modules())
    text = write_report(tmp_path / "search.json").read_text(encoding="utf-8")
    assert "Test and validation" in text
    assert "baseline" in text
    assert f"trial {best}" in text


def test_a_resumed_search_looks_at_no_test_split_again(run, data):
    _, before = run(designs="front")

    def never():
        raise AssertionError("it was tested before")

    data.when_tested = never
    results, after = run(resume=True, designs="front")
    assert after["test"] == before["test"]
    assert numbers(after) == {out.number for out in results.best}


@pytest.mark.slow
def test_training_that_was_interrupted_goes_on(run, data, tmp_path):
    def killed():
        if list(tmp_path.glob("search.retrained/trial_*/last.ckpt")):
            raise Killed

    data.when_tested = killed
    with pytest.raises(Killed):
        run()
    del data.when_tested
    [last] = tmp_path.glob("search.retrained/trial_*/last.ckpt")
    written = last.stat().st_mtime_ns
    _, page = run(resume=True)
    assert len(numbers(page)) == 1
    assert last.stat().st_mtime_ns == written, "no step was taken twice"


def test_scores_that_are_damaged_are_named_and_measured_again_once_deleted(run, tmp_path):
    _, before = run()
    cut, wrong = '{"mark": "0f", "sco', '{"mark": "", "scores": {"test": 1}}'
    for pattern, content, reason in (
        ("baseline.json", cut, r"is damaged \(it is cut off at line 1, column 16"),
        ("trial_*/result.json", wrong, "does not hold the test metrics"),
    ):
        [file] = (tmp_path / "search.retrained").glob(pattern)
        file.write_text(content)
        with pytest.raises(ValueError, match=f"{re.escape(str(file))} {reason}.*; delete it, and "):
            run(resume=True)
        file.unlink()
    _, after = run(resume=True)
    assert after["test"] == before["test"]


def test_other_options_are_no_reason_to_test_again(run):
    run()
    with pytest.raises(ConfigError, match="remove the directory"):
        run(resume=True, learning_rate=0.1)


@pytest.mark.slow
def test_scores_of_another_parent_are_not_taken_for_ones_own(run, tmp_path):
    run()
    (tmp_path / "search.journal").unlink()
    said = r"search\.retrained belongs to another design, parent or data"
    with pytest.raises(ConfigError, match=said):
        run(parent=2)


def test_a_number_of_designs_is_that_many_of_the_front(run):
    results, page = run(designs=2)
    assert numbers(page) == {out.number for out in results.ranked[:2]}


# --- several at once


def test_without_methods_designs_are_retrained_one_by_one(run, monkeypatch, tmp_path):
    monkeypatch.setattr(retrain, "RETRAINERS", {})
    _, page = run(designs=2)
    begun = {file.parent.name for file in tmp_path.glob("search.retrained/trial_*/last.ckpt")}
    assert begun == {f"trial_{number}" for number in numbers(page)}


def test_a_method_is_given_what_those_before_it_have_left(monkeypatch, tmp_path):
    designs = [SimpleNamespace(number=n, file=tmp_path / str(n)) for n in range(5)]
    given = []

    def first(spec, folder, designs):
        given.append([design.number for design in designs])
        designs[2].file.touch()
        return [0]

    def second(spec, folder, designs):
        given.append([design.number for design in designs])
        return [3]

    monkeypatch.setattr(retrain, "RETRAINERS", {"first": first, "second": second})
    assert retrain._train_together(None, tmp_path, designs) == [0, 3]
    assert given == [[0, 1, 2, 3, 4], [1, 3, 4]]


@pytest.fixture
def all_three(own_runners):
    """Two metrics by which every design is on the front."""
    for name in EVERY:
        metric(name, side="hardware", better="minimize")(lambda trial: trial.number)


@pytest.mark.slow
@pytest.mark.usefixtures("all_three")
@pytest.mark.parametrize("patience", [1, 5])
def test_designs_of_one_family_become_what_each_becomes_alone(
    run, monkeypatch, caplog, tmp_path, patience
):
    how = {"early_stopping": patience, "max_epochs": 4}
    folder = tmp_path / "search.retrained"

    def networks():
        files = {n: folder / f"trial_{n}" / "transformed_ckpt" for n in range(3)}
        return {number: load_graph(file).model for number, file in files.items()}

    with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(groups, "reason_against", lambda models, options: "so it is")
        _, single = run(every=True, **how)
    assert "search.retrain: trials 0 are trained one by one: so it is" in caplog.text
    alone = networks()
    shutil.rmtree(folder)
    _, page = run(resume=True, every=True, **how)
    left = {file.name for file in folder.rglob("*") if file.parent.name.startswith("trial_")}
    assert left == {"transformed_ckpt", "result.json"}, "they were one population"
    assert list(page["test"]) == list(single["test"])
    for name, scores in single["test"].items():
        for split, metrics in scores.items():
            # a number between two of a format enlarges the rounding of sums
            assert page["test"][name][split]["loss"] == pytest.approx(metrics["loss"], rel=0.02)
    for number, model in networks().items():
        theirs = alone[number]
        assert [*map(type, model.children())] == [*map(type, theirs.children())]
        assert model.state_dict().keys() == theirs.state_dict().keys()
        mine, counted = (
            [m.num_batches_tracked for m in network.modules() if hasattr(m, "running_mean")]
            for network in (model, theirs)
        )
        assert mine == counted


@pytest.mark.slow
@pytest.mark.usefixtures("all_three")
def test_a_population_that_was_killed_goes_on_from_its_last_epoch(run, tmp_path):
    how = {"max_epochs": 3, "early_stopping": 3, "every": True}
    _, whole = run(**how)
    shutil.rmtree(tmp_path / "search.retrained")
    epochs = []

    def heard(message):
        if message.startswith("Epoch "):
            epochs.append(int(message.split()[1]))
            if epochs == [1, 2]:
                raise Killed

    with listening(heard):
        with pytest.raises(Killed):
            run(resume=True, **how)
        [snapshot] = (tmp_path / "search.retrained").glob("population-*.pt")
        _, page = run(resume=True, **how)
    assert epochs == [1, 2, 2, 3], "the first epoch was not trained again"
    assert page["test"] == whole["test"]
    assert not snapshot.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("all_three")
def test_nothing_is_tested_before_all_of_a_population_are_trained(run, data, tmp_path):
    tested, epochs = [], []

    def killed():
        networks = tmp_path.glob("search.retrained/trial_*/transformed_ckpt/graph.json")
        tested.append(len(list(networks)))
        if tested.count(3) == 3:  # one of them was tested
            raise Killed

    data.when_tested = killed
    with pytest.raises(Killed):
        run(every=True)
    assert set(tested) == {0, 3}, "first the parent, then all three"
    assert not list(tmp_path.glob("search.retrained/trial_*/result.json"))
    del data.when_tested
    with listening(lambda message: epochs.append(message) if "Epoch" in message else None):
        _, page = run(resume=True, every=True)
    assert numbers(page) == {0, 1, 2}
    assert epochs == []


@pytest.mark.slow
@pytest.mark.usefixtures("all_three")
def test_one_that_diverges_is_named_and_costs_the_others_nothing(run, monkeypatch, tmp_path):
    untrained = Worker.untrained

    def broken(worker, number, chosen):
        graph = untrained(worker, number, chosen)
        if number == 1:
            with torch.no_grad():
                next(graph.model.parameters()).fill_(float("inf"))
        return graph

    monkeypatch.setattr(Worker, "untrained", broken)
    with pytest.raises(FloatingPointError, match="trial 1 cannot be retrained"):
        run(every=True)
    folder = tmp_path / "search.retrained"
    assert {file.parent.name for file in folder.glob("*/result.json")} == {"trial_0", "trial_2"}


@pytest.mark.slow
@pytest.mark.usefixtures("all_three")
def test_one_that_was_begun_alone_is_finished_alone(run, tmp_path):
    results, before = run(every=True, designs="best")
    folder, best = tmp_path / "search.retrained", str(results.chosen.number)
    (folder / f"trial_{best}" / "result.json").unlink()
    _, after = run(resume=True, every=True)
    assert len(after["test"]) == 4
    assert after["test"][best] == before["test"][best]
    begun = {file.parent.name for file in folder.glob("*/last.ckpt")}
    assert begun == {f"trial_{best}"}, "the others are a population"


def test_a_data_set_without_a_test_split_is_refused_before_the_search():
    info = SimpleNamespace(available_splits=("train", "validation"))
    with pytest.raises(ConfigError, match="needs the test split"):
        check_retrain_splits(SimpleNamespace(name="mine", dataset_info=info))
