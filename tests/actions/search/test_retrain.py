"""After the search: designs trained to the end, tested once, and shown beside the baseline."""

import json
from types import SimpleNamespace

import pytest

from chop.actions import search
from chop.actions.config import ConfigError
from chop.actions.search import retrain as module
from chop.actions.search.report.page import write_report
from chop.actions.search.settings import Retrain
from chop.checkpoints import load_graph
from chop.dataset import MaseDataModule
from chop.models import get_model, get_model_info

WIDTHS = {f"{operand}_width": [8] for operand in ("data_in", "bias")}
FRACTIONS = {f"{operand}_frac_width": [None] for operand in ("data_in", "weight", "bias")}
INTEGER = {"name": ["integer"], "weight_width": [2, 4, 8], **WIDTHS, **FRACTIONS}
SPACE = {
    "name": "graph/quantize/mixed_precision_ptq",
    "setup": {"by": "type"},
    "seed": {"linear": {"config": INTEGER}},
}
HOW = {"max_epochs": 2, "early_stopping": 1, "learning_rate": 0.01}


@pytest.fixture(scope="module")
def data():
    made = MaseDataModule("jsc-sim", batch_size=8192)
    made.prepare_data()
    made.setup("fit")
    return made


@pytest.fixture
def run(data, tmp_path):
    """`run(designs=…)` searches three designs and retrains those."""
    import torch

    torch.manual_seed(1)
    model = get_model("jsc-tiny", task="cls", dataset_info=data.dataset_info, pretrained=False)

    def go(resume=False, **how):
        tables = {
            "search_space": SPACE,
            "strategy": {
                "sw_runner": {"basic_evaluation": {"num_samples": 512}},
                "hw_runner": {"average_bitwidth": {}},
                "setup": {"sampler": "brute", "n_trials": 3},
                "metrics": {"accuracy": {}, "average_bitwidth": {}},
            },
            "retrain": HOW | how,
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


def test_a_resumed_search_looks_at_no_test_split_again(run, monkeypatch):
    _, before = run(designs="front")

    def never(*args, **kwargs):
        raise AssertionError("it was tested before")

    monkeypatch.setattr(module, "_scores", never)
    results, after = run(resume=True, designs="front")
    assert after["test"] == before["test"]
    assert numbers(after) == {out.number for out in results.best}


def test_training_that_was_interrupted_goes_on(run, monkeypatch, tmp_path):
    class Killed(BaseException):
        pass

    def killed(model, problem, options):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "_baseline", lambda problem, folder: {})
        patch.setattr(module, "_scores", killed)
        with pytest.raises(Killed):
            run()
    [last] = tmp_path.glob("search.retrained/trial_*/last.ckpt")
    written = last.stat().st_mtime_ns
    _, page = run(resume=True)
    assert len(numbers(page)) == 1
    assert last.stat().st_mtime_ns == written, "no step was taken twice"


def test_other_options_are_no_reason_to_test_again(run):
    run()
    with pytest.raises(ConfigError, match="remove the folder"):
        run(resume=True, learning_rate=0.1)


def test_a_number_of_designs_is_that_many_of_the_front(run):
    results, page = run(designs=2)
    assert numbers(page) == {out.number for out in results.ranked[:2]}
    assert module._chosen(Retrain(designs="best"), results) == [results.chosen.number]


def test_a_data_set_without_a_test_split_is_refused_before_the_search():
    info = SimpleNamespace(available_splits=("train", "validation"))
    with pytest.raises(ConfigError, match="scores on the test split"):
        module.check_splits(SimpleNamespace(name="mine", dataset_info=info))
