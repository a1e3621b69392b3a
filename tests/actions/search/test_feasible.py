"""Constraints that no design meets are refused before the first trial, and no others."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chop.actions import search
from chop.actions.config import ConfigError
from chop.actions.search import feasible
from chop.actions.search.feasible import _Proof, refuse_hopeless
from chop.actions.search.goals import Constraint
from chop.actions.search.search import make_problem
from chop.actions.search.settings import settings_of
from chop.actions.search.worker import Worker
from chop.dataset import MaseDataModule
from chop.models import get_model_info

COUNTED = ("average_bitwidth", "memory_density", "model_size", "bitops", "macs")
RUNNERS = ("average_bitwidth", "model_size", "bitops", "macs", "activation_memory", "latency")
WAYS = ("<=", "<", ">=", ">")
ENOUGH = 600  # seconds, on any machine


@pytest.fixture(scope="module", autouse=True)
def _patient():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feasible, "PATIENCE", ENOUGH)
        yield


class Small(nn.Module):
    """Three layers, one of them called twice, and functions of one and of two operands."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 8)
        self.twice = nn.Linear(8, 8, bias=False)
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(torch.add(x, self.twice(self.twice(x))))


@pytest.fixture(scope="module")
def data():
    made = MaseDataModule("jsc-sim", batch_size=1024, num_workers=0)
    made.prepare_data()
    made.setup("fit")
    return made


def tables(space, constraints=(), **seed):
    return {
        "search_space": {"name": space, "setup": {"by": "type"}, **seed},
        "strategy": {
            "hw_runner": {name: {} for name in RUNNERS},
            "metrics": {"average_bitwidth": {}},
            "constraints": list(constraints),
            "setup": {"sampler": "random", "n_trials": 3},
        },
    }


def quantize(constraints=(), **formats):
    """A space of number formats: `linear=…`, `add=…`."""
    seed = {op: {"config": config} for op, config in formats.items()}
    return tables("graph/quantize/mixed_precision_ptq", constraints, seed=seed)


def problem(data, made):
    torch.manual_seed(0)
    info = get_model_info("mlp")
    return make_problem(Small(), info, "cls", data, made, "cpu", None, None, 0)


def integer(data_in=(8,), weight=(8,), bias=(8,), **more):
    operands = {"data_in": data_in, "weight": weight, "bias": bias}
    widths = {f"{operand}_width": list(given) for operand, given in operands.items()}
    return {"name": ["integer"], **widths, **{f"{o}_frac_width": [2] for o in operands}, **more}


BLOCK = {
    f"{operand}_{key}": value
    for operand in ("data_in", "weight", "bias")
    for key, value in {
        "width": [3, 9],
        "exponent_width": [4],
        "exponent_bias": [None],
        "block_size": [[1, 4]],
    }.items()
}
widths = st.lists(st.integers(2, 12), min_size=1, max_size=2, unique=True)
several = st.lists(st.integers(2, 12), min_size=2, max_size=2, unique=True)


@st.composite
def spaces(draw):
    """Formats of the layers, and perhaps of the additions, in no order."""
    linear = integer(draw(widths), draw(several), draw(st.sampled_from([[8], [2, 9]])))
    linear["name"] = draw(
        st.sampled_from([["integer"], [None, "integer"], ["block_fp", "integer"]])
    )
    if "block_fp" in linear["name"]:
        linear = {"name": linear["name"], "integer": linear, "block_fp": dict(BLOCK)}
        del linear["integer"]["name"]
        linear["block_fp"]["weight_block_size"] = [[1, 4], [1, 2]]
        for key in ("data_in_width", "bias_width"):
            linear["block_fp"][key] = [5]
    formats = {"linear": linear}
    if draw(st.booleans()):
        formats["add"] = {"name": ["integer"], "data_in_width": draw(widths)}
        formats["add"]["data_in_frac_width"] = [1]
    return quantize(**formats)


@given(st.data())
def test_the_extreme_is_the_extreme_of_all_designs(data, drawn):
    worker = problem(data, drawn.draw(spaces())).worker()
    size = worker.space.choices.size
    if size > 600:
        return
    every = [worker.counted(worker.space.choices.nth(i)) for i in range(size)]
    proof = _Proof(worker, math.inf)
    for metric in COUNTED:
        values = [metrics[metric] for metrics in every]
        low, high = min(values), max(values)
        assert proof._extreme(Constraint(metric, "<", -1e30)) == pytest.approx(low, rel=1e-12)
        assert proof._extreme(Constraint(metric, ">", 1e30)) == pytest.approx(high, rel=1e-12)


@given(st.data())
def test_what_is_refused_is_what_no_design_meets(data, drawn):
    made = drawn.draw(spaces())
    worker = problem(data, made).worker()
    size = worker.space.choices.size
    if size > 300:
        return
    every = [worker.counted(worker.space.choices.nth(i)) for i in range(size)]
    texts = []
    for _ in range(drawn.draw(st.integers(1, 2))):
        metric = drawn.draw(st.sampled_from([*COUNTED, "activation_memory"]))
        bound = drawn.draw(st.sampled_from([m[metric] for m in every]))
        bound *= drawn.draw(st.sampled_from([1.0, 0.99, 1.01, 0.5]))
        texts.append(f"{metric} {drawn.draw(st.sampled_from(WAYS))} {bound!r}")
    made["strategy"]["constraints"] = texts
    try:
        worker = problem(data, made).worker()
    except ConfigError as error:
        assert "nothing meets both" in str(error)  # noqa: PT017
        return
    goals = worker.goals
    met = any(all(v <= 0 for v in goals.violations(metrics)) for metrics in every)
    if met:
        refuse_hopeless(worker)
    else:
        with pytest.raises(ConfigError, match=r"search\.strategy\.constraints: no"):
            refuse_hopeless(worker)


def refusal(data, made, tmp_path):
    torch.manual_seed(0)
    with pytest.raises(ConfigError) as caught:
        search(Small(), get_model_info("mlp"), "cls", data.dataset_info, data, made, tmp_path)
    assert not list(tmp_path.glob("*.journal"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_least_that_can_be_had_is_said(data, tmp_path):
    made = quantize(["average_bitwidth <= 2"], linear=integer([4, 8], [4, 3, 8]))
    assert refusal(data, made, tmp_path) == (
        "search.strategy.constraints: no design meets average_bitwidth <= 2, as the least "
        "average_bitwidth of any is 3; change the bound, or add choices to "
        "search.search_space.seed"
    )


def test_the_greatest_that_can_be_had_is_said(data, tmp_path):
    made = quantize(["memory_density > 8"], linear=integer([4, 8], [4, 8]))
    assert "no design meets memory_density > 8, as the greatest memory_density of any is 8" in (
        refusal(data, made, tmp_path)
    )


def test_constraints_that_no_design_meets_at_once_are_refused(data, tmp_path):
    constraints = ["average_bitwidth <= 3", "bitops >= 12000"]
    made = quantize(constraints, linear=integer([4], [3, 8]))
    said = refusal(data, made, tmp_path)
    assert "none of the 8 designs meets average_bitwidth <= 3 and bitops >= 12000, as" in said
    assert "average_bitwidth from 3 to 8" in said


def test_a_space_too_large_to_be_gone_through_is_proven_by_its_extremes(
    data, tmp_path, monkeypatch
):
    wide = {"min": 3, "max": 40}
    every = integer() | {f"{o}_width": wide for o in ("data_in", "weight", "bias")}
    made = quantize(["average_bitwidth < 3"], linear=every)
    counted, seen = Worker.counted, []

    def noted(worker, chosen):
        seen.append(chosen)
        return counted(worker, chosen)

    monkeypatch.setattr(Worker, "counted", noted)
    assert "the least average_bitwidth of any is 3" in refusal(data, made, tmp_path)
    assert len(seen) < 1000
    made = quantize(["average_bitwidth <= 3"], linear=every)
    worker = problem(data, made).worker()
    refuse_hopeless(worker)


def test_other_passes_are_counted_design_by_design(data, tmp_path):
    pruned = {
        "scope": ["local"],
        "granularity": ["elementwise"],
        "method": ["l1-norm"],
        "sparsity": [0.1, 0.5],
    }
    made = tables("graph/prune", ["macs <= 10"], seed={"weight": pruned})
    del made["search_space"]["setup"]
    assert "none of the 2 designs meets macs <= 10, as they have macs from 296 to 296" in (
        refusal(data, made, tmp_path)
    )


def test_what_is_wrong_with_the_space_or_the_sampler_is_wrong_usage(data, tmp_path):
    misspelt = integer([4, 8]) | {"weight_wdith": [2]}
    path = "search.search_space.seed.linear.config.weight_wdith"
    said = refusal(data, quantize(linear=misspelt), tmp_path)
    assert said == f"{path} is no key of integer; did you mean 'weight_width'?"
    made = quantize(linear=integer([4, 8]))
    made["strategy"]["setup"] = {"sampler": "tpe", "sampler_options": {"colour": 3}}
    assert "setup.sampler_options has no key 'colour'" in refusal(data, made, tmp_path)


def test_what_is_measured_is_left_to_the_search(data):
    made = quantize(["latency <= 0"], linear=integer([4, 8]))
    worker = problem(data, made).worker()
    worker.counted = None  # is not even asked
    refuse_hopeless(worker)


def test_what_takes_too_long_is_left_to_the_search(data):
    made = quantize(["average_bitwidth <= 2"], linear=integer([4, 8]))
    refuse_hopeless(problem(data, made).worker(), patience=-1.0)


def test_a_design_that_cannot_be_built_proves_nothing(data):
    worker = problem(data, quantize(["bitops <= 2"], linear=integer([4, 8]))).worker()

    def broken(chosen):
        raise RuntimeError("no such network")

    worker.counted = broken
    refuse_hopeless(worker)


@pytest.mark.parametrize(
    ("constraints", "contradict"),
    [
        (["bitops <= 3", "bitops >= 5"], True),
        (["bitops > 5", "macs <= 9", "bitops < 5"], True),
        (["bitops >= 5", "bitops < 5"], True),
        (["bitops >= 5", "bitops <= 5"], False),
        (["bitops <= 3", "macs >= 5"], False),
        (["bitops <= 3", "bitops <= 5"], False),
        (["bitops >= 3", "bitops >= 5"], False),
    ],
)
def test_constraints_that_contradict_each_other_are_refused(constraints, contradict):
    made = quantize(constraints, linear=integer([4, 8]))
    if not contradict:
        settings_of(made)
        return
    with pytest.raises(ConfigError, match=r"nothing meets both bitops <.* and bitops >.*; change"):
        settings_of(made)


def test_a_bound_that_is_no_number_is_refused():
    with pytest.raises(ConfigError, match="'bitops <= nan' is no constraint; write for example"):
        settings_of(quantize(["bitops <= nan"], linear=integer([4, 8])))
