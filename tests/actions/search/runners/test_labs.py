"""Runners as notebooks call them, one's own metrics, and names that measure nothing."""

import logging

import pytest
import torch
from torch import nn

from chop.actions.search.compat import lab_runners
from chop.actions.search.compat.lab_runners import get_hw_runner, get_sw_runner
from chop.actions.search.metrics.base import RUNNERS, Runner, check_options, metric
from chop.dataset import MaseDataModule
from chop.ir import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes.graph import quantize_transform_pass

from .test_contract import INTEGER


def made(get, name, jets, config=None):
    return get(name, jets.model_info, "cls", jets.dataset_info, "cpu", config)


def test_the_names_of_the_labs_are_there():
    software, hardware = lab_runners.SW_RUNNERS, lab_runners.HW_RUNNERS
    assert {"basic_evaluation", "basic_train"} <= set(software)
    assert {"average_bitwidth", "hw_dummy", "resource_usage", "latency"} <= set(hardware)
    assert len(software) + len(hardware) == len(RUNNERS)
    assert issubclass(software["basic_evaluation"], Runner)
    assert not set(software) & set(hardware)


def test_a_graph_is_evaluated_as_in_a_search(jets, trial):
    runner = made(get_sw_runner, "basic_evaluation", jets, {"num_samples": 200})
    assert runner.available_metrics == ("accuracy", "loss")
    found = runner(jets.data_module, jets.graph, {})
    assert found == RUNNERS["basic_evaluation"](jets, num_samples=200)(trial)


def test_a_model_and_data_that_are_not_prepared_are_prepared():
    data = MaseDataModule("jsc-sim", batch_size=32)
    model = get_model("jsc-tiny", task="cls", dataset_info=data.dataset_info)
    info = get_model_info("jsc-tiny")
    facts = (info, "cls", data.dataset_info, "cpu")
    assert get_sw_runner("basic_evaluation", *facts, {"num_samples": 9})(data, model, {})
    assert get_hw_runner("macs", *facts)(data, model, {}) == {"macs": 80}
    assert get_hw_runner("macs", *facts)(data, MaseGraph(model), {}) == {"macs": 80}


class Unpacks(nn.Module):
    """A model that torch.fx alone cannot read."""

    def __init__(self, info):
        super().__init__()
        self.fc = nn.Linear(info.num_features, info.num_classes)

    def forward(self, jets):
        batch, *_ = jets.shape
        return torch.cat([self.fc(row)[None] for row in jets.chunk(1)[:batch]])[0]


@pytest.mark.slow
def test_a_model_that_torch_fx_cannot_read_is_captured_with_a_batch():
    data = MaseDataModule("jsc-sim", batch_size=32)
    model = Unpacks(data.dataset_info)
    facts = (get_model_info("jsc-tiny"), "cls", data.dataset_info, "cpu")
    with pytest.raises(RuntimeError, match="cannot trace"):
        MaseGraph(model)
    assert get_hw_runner("macs", *facts)(data, model, {}) == {"macs": 80}


def test_the_first_model_counts_as_the_parent(jets):
    runner = made(get_sw_runner, "sqnr", jets)
    graph = jets.graph.clone()
    first = runner(jets.data_module, graph, {})
    quantize_transform_pass(graph, {"by": "type", "default": {"config": INTEGER}})
    assert runner(jets.data_module, graph, {})["sqnr"] < first["sqnr"]
    width = made(get_hw_runner, "average_bitwidth", jets, {"compare_to": 32})
    assert width(jets.data_module, graph, {}) == {"average_bitwidth": 6, "memory_density": 32 / 6}


def test_metrics_that_depend_on_the_data_are_known_after_the_first_call(jets):
    runner = made(get_sw_runner, "basic_evaluation", jets, {"num_samples": 64, "per_class": True})
    runner(jets.data_module, jets.graph, {})
    assert "accuracy_g" in runner.available_metrics


def test_a_name_of_the_other_side_is_refused(jets):
    with pytest.raises(KeyError, match="unknown software runner 'latency'"):
        made(get_sw_runner, "latency", jets)


def test_wrong_options_are_refused(jets):
    with pytest.raises(ValueError, match=r"hw_runner\.average_bitwidth has no key 'compare'"):
        made(get_hw_runner, "average_bitwidth", jets, {"compare": 32})


@pytest.mark.parametrize("name", ["hw_dummy", "resource_usage"])
def test_runners_that_measure_nothing_say_so_once(jets, trial, caplog, name):
    with caplog.at_level(logging.WARNING, logger="chop"):
        runner = RUNNERS[name](jets)
        assert runner(trial) == runner(trial) == {}
    [record] = caplog.records
    assert f"hw_runner.{name} measures nothing" in record.getMessage()


def test_a_function_becomes_a_metric_with_options(own_runners, jets, trial):
    @metric("weights_near_zero", side="hardware", better="maximize")
    def weights_near_zero(trial, *, limit: float = 0.1):
        """The share of weights within `limit` of zero."""
        weights = torch.cat([p.flatten() for p in trial.model.parameters()])
        return (weights.abs() < limit).float().mean()

    cls = RUNNERS["weights_near_zero"]
    assert cls.metrics == {"weights_near_zero": "maximize"}
    assert cls.__doc__ == "The share of weights within `limit` of zero."
    options = check_options(cls, {"limit": 100.0}, "hw_runner.weights_near_zero")
    assert cls(jets, **options)(trial) == {"weights_near_zero": 1.0}
    with pytest.raises(ValueError, match=r"limit: .* number"):
        check_options(cls, {"limit": "much"}, "hw_runner.weights_near_zero")


def test_two_metrics_cannot_have_one_name(own_runners):
    with pytest.raises(ValueError, match="'macs' registered twice"):

        @metric("macs", side="hardware", better="minimize")
        def mine(trial):
            return 0.0


def test_a_plain_module_that_was_never_traced_is_counted(jets):
    model = nn.Sequential(nn.Linear(16, 5))
    assert made(get_hw_runner, "macs", jets)(jets.data_module, model, {}) == {"macs": 80}
