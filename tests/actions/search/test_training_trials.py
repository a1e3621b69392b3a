"""Trials that train: each begins with the parent's weights, whatever was trained before it."""

import copy

import pytest
import torch

from chop.actions.search.run.worker import Worker
from chop.actions.search.space.base import Candidate
from chop.actions.search.spec.parent import make_parent
from chop.actions.search.spec.settings import settings_of
from chop.actions.search.spec.study_spec import build_spec
from chop.actions.transform.source import Source
from chop.dataset import MaseDataModule
from chop.models import get_model, get_model_info

WIDTHS = {"data_in_width": [4, 8], "weight_width": [3, 8], "bias_width": [8]}
FRACTIONS = {"data_in_frac_width": [None], "weight_frac_width": [None], "bias_frac_width": [4]}
LINEAR = {"name": ["integer"], **WIDTHS, **FRACTIONS}
TRAIN = {"max_epochs": 3, "max_steps": 30, "learning_rate": 1e-2, "num_val_samples": 500}
TABLES = {
    "search_space": {
        "name": "graph/quantize/mixed_precision_ptq",
        "setup": {"by": "type"},
        "seed": {"linear": {"config": LINEAR}},
    },
    "strategy": {
        "sw_runner": {"basic_train": TRAIN},
        "hw_runner": {"average_bitwidth": {}},
        "setup": {"sampler": "brute", "n_trials": 4},
        "metrics": {"accuracy": {}, "average_bitwidth": {}},
    },
}


@pytest.fixture(scope="module")
def data():
    made = MaseDataModule("jsc-sim", batch_size=256, num_workers=0)
    made.prepare_data()
    made.setup()
    return made


def parent_of(data, model):
    """jsc-tiny has a batch norm, whose statistics show that it was trained; the mlp has nothing."""
    torch.manual_seed(0)
    options = {"hidden": [8], "batch_norm": False} if model == "mlp" else {}
    network = get_model(model, task="cls", dataset_info=data.dataset_info, **options)
    info = get_model_info(model)
    return make_parent(Source(network, info, "", data, "cls", None, "mz"), "cpu")


def spec_of(parent):
    return build_spec(parent, TABLES, settings_of(TABLES))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", ["jsc-tiny", "mlp"])
def test_a_trial_does_not_depend_on_those_before_it(data, model):
    parent = parent_of(data, model)
    spec = spec_of(parent)
    worker, designs = Worker(spec), [spec.strategy.ask(number) for number in range(4)]
    one_worker = [worker.run(n, design).software for n, design in enumerate(designs)]
    backwards = [worker.run(n, designs[n]).software for n in reversed(range(4))]
    assert one_worker == backwards[::-1]
    assert one_worker == [Worker(spec_of(parent)).run(n, d).software for n, d in enumerate(designs)]


def test_what_is_scored_is_what_was_trained(data):
    """Rounded weights that an earlier epoch has left must not be taken for those of this one."""
    parent = parent_of(data, "mlp")
    spec = spec_of(parent)
    design = spec.strategy.ask(0)
    found = Worker(spec).run(0, design).software
    fresh = Worker(spec_of(parent))
    graph = fresh.space.build(fresh.space.config_of(design))
    fresh.space.candidate = lambda config: Candidate(graph.model, lambda: graph)
    assert fresh.run(0, design).software == found
    plain = copy.deepcopy(graph.model).eval()
    x, y = data.val_dataset.x[:500], data.val_dataset.y[:500].long()
    with torch.no_grad():
        accuracy = (plain(x).argmax(-1) == y).double().mean().item()
    assert accuracy == pytest.approx(found["accuracy"])
