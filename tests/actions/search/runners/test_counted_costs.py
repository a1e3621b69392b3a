"""Counted costs equal those of the passes, however often one model is configured anew."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chop.actions.search.metrics.base import RUNNERS
from chop.dataset import get_dataset_info
from chop.models import get_model
from chop.passes.graph import (
    calculate_avg_bits_mg_analysis_pass,
    prune_transform_pass,
    quantize_transform_pass,
)
from chop.passes.graph.analysis.cost import cost_of
from chop.passes.graph.analysis.cost.ledger import _LEDGERS, MAX_LEDGERS, ledger_of
from chop.passes.graph.transforms.quantize.quantize import quantized_layer
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized

from .conftest import graph_of, make_scene, make_trial

COUNTED = ("average_bitwidth", "flops", "macs", "bitops", "model_size", "activation_memory")


class Branches(nn.Module):
    """Convolutions, a shared layer, functions, a parameter of its own, an in-place addition."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.twice = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        y = self.twice(torch.relu(self.twice(x)))
        y += x
        y = torch.add(y, x) * self.scale
        return self.last(y.mean((2, 3)))


def integer(widths):
    return {"name": "integer"} | {
        f"{operand}_{key}": width
        for operand, width in zip(("data_in", "weight", "bias"), widths, strict=True)
        for key, width in (("width", width), ("frac_width", width // 2))
    }


BLOCK = {"exponent_width": 8, "exponent_bias": None, "block_size": [1, 3]}


def block_fp(widths):
    return {"name": "block_fp"} | {
        f"{operand}_{key}": value
        for operand, width in zip(("data_in", "weight", "bias"), widths, strict=True)
        for key, value in {"width": width, **BLOCK}.items()
    }


OUTPUT = {"data_out_width": 5, "data_out_frac_width": 2}
THREE = st.lists(st.integers(2, 9), min_size=3, max_size=3)
MORE = st.sampled_from([{}, OUTPUT, {"bypass": True}])
CONFIGS = THREE.map(block_fp) | st.builds(lambda widths, more: integer(widths) | more, THREE, MORE)


@pytest.fixture(scope="module")
def branches():
    torch.manual_seed(0)
    return graph_of(Branches().eval(), torch.randn(3, 1, 6, 6))


@pytest.fixture(scope="module")
def runners():
    context = make_scene()
    options = {"average_bitwidth": {"count": "weights"}}  # as the pass averages
    return [RUNNERS[name](context, **options.get(name, {})) for name in COUNTED]


def counted(runners, graph):
    trial = make_trial(graph)
    return {name: value for runner in runners for name, value in runner(trial).items()}


def by_the_passes(graph):
    total = cost_of(graph, per_sample=True)["total"]
    average = calculate_avg_bits_mg_analysis_pass(graph)[1]["w_avg_bit"]
    buffers = sum(b.nbytes for b in graph.model.buffers())
    return {
        "average_bitwidth": average,
        "memory_density": 32 / average,
        "flops": total["flops"],
        "macs": total["macs"],
        "bitops": total["bit_ops"],
        "model_size": total["weight_bits"] / 8 + buffers,
        "activation_memory": total["peak_activation_bits"] / 8,
    }


@pytest.mark.sampled(1)
@given(st.data())
def test_costs_of_a_fresh_graph_are_those_of_the_passes(branches, runners, data):
    graph = branches.clone()
    names = ["first", "norm", "twice", "twice_1", "relu", "relu_1", "add", "mul", "last"]
    shared = data.draw(CONFIGS)
    configs = {n: {"config": shared if "twice" in n else data.draw(CONFIGS)} for n in names}
    quantize_transform_pass(graph, {"by": "name", **configs})
    assert counted(runners, graph) == by_the_passes(graph)


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9])
def test_weights_that_are_zero_cost_nothing_if_that_is_wanted(branches, sparsity):
    context = make_scene()
    sparse = [RUNNERS[name](context, sparse=True) for name in ("flops", "macs", "bitops")]
    dense = [RUNNERS[name](context) for name in ("flops", "macs", "bitops")]
    graph = branches.clone()
    quantize_transform_pass(graph, {"by": "type", "conv2d": {"config": integer([8, 8, 8])}})
    how = {"scope": "local", "granularity": "elementwise", "method": "l1-norm"}
    prune_transform_pass(graph, {"weight": how | {"sparsity": sparsity}})
    total = cost_of(graph, sparse=True, per_sample=True)["total"]
    wanted = {"flops": total["flops"], "macs": total["macs"], "bitops": total["bit_ops"]}
    assert counted(sparse, graph) == wanted
    assert counted(dense, graph)["macs"] == counted(dense, branches)["macs"]
    assert counted(dense, graph)["bitops"] > (1 + sparsity) * wanted["bitops"] * 0.9
    size = RUNNERS["model_size"](context, sparse=True)(make_trial(graph))["model_size"]
    statistics = sum(b.nbytes for n, b in graph.model.named_buffers() if "mask" not in n)
    assert size == total["weight_bits"] / 8 + statistics


@pytest.fixture(scope="module")
def prepared(branches):
    """One model that all examples of the test below configure."""
    graph = branches.clone()
    quantize_transform_pass(graph, {"by": "type", "default": {"config": integer([8, 8, 8])}})
    return graph


@given(st.data())
def test_a_prepared_model_that_is_only_configured_anew_costs_as_much_as_a_fresh_one(
    branches, prepared, runners, data
):
    layers = {n: m for n, m in prepared.modules.items() if isinstance(m, Quantized)}
    chosen = {name: data.draw(CONFIGS) for name in layers}
    for name, layer in layers.items():
        layer.configure(chosen[name])
    fresh = branches.clone()
    quantize_transform_pass(fresh, {"by": "type", "default": {"config": integer([8, 8, 8])}})
    configs = {name: {"config": config} for name, config in chosen.items()}
    configs["twice_1"] = configs["twice"]
    quantize_transform_pass(fresh, {"by": "name", **configs})
    assert counted(runners, prepared) == by_the_passes(fresh)


@pytest.mark.slow
@given(st.data())
def test_a_model_whose_layers_are_swapped_for_other_forms_costs_as_much_as_a_fresh_one(
    branches, swapped, runners, data
):
    names = ["first", "norm", "twice", "twice_1", "relu", "relu_1", "add", "add_1", "mul", "last"]
    chosen = {name: data.draw(st.none() | CONFIGS) for name in names if name != "twice_1"}
    fresh = branches.clone()
    configs = {name: {"config": config} for name, config in chosen.items() if config}
    if "twice" in configs:
        configs["twice_1"] = configs["twice"]
    quantize_transform_pass(fresh, {"by": "name", **configs})
    for mine, theirs in zip(swapped.nodes, fresh.nodes, strict=True):
        if mine.op != "call_module":
            mine.op, mine.target = theirs.op, theirs.target
            mine.kwargs = {k: v for k, v in mine.kwargs.items() if k != "config"}
            if "config" in theirs.kwargs:
                mine.kwargs = {**mine.kwargs, "config": theirs.kwargs["config"]}
            continue
        layer, config = branches.modules[mine.target], chosen[str(mine.target)]
        layer = quantized_layer(layer, config) if config else layer
        swapped.model.set_submodule(mine.target, layer)
    assert counted(runners, swapped) == by_the_passes(fresh)


@pytest.fixture(scope="module")
def swapped(branches):
    """One graph whose metadata stay those of the float network."""
    graph = branches.clone()
    for name, layer in branches.model.named_children():
        graph.model.set_submodule(name, layer)
    return graph


def test_swapping_forms_of_one_layer_counts_nothing_anew(jets, monkeypatch):
    graph = jets.graph.clone()
    runner = RUNNERS["bitops"](jets)
    runner(make_trial(graph))
    monkeypatch.setattr("chop.passes.graph.analysis.cost.ledger.Ledger", None)
    quantize_transform_pass(graph, {"by": "type", "default": {"config": integer([8, 4, 4])}})
    expected = cost_of(graph, per_sample=True)["total"]["bit_ops"]
    assert runner(make_trial(graph)) == {"bitops": expected}


def test_another_layer_in_the_same_place_is_counted_anew(jets):
    graph = graph_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(1, 4))
    before = ledger_of(graph.model)
    graph.model.set_submodule("0", nn.Linear(4, 4))
    assert ledger_of(graph.model) is not before


def test_costs_of_jsc_tiny_by_hand(runners, jets):
    graph = jets.graph.clone()
    config = integer([8, 4, 4])
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
    found = counted(runners, graph)
    assert found["average_bitwidth"] == 4
    assert found["memory_density"] == 8
    assert found["macs"] == 16 * 5
    assert found["bitops"] == 16 * 5 * (8 * 4) + 16 * 5 * (8 + 4 + 4)  # sums of 16 need 4 more bits
    batch_norm = 4 * (16 + 16 + 16 + 16) + 8  # scale, shift, mean, variance, and a count of 64 bits
    assert found["model_size"] == (16 * 5 + 5) * 4 / 8 + batch_norm


def test_all_parameters_and_buffers_of_jsc_tiny_by_hand(jets):
    graph = jets.graph.clone()
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": integer([8, 4, 6])}})
    found = RUNNERS["average_bitwidth"](jets)(make_trial(graph))
    batch_norm = 4 * 16 + 1  # scale, shift, mean, variance, and a count of batches
    average = (16 * 5 * 4 + 5 * 6 + batch_norm * 32) / (16 * 5 + 5 + batch_norm)
    assert found == {"average_bitwidth": average, "memory_density": 32 / average}
    labs = RUNNERS["average_bitwidth"](jets, count="weights")(make_trial(graph))
    assert labs == RUNNERS["average_bitwidth"](jets, compare_to=32)(make_trial(graph))
    assert labs == {"average_bitwidth": 4, "memory_density": 8}


def test_masks_of_pruning_are_not_counted_but_what_a_function_reads_is(branches):
    graph = branches.clone()
    context = make_scene()
    whole = RUNNERS["average_bitwidth"](context, count="all")
    assert whole(make_trial(graph))["average_bitwidth"] == 32
    quantize_transform_pass(graph, {"by": "name", "mul": {"config": integer([8, 8, 8])}})
    total = sum(t.numel() for t in (*graph.model.parameters(), *graph.model.buffers()))
    average = (32 * (total - 4) + 8 * 4) / total  # the four numbers of `scale`
    assert whole(make_trial(graph))["average_bitwidth"] == pytest.approx(average)
    prune_transform_pass(graph, {"weight": {"sparsity": 0.5}})
    assert whole(make_trial(graph))["average_bitwidth"] == pytest.approx(average)


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(4, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.lstm(x)[0])


@pytest.mark.parametrize("count", ["all", "weights"])
def test_a_recurrent_layer_counts_whether_it_is_quantized_or_not(jets, count):
    graph = graph_of(Remembers().eval(), torch.ones(2, 3, 4))
    runner = RUNNERS["average_bitwidth"](jets, count=count)
    config = {"config": integer([8, 3, 3])}
    quantize_transform_pass(graph, {"by": "name", "last": config})
    lstm = 4 * 16 * (4 + 16) + (2 * 4 * 16 if count == "all" else 0)
    last = 2 * 16 + (2 if count == "all" else 0)
    mixed = runner(make_trial(graph))["average_bitwidth"]
    assert mixed == pytest.approx((32 * lstm + 3 * last) / (lstm + last))
    quantize_transform_pass(graph, {"by": "type", "lstm": config})
    assert runner(make_trial(graph)) == {"average_bitwidth": 3, "memory_density": 32 / 3}


def test_float_layers_count_what_they_are_compared_to(jets, trial):
    metrics = RUNNERS["average_bitwidth"](jets, compare_to=16)(trial)
    assert metrics == {"average_bitwidth": 16, "memory_density": 1}


def test_a_network_without_weighted_layers_is_as_dense_as_float(jets):
    graph = graph_of(nn.Sequential(nn.ReLU()), torch.ones(2, 3))
    assert RUNNERS["average_bitwidth"](jets)(make_trial(graph))["memory_density"] == 1


def test_a_bypassed_layer_counts_as_float(jets):
    graph = jets.graph.clone()
    config = integer([8, 4, 4]) | {"bypass": True}
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
    assert RUNNERS["average_bitwidth"](jets)(make_trial(graph))["average_bitwidth"] == 32


def test_a_model_without_metadata_is_counted_through_the_graph_of_the_trial(jets, runners):
    trial = make_trial(jets.graph)
    trial.model = nn.Linear(1, 1)  # whatever it is, it is not what the nodes speak of
    assert runners[1](trial) == {"flops": cost_of(jets.graph, per_sample=True)["total"]["flops"]}


def test_only_a_few_networks_are_kept_alive():
    for width in range(1, 2 * MAX_LEDGERS):
        ledger_of(graph_of(nn.Linear(width, 1), torch.ones(1, width)).model)
    assert len(_LEDGERS) == MAX_LEDGERS


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["vit_tiny_patch4_32", "mobilenetv3_small", "resnet18", "vgg7"])
def test_a_network_of_ours_costs_what_the_passes_say_also_after_its_layers_were_swapped(
    runners, name
):
    info = get_dataset_info("cifar10")
    model = get_model(name, task="cls", dataset_info=info).eval()
    graph = graph_of(model, torch.randn(2, *info.image_size))
    assert counted(runners, graph) == by_the_passes(graph)
    before = ledger_of(graph.model)
    quantize_transform_pass(graph, {"by": "type", "default": {"config": integer([6, 4, 4])}})
    assert counted(runners, graph) == by_the_passes(graph)
    assert ledger_of(graph.model) is before


def test_ever_new_formats_do_not_fill_the_memory(jets, monkeypatch):
    monkeypatch.setattr("chop.passes.graph.analysis.cost.ledger.MAX_CACHED", 3)
    graph = jets.graph.clone()
    quantize_transform_pass(graph, {"by": "type", "linear": {"config": integer([8, 8, 8])}})
    layer = graph.modules["seq_blocks.2"]
    runner = RUNNERS["bitops"](jets)
    for width in range(2, 20):
        layer.configure(integer([width, 4, 4]))
        found = runner(make_trial(graph))["bitops"]
        assert found == 16 * 5 * (width * 4 + width + 4 + 4)
    line = next(line for line in ledger_of(graph.model).lines if line.products)
    assert len(line.products[0][2]) <= 4
