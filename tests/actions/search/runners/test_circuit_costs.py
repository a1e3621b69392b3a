"""Costs of circuits in a search: read in place, they equal those of the applied design."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chop.actions.search.metrics.base import RUNNERS, check_options
from chop.hardware.estimate import estimate, formula
from chop.passes.base import PassArgsError
from chop.passes.graph import quantize_transform_pass
from chop.passes.graph.analysis.cost.circuit import circuit_ledger
from chop.passes.graph.transforms.integers import integer_graph

from .conftest import graph_of, make_scene, make_trial

NAMES = ("ebops", "adder_bits", "lut", "ff", "latency_cycles", "latency_ns")


class Images(nn.Module):
    """Convolutions, a pool, a batch norm, and a value that two layers round."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.pool = nn.MaxPool2d(2)
        self.second = nn.Conv2d(2, 2, 2, stride=2)
        self.last = nn.Linear(2, 3)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm(self.first(x))))
        return self.last(torch.flatten(self.second(x), 1))


MODELS = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 3)),
        (6,),
    ),
    "images": (Images, (1, 6, 6)),
    "table": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "rows": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Flatten(), nn.Linear(10, 3)), (2, 6)),
}


def made(name):
    torch.manual_seed(0)
    build, shape = MODELS[name]
    return graph_of(build().eval(), torch.randn(4, *shape))


def config(data, weight, bias, *, shift=0, **rule):
    widths = {"data_in": data, "weight": weight, "bias": bias}
    table = {"name": "integer", **rule}
    for operand, width in widths.items():
        table |= {f"{operand}_width": width, f"{operand}_frac_width": width - 2 + shift}
    return table


def quantized(graph, table):
    graph = graph.clone()
    quantize_transform_pass(graph, {"by": "type", "default": {"config": table}})
    return graph


def measured(name, trial, **options):
    cls = RUNNERS[name]
    return cls(CONTEXT, **check_options(cls, options, name))(trial)[name]


CONTEXT = None  # which these runners do not use


@st.composite
def configs(draw):
    widths = [draw(st.integers(2, 8)) for _ in range(3)]
    rounding = draw(st.sampled_from(("even", "up", "floor")))
    overflow = draw(st.sampled_from(("saturate", "wrap", "symmetric")))
    shift = draw(st.integers(-1, 1))
    return config(*widths, shift=shift, rounding=rounding, overflow=overflow)


@pytest.mark.parametrize("name", MODELS)
@given(table=configs())
def test_costs_read_in_place_equal_those_of_the_integer_graph(name, table):
    graph = quantized(made(name), table)
    expected = estimate(integer_graph(graph), fidelity="formula")
    found = {key: measured(key, make_trial(graph)) for key in NAMES}
    assert found == pytest.approx(expected.metrics, rel=1e-12)


@pytest.mark.parametrize("name", ["perceptron", "images", "rows"])
def test_the_layers_of_both_are_equal(name):
    graph = quantized(made(name), config(6, 5, 4))
    ledger = circuit_ledger(graph.model, lambda: integer_graph(graph))
    assert ledger.read(5.0).layers == estimate(integer_graph(graph), fidelity="formula").layers


def test_only_networks_with_rarer_ops_are_converted_for_each_design():
    common, rare = (
        quantized(made("images"), config(6, 5, 4)),
        quantized(made("table"), config(6, 5, 4)),
    )
    assert circuit_ledger(common.model, lambda: integer_graph(common)) is not None
    assert circuit_ledger(rare.model, lambda: integer_graph(rare)) is None


def test_other_formats_and_other_weights_change_the_costs_at_once():
    graph = quantized(made("perceptron"), config(6, 5, 4))
    before = measured("lut", make_trial(graph))
    layer = graph.model.get_submodule("0")
    layer.configure(config(3, 2, 4))
    narrow = measured("lut", make_trial(graph))
    assert narrow < before
    layer.configure(config(6, 5, 4))
    assert measured("lut", make_trial(graph)) == before
    with torch.no_grad():
        layer.weight.zero_()
    assert measured("lut", make_trial(graph)) < before


def test_later_layers_are_looked_up_when_only_an_earlier_one_changes(monkeypatch):
    graph = quantized(made("perceptron"), config(3, 5, 4))  # the second layer's input saturates
    measured("lut", make_trial(graph))
    counted = []
    original = formula.weighted
    monkeypatch.setattr(formula, "weighted", lambda *a: counted.append(a[2]) or original(*a))
    graph.model.get_submodule("0").configure(config(6, 6, 6))
    found = {key: measured(key, make_trial(graph)) for key in NAMES}
    assert set(counted) == {"_0"}
    expected = estimate(integer_graph(graph), fidelity="formula").metrics
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_parent_in_float_has_no_circuit_and_a_design_in_float_is_refused():
    context = make_scene()
    runner = RUNNERS["lut"](context)
    trial = make_trial(context.graph)
    assert runner.parent_metrics(trial) == {}
    with pytest.raises(PassArgsError, match="in float; quantise this node"):
        runner(trial)


def test_adders_and_formula_agree_roughly():
    pytest.importorskip("alkaid")
    graph = quantized(made("perceptron"), config(6, 5, 4))
    both = [
        measured("lut", make_trial(graph), fidelity=fidelity) for fidelity in ("formula", "adders")
    ]
    assert both[0] == pytest.approx(both[1], rel=0.5)  # of a very small network


def test_designs_with_too_many_adders_are_refused_if_these_are_to_be_found():
    pytest.importorskip("alkaid")
    graph = quantized(made("perceptron"), config(6, 5, 4))
    with pytest.raises(ValueError, match="at most 5 are allowed"):
        measured("lut", make_trial(graph), fidelity="adders", max_adders=5)
    assert measured("lut", make_trial(graph), max_adders=5) > 0


def test_wrong_options_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match="fidelity: should be 'formula' or 'adders', not 'exact'"):
        check_options(RUNNERS["lut"], {"fidelity": "exact"}, "[lut]")
    with pytest.raises(ValueError, match="clock_period: should be"):
        check_options(RUNNERS["lut"], {"clock_period": 0}, "[lut]")
