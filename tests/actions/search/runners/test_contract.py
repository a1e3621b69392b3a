"""What every runner promises, whatever it measures."""

import math

import pytest
import torch

from chop.actions.search.metrics.base import RUNNERS, check_options
from chop.passes.graph import quantize_transform_pass

from .conftest import make_scene, make_trial

# options with which a runner is tried; those without a line need none
EXAMPLES = {
    "basic_train": {"max_steps": 2, "num_val_samples": 64},
    "population_train": {"max_steps": 2, "num_val_samples": 64},
    "basic_evaluation": {"num_samples": 64, "per_class": True, "average": "macro"},
}
MEASURE_TIME = {"latency", "runtime_latency"}  # two calls may give two numbers
# a network in float has no circuit
OF_CIRCUITS = {"lut", "ff", "adder_bits", "ebops", "latency_cycles", "latency_ns"}
INTEGER = {
    "name": "integer",
    **{f"{operand}_width": 6 for operand in ("data_in", "weight", "bias")},
    **{f"{operand}_frac_width": 3 for operand in ("data_in", "weight", "bias")},
}


def quantized(graph):
    """A candidate as a search makes them."""
    graph = graph.clone()
    quantize_transform_pass(graph, {"by": "type", "default": {"config": INTEGER}})
    return graph


def made_trial(graph):
    """A trial; designs of a trained front have a cost, which `learned_cost` reads."""
    return make_trial(graph, config={"cost": 100.0})


def made(name, context):
    cls = RUNNERS[name]
    return cls(context, **check_options(cls, EXAMPLES.get(name, {}), f"[{name}]"))


@pytest.fixture(scope="module", params=sorted(RUNNERS))
def name(request):
    if request.param == "runtime_latency":
        pytest.importorskip("onnxruntime", reason="needs the extra onnx: run `make test-all`")
    return request.param


@pytest.fixture(scope="module")
def images():
    return make_scene("toy", "toy_tiny")


@pytest.fixture(params=["jets", "images", "jets in train mode"])
def setting(request):
    """A context, and a candidate in it."""
    context = request.getfixturevalue(request.param.split()[0])
    graph = quantized(context.graph)
    graph.model.train("train" in request.param)
    return context, made_trial(graph)


def traces(model):
    """All that a runner could leave behind."""
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "modes": [m.training for m in model.modules()],
        "gradients": [p.grad for p in model.parameters()],
        "trainable": [p.requires_grad for p in model.parameters()],
        "hooks": sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()),
        "random": torch.get_rng_state(),
    }


def same(before, after):
    state, there = before.pop("state"), after.pop("state")
    random, now = before.pop("random"), after.pop("random")
    assert before == after
    assert torch.equal(random, now)
    assert state.keys() == there.keys()
    return all(torch.equal(state[key], there[key]) for key in state)


@pytest.mark.sampled(27)
def test_a_runner_gives_exactly_its_metrics_as_numbers(name, setting):
    context, trial = setting
    runner = made(name, context)
    found = runner(trial)
    assert found.keys() == runner.metrics.keys()
    assert all(type(value) in (int, float) and math.isfinite(value) for value in found.values())
    assert set(runner.metrics.values()) <= {"maximize", "minimize"}
    options = EXAMPLES.get(name, {})
    assert {m: runner.direction_of(m, options) for m in found} == runner.metrics


@pytest.mark.sampled(18)
def test_a_runner_leaves_no_traces(name, setting):
    context, trial = setting
    before, parent = traces(trial.model), traces(context.model)
    runner = made(name, context)
    runner(trial)
    unchanged = same(before, traces(trial.model))
    assert unchanged is not RUNNERS[name].trains
    assert same(parent, traces(context.model))


@pytest.mark.sampled(18)
def test_a_runner_says_the_same_twice(name, setting):
    context, trial = setting
    if name in MEASURE_TIME:
        return
    copy = made_trial(trial.graph.clone())
    first = made(name, context)(trial)
    torch.manual_seed(99)
    assert made(name, context)(copy) == first


@pytest.mark.sampled(18)
def test_a_runner_can_be_called_for_many_candidates(name, setting):
    context, trial = setting
    if name in MEASURE_TIME or RUNNERS[name].trains:
        return
    runner = made(name, context)
    first = runner(trial)
    other = quantized(context.graph) if name in OF_CIRCUITS else context.graph.clone()
    runner(made_trial(other))
    assert runner(trial) == first


def test_a_runner_refuses_options_that_it_does_not_have(name):
    with pytest.raises(ValueError, match="has no key 'colour'"):
        check_options(RUNNERS[name], EXAMPLES.get(name, {}) | {"colour": 1}, f"[{name}]")


def test_a_runner_says_what_it_is(name):
    cls = RUNNERS[name]
    assert cls.name == name
    assert cls.side in ("software", "hardware")
    assert (cls.__doc__ or "").partition("\n")[0].endswith(".")
    assert not cls.__doc__.startswith("Subclass")


def test_no_two_runners_of_different_kinds_give_a_metric_in_two_directions():
    directions = {}
    for cls in RUNNERS.values():
        for metric, better in cls.metrics.items():
            assert directions.setdefault(metric, better) == better
