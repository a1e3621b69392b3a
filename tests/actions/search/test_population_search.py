"""`ch search` that trains its candidates as populations, killed and not."""

import json
import tomllib

import pytest

from chop.actions import search

from .conftest import HEAD
from .runners.conftest import network_of

SPACE = """
[search.search_space]
name = "graph/joint"
[search.search_space.passes.redefine.setup]
by = "name"
[search.search_space.passes.redefine.seed.module_list_2_0.config]
name = ["both"]
width = [8, 16, 24]
[search.search_space.passes.prune.seed.weight]
scope = ["local"]
granularity = ["elementwise"]
method = ["l1-norm"]
sparsity = [0.0, 0.5]
[search.search_space.passes.quantize.setup]
by = "type"
[search.search_space.passes.quantize.seed.default.config]
name = ["NA"]
[search.search_space.passes.quantize.seed.linear.config]
name = ["integer", "NA"]
data_in_width = [8]
data_in_frac_width = [4]
weight_width = [4, 8]
weight_frac_width = [3]
bias_width = [8]
bias_frac_width = [4]
"""
STRATEGY = """
[search.strategy.sw_runner.population_train]
max_epochs = {epochs}
batch_size = 2048
learning_rate = 0.02
{options}
[search.strategy.hw_runner.average_bitwidth]
[search.strategy.setup]
n_trials = {trials}
{setup}
[search.strategy.metrics]
accuracy.scale = 1.0
average_bitwidth.scale = 0.2
"""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Weights of jsc-s that nobody has trained."""
    import torch

    from chop.dataset import MaseDataModule
    from chop.models import get_model

    torch.manual_seed(3)
    data = MaseDataModule("jsc-sim", batch_size=64)
    model = get_model("jsc-s", task="cls", dataset_info=data.dataset_info)
    path = tmp_path_factory.mktemp("weights") / "w.pt"
    torch.save(model.state_dict(), path)
    return path


@pytest.fixture
def file(searches):
    """`file(epochs=…)`: a configuration."""

    def make(options="population = 4", epochs=2, trials=8, setup=""):
        path = searches.folder / f"{epochs}-{trials}.toml"
        strategy = STRATEGY.format(options=options, epochs=epochs, trials=trials, setup=setup)
        path.write_text(HEAD.replace("jsc-tiny", "jsc-s") + SPACE + strategy)
        return path

    return make


def rows(searches, out="out"):
    return json.loads((searches.results(out) / "search.json").read_text())["trials"]


def assert_close(some, others):
    """Both tables have the same designs and, but for rounding, the same scores."""
    for one, other in zip(some, others, strict=True):
        for key in ("config", "state", "hardware_metrics"):
            assert one[key] == other[key]
        assert one["software_metrics"]["loss"] == pytest.approx(
            other["software_metrics"]["loss"], rel=1e-6
        )


@pytest.fixture(scope="module")
def network():
    return network_of("jsc-s", batch_size=8192)


def joint(runner, options, **redefine):
    tables = tomllib.loads(SPACE)["search"]
    tables["search_space"]["passes"]["redefine"] |= redefine
    tables["strategy"] = {
        "sw_runner": {runner: options},
        "hw_runner": {"average_bitwidth": {}},
        "setup": {"n_trials": 4, "in_flight": 4},
        "metrics": {"accuracy": {}, "average_bitwidth": {}},
    }
    return tables


@pytest.mark.slow
def test_a_joint_space_is_searched_by_training_many_or_one_at_a_time(network, tmp_path):
    options = {"max_epochs": 1, "learning_rate": 0.02, "num_val_samples": 2000}
    whole = joint("population_train", options | {"population": 4})
    ours = search(*network, whole, tmp_path / "together", "cpu")
    theirs = search(*network, joint("basic_train", options), tmp_path / "alone", "cpu")
    assert ours.designs == theirs.designs
    assert {out.state for out in ours.outcomes.values()} == {"COMPLETE"}
    for number, out in ours.outcomes.items():
        assert out.hardware == theirs.outcomes[number].hardware
        assert out.software["loss"] == pytest.approx(
            theirs.outcomes[number].software["loss"], rel=0.05
        )
    about = json.loads((tmp_path / "together" / "search.json").read_text())
    assert (about["population"], about["in_flight"]) == (4, 4)
    assert about["samples"] == {"accuracy": 2000}
    assert about["baseline"]["software_metrics"].keys() == {"accuracy", "loss"}
    assert about["layers"]["module_list_2_0"]["op"] == "Linear 32→32"
    for trial in map(about["trials"].__getitem__, about["front"]):
        width = trial["config"]["redefine"]["module_list_2_0"]["config"]["width"]
        assert trial["layers"]["module_list_2_0"]["op"] == f"Linear 32→{width}"
        assert trial["layers"]["module_list_3_0"]["op"] == f"Linear {width}→32"
    assert not list((tmp_path / "together").glob("*.populations"))


def test_designs_that_inherit_weights_need_no_training(network, tmp_path):
    tables = joint("basic_evaluation", {"num_samples": 512}, weights="inherit")
    results = search(*network, tables, tmp_path, "cpu")
    assert {out.state for out in results.outcomes.values()} == {"COMPLETE"}
    fresh = joint("basic_evaluation", {"num_samples": 512})
    with pytest.raises(ValueError, match=r"use sw_runner\.basic_train"):
        search(*network, fresh, tmp_path / "fresh", "cpu")


@pytest.mark.slow
def test_rungs_want_whole_populations(searches, file):
    config = file(options="population = 4\nrungs = [1]", trials=6)
    said = searches.run(config, check=2)
    assert "n_trials = 6 is not a multiple of population = 4; set n_trials to 8" in said


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_in_a_population_loses_at_most_the_current_rung(searches, file, workers):
    config = file(options="population = 4\nrungs = [4]", epochs=8, setup="in_flight = 8")
    searches.run(config, out="whole")
    whole = rows(searches, "whole")
    assert [t["state"] for t in whole].count("PRUNED") == 4
    process = searches.start(config, "--workers", workers)
    kept = searches.results() / "search.populations"
    searches.until(lambda: list(kept.glob("*.pt")), process)
    searches.kill(process)
    assert list(kept.glob("*.pt")), "it was killed within a population"
    searches.run(config, "--resume", "--workers", workers)
    assert_close(rows(searches), whole)
    assert not kept.exists()


RETRAIN = """
[search.retrain]
designs = "front"
max_epochs = 5
early_stopping = 5
learning_rate = 0.01
"""


@pytest.mark.slow
def test_kill_9_while_designs_are_trained_to_the_end_loses_at_most_an_epoch(searches, file):
    config = file(epochs=1)
    config.write_text(config.read_text() + RETRAIN)
    searches.run(config, out="whole")
    whole = json.loads((searches.results("whole") / "search.json").read_text())["test"]
    assert len(whole) > 2, "the parent, and a population"
    process = searches.start(config)
    kept = searches.results() / "search.retrained"
    searches.until(lambda: list(kept.glob("population-*.pt")), process)
    searches.kill(process)
    assert not list(kept.glob("*/result.json")), "it was killed within the population"
    said = searches.run(config, "--resume")
    assert "Epoch 1 " not in said
    found = json.loads((searches.results() / "search.json").read_text())["test"]
    assert found.keys() == whole.keys()
    for name, scores in whole.items():
        for split, metrics in scores.items():
            assert found[name][split] == pytest.approx(metrics, rel=1e-6)
    assert not list(kept.glob("population-*.pt"))
