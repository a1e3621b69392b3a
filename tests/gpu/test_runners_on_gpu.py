"""Runners of a search on a GPU: the numbers of the CPU, and one wait for the device a trial."""

import warnings

import pytest
import torch

from chop.actions.search.metrics.base import RUNNERS, RunnerContext, Trial
from chop.dataset import MaseDataModule
from chop.ir import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes import Pipeline

pytestmark = pytest.mark.gpu
GPU = "cuda"
OPTIONS = {
    "basic_evaluation": {"num_samples": 500, "per_class": True, "average": "macro"},
    "basic_train": {"max_steps": 20, "num_val_samples": 500},
    "population_train": {"max_steps": 20, "num_val_samples": 500},
}
LEARNED = "learned_cost"  # is for the designs of another kind of search
TIMED = {"latency", "runtime_latency"}
SAME = sorted(set(RUNNERS) - {*TIMED, LEARNED, "basic_train", "population_train"})
FORMAT = {"name": "integer"}  # which circuits and integer files need
for operand in ("data_in", "weight", "bias"):
    FORMAT |= {f"{operand}_width": 8, f"{operand}_frac_width": 5}


def scene_on(device):
    data = MaseDataModule("jsc-sim", batch_size=64)
    data.prepare_data()
    data.setup()
    torch.manual_seed(0)
    model = get_model("jsc-s", task="cls", dataset_info=data.dataset_info).eval()
    given = {"dummy_in": {"x": data.train_dataset[:4][0]}, "add_value": False}
    steps = ["init_metadata", ("add_common_metadata", given)]
    steps.append(("quantize", {"by": "type", "default": {"config": FORMAT}}))
    graph, _ = Pipeline(steps)(MaseGraph(model))
    graph.model.to(device)
    info = get_model_info("jsc-s")
    return RunnerContext(graph, info, "cls", data, data.dataset_info, torch.device(device))


def trial_of(context):
    graph = context.graph.clone()
    return Trial(0, {}, 1, make_graph=lambda: graph, model=graph.model)


def run(name, device):
    context = scene_on(device)
    return RUNNERS[name](context, **OPTIONS.get(name, {}))(trial_of(context))


@pytest.mark.parametrize("name", SAME)
def test_a_gpu_measures_what_a_cpu_measures(name):
    here, there = run(name, "cpu"), run(name, GPU)
    # sums in another order, and multiplications that a GPU fuses with additions
    assert there == pytest.approx(here, rel=1e-2, abs=5e-3)


@pytest.mark.parametrize("name", sorted(set(RUNNERS) - {"latency", LEARNED}))
def test_a_runner_leaves_the_random_state_of_the_gpu_alone(name):
    context = scene_on(GPU)
    runner, before = RUNNERS[name](context, **OPTIONS.get(name, {})), torch.cuda.get_rng_state()
    runner(trial_of(context))
    assert torch.equal(before, torch.cuda.get_rng_state())


def test_latency_is_read_from_the_clock_of_the_gpu():
    assert 0 < run("latency", GPU)["latency"] < 1000


@pytest.mark.parametrize("name", ["basic_train", "population_train"])
def test_training_on_a_gpu_learns_and_repeats_itself(name):
    first = run(name, GPU)
    assert first == pytest.approx(run(name, GPU), rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"per_class": True, "average": "macro"}])
def test_an_evaluation_waits_for_the_gpu_once(options):
    context = scene_on(GPU)
    runner = RUNNERS["basic_evaluation"](context, num_samples=1024, **options)
    trial = trial_of(context)
    runner(trial)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # which warns that it is young
        try:
            runner(trial)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [w for w in caught if "synchronizing CUDA operation" in str(w.message)]
    assert len(waits) == 1
