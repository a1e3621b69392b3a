"""prune: what is asked for is reached, exactly, by what matters least; bad wishes are refused."""

import copy
import logging
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from chop.dataset import TensorSplit
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    hook_inspection_analysis_pass,
    init_metadata_analysis_pass,
    prune_channels_transform_pass,
    prune_detach_hook_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
)
from chop.passes.graph.transforms.pruning import activation_pruning_of, masks_of
from chop.passes.graph.transforms.pruning.methods import smallest, smallest_in_size
from chop.training.devices import Place
from chop.training.loop import Training
from chop.training.options import TrainOptions

X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.fc = nn.Linear(6, 10)
        self.head = nn.Linear(10, 5)

    def forward(self, x):
        y = torch.relu(self.up(torch.relu(self.conv(x))))
        return self.head(torch.relu(self.fc(input=y.mean((2, 3)))))


LAYERS = ["conv", "up", "fc", "head"]
HALF = {"sparsity": 0.5, "method": "l1-norm"}


def ready(model, name="x", x=X):
    mg, _ = init_metadata_analysis_pass(MaseGraph(model))
    return add_common_metadata_analysis_pass(mg, {"dummy_in": {name: x}})[0]


@pytest.fixture
def graph():
    torch.manual_seed(0)
    return ready(Net())


def zeros(layer):
    return int((layer.weight == 0).sum())


def all_weights(graph):
    return torch.cat([graph.modules[name]._parameters["weight"].flatten() for name in LAYERS])


@pytest.mark.parametrize("method", ["random", "l1-norm", "l2-norm"])
@pytest.mark.parametrize("sparsity", [0, 0.1, 0.37, 0.5, 0.999, 1])
class TestExactness:
    @pytest.mark.sampled(6)
    def test_locally_every_layer_reaches_it(self, graph, sparsity, method):
        _, info = prune_transform_pass(graph, weight={"sparsity": sparsity, "method": method})
        for name in LAYERS:
            layer = graph.modules[name]
            assert zeros(layer) == round(sparsity * layer.weight.numel())
            assert info["weight"][name]["reached"] == zeros(layer) / layer.weight.numel()
            assert info["weight"][name]["requested"] == sparsity

    @pytest.mark.sampled(6)
    def test_globally_all_layers_together_reach_it(self, graph, sparsity, method):
        wish = {"sparsity": sparsity, "method": method, "scope": "global"}
        total = prune_transform_pass(graph, weight=wish)[1]["weight"]["total"]
        size = len(all_weights(graph))
        assert sum(zeros(graph.modules[name]) for name in LAYERS) == round(sparsity * size)
        pruned = round(sparsity * size)
        counts = {"reached": pruned / size, "pruned": pruned, "total": size}
        assert total == {"requested": sparsity, **counts}


def test_what_is_pruned_is_what_is_smallest(graph):
    prune_transform_pass(graph, weight={"sparsity": 0.5, "method": "l1-norm"})
    for name in LAYERS:
        raw, mask = graph.modules[name]._parameters["weight"].abs(), masks_of(graph.modules[name])
        assert raw[~mask["weight"]].max() <= raw[mask["weight"]].min()


def test_a_global_scope_compares_layers(graph):
    graph.modules["fc"].weight.data *= 100
    prune_transform_pass(graph, weight={"sparsity": 0.5, "method": "l1-norm", "scope": "global"})
    assert masks_of(graph.modules["fc"]) == {}
    assert zeros(graph.modules["conv"]) > 0.5 * graph.modules["conv"].weight.numel()


def test_of_equal_weights_the_first_go(graph):
    graph.modules["head"].weight.data.fill_(0.25)
    prune_transform_pass(graph, weight={"sparsity": 0.5, "method": "l1-norm"})
    mask = masks_of(graph.modules["head"])["weight"].flatten()
    assert not mask[:25].any()
    assert mask[25:].all()


def test_smallest_counts_along_the_last_dimension():
    scores = torch.tensor([[1.0, 0.0, 0.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    removed = smallest(scores, 2)
    assert removed.tolist() == [[False, True, True, False], [True, True, False, False]]


@pytest.mark.parametrize(
    "kind", ["normal", "bfloat16", "half", "double", "ties", "one outlier", "rising", "infinite"]
)
def test_large_layers_are_selected_from_exactly(kind):
    size = (1 << 16) + 4321
    scores = {
        "normal": torch.randn(size).abs(),
        "bfloat16": torch.randn(size).abs().bfloat16(),
        "half": torch.randn(size).abs().half(),
        "double": 1 + 1e-12 * torch.randn(size, dtype=torch.float64),
        "ties": torch.randint(0, 5, (size,)).float(),
        "one outlier": torch.zeros(size).index_fill(0, torch.tensor([size // 2]), 9.0),
        "rising": torch.arange(size).float(),
        "infinite": torch.randn(size).masked_fill(torch.rand(size) < 0.3, -torch.inf),
    }[kind]
    order = scores.sort(stable=True).indices
    for count in (1, 17, size // 3, size // 2, size - 1, size):
        expected = torch.zeros(size, dtype=torch.bool).index_fill(0, order[:count], True)
        assert torch.equal(smallest(scores, count), expected)


@pytest.mark.parametrize("width", [4, 16, 40])
def test_small_groups_are_selected_from_as_large_ones_are(width):
    scores = torch.randint(0, 6, (50, width)).float()
    order = scores.sort(stable=True, dim=1).indices
    for count in range(width + 1):
        expected = torch.zeros(50, width, dtype=torch.bool).scatter(1, order[:, :count], True)
        assert torch.equal(smallest(scores, count), expected)


def test_random_pruning_is_that_of_its_seed_and_of_nothing_else(graph):
    def mask(seed, **wish):
        new = graph.clone()
        torch.manual_seed(seed + 17)
        state = torch.get_rng_state()
        prune_transform_pass(new, weight={"sparsity": 0.5, **wish}, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        return masks_of(new.modules["fc"])["weight"]

    assert torch.equal(mask(1), mask(1))
    assert torch.equal(mask(1), mask(1, sparsity={"fc": 0.5}))
    assert not torch.equal(mask(1), mask(2))


def test_the_model_that_the_graph_was_made_of_stays_dense():
    model = Net()
    mg = ready(model)
    expected = model(X)
    prune_transform_pass(mg, weight={"sparsity": 0.9}, activation={"sparsity": 0.5})
    assert masks_of(model.conv) == {}
    assert torch.equal(model(X), expected)
    assert not torch.equal(mg.model(X), expected)
    prune_detach_hook_transform_pass(mg)
    assert torch.equal(model(X), expected)


@pytest.mark.parametrize(
    ("by", "sparsity", "pruned"),
    [
        ("name", {"conv": 0.5, "fc": 0.25}, {"conv": 0.5, "fc": 0.25}),
        ("name", {"default": 0.5, "fc": 0.0}, {"conv": 0.5, "up": 0.5, "head": 0.5}),
        ("type", {"linear": 0.5}, {"fc": 0.5, "head": 0.5}),
        ("regex_name", {"(fc|up)": 0.5}, {"fc": 0.5, "up": 0.5}),
    ],
)
def test_layers_are_chosen_by_name_type_and_expression(graph, by, sparsity, pruned):
    prune_transform_pass(graph, weight={"by": by, "sparsity": sparsity, "method": "l2-norm"})
    shares = {n: zeros(graph.modules[n]) / graph.modules[n].weight.numel() for n in LAYERS}
    assert {name: share for name, share in shares.items() if share} == pruned


def test_a_layer_may_be_called_by_its_target():
    mg = ready(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "input", torch.ones(1, 4))
    prune_transform_pass(mg, weight={"sparsity": {"1": 0.5}})
    assert [bool(masks_of(mg.modules[name])) for name in "01"] == [False, True]


def test_pruned_stays_pruned(graph):
    weight = {"sparsity": 0.5, "method": "random"}
    prune_transform_pass(graph, weight=weight, seed=1)
    first = {name: masks_of(graph.modules[name])["weight"] for name in LAYERS}
    prune_transform_pass(graph, weight={"sparsity": 0.75, "method": "l1-norm"})
    _, info = prune_transform_pass(graph, weight={"sparsity": 0.1, "scope": "global"})
    for name in LAYERS:
        mask = masks_of(graph.modules[name])["weight"]
        assert not (mask & ~first[name]).any()
        assert zeros(graph.modules[name]) == round(0.75 * mask.numel())
    assert info["weight"]["total"]["reached"] == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("method", ["random", "l1-norm"])
@pytest.mark.parametrize(("keep", "of"), [(2, 4), (1, 4), (3, 5), (4, 4)])
def test_patterns_hold_in_every_group_along_the_input(graph, keep, of, method):
    prune_transform_pass(graph, weight={"granularity": f"{keep}:{of}", "method": method})
    for name in LAYERS:
        layer = graph.modules[name]
        weight = layer.weight.transpose(0, 1) if name == "up" else layer.weight
        for group in weight.split(of, dim=1):
            alive = (group != 0).sum(1)
            assert (alive == min(keep, group.shape[1])).all()


def test_a_pattern_keeps_the_largest():
    mg = ready(nn.Sequential(nn.Linear(8, 1)), "input", torch.ones(1, 8))
    mg.modules["0"].weight.data = torch.tensor([[4.0, -3, 2, 1, 0.1, 0.2, -0.4, 0.3]])
    _, info = prune_transform_pass(mg, weight={"granularity": "2:4", "method": "l1-norm"})
    expected = torch.tensor([[4.0, -3, 0, 0, 0, 0, -0.4, 0.3]])
    assert torch.equal(mg.modules["0"].weight, expected)
    assert info["weight"]["_0"]["reached"] == 0.5


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("method", ["random", "l1-norm", "l2-norm"])
def test_by_channel_whole_channels_go(graph, scope, method):
    wish = {"sparsity": 0.5, "granularity": "channel", "method": method, "scope": scope}
    _, info = prune_transform_pass(graph, weight=wish)
    gone = 0
    for name in LAYERS:
        layer = graph.modules[name]
        weight = layer.weight.transpose(0, 1) if name == "up" else layer.weight
        dead = (weight == 0).flatten(1)
        assert torch.equal(dead.any(1), dead.all(1))
        gone += int(dead.all(1).sum())
        if scope == "local":
            assert int(dead.all(1).sum()) == round(0.5 * len(weight))
    assert gone == (4 + 3 + 5 + 2 if scope == "local" else round(0.5 * 29))
    assert info["weight"]["total"]["pruned"] > 0


def test_requested_and_reached_are_logged(graph, caplog):
    with caplog.at_level(logging.INFO, "chop"):
        prune_transform_pass(graph, weight={"sparsity": 0.5})
    assert "Pruning module: conv" in caplog.text
    assert "Requested" in caplog.text
    assert "Reached" in caplog.text


class TestActivations:
    def test_each_sample_loses_its_smallest(self, graph):
        prune_transform_pass(graph, activation={"sparsity": 0.5, "method": "l1-norm"})
        layer = graph.modules["head"]
        x = torch.tensor([[3.0, -1, 2, 0.5, 9, 8, -7, 6, 5, 4], [1.0] * 10])
        kept = torch.tensor([[0.0, 0, 0, 0, 9, 8, -7, 6, 5, 0], [0.0] * 5 + [1.0] * 5])
        assert torch.equal(layer(x), nn.functional.linear(kept, layer.weight, layer.bias))

    def test_a_global_scope_is_one_threshold_for_all(self, graph):
        prune_transform_pass(graph, activation={**HALF, "scope": "global"})
        thresholds = {activation_pruning_of(graph.modules[name])["threshold"] for name in LAYERS}
        metas = [n.meta["mase"].common for n in graph.nodes if n.op == "call_module"]
        together = torch.cat([meta.args["data_in_0"]["value"].abs().flatten() for meta in metas])
        (threshold,) = thresholds
        share = (together <= threshold).sum() / len(together)
        assert 0.5 <= share < 0.6  # ReLU has many equal zeros, none of which stays

    def test_random_places_are_those_of_the_seed(self, graph):
        def run(seed):
            new = graph.clone()
            prune_transform_pass(new, activation={"sparsity": 0.5}, seed=seed)
            return new.model(X)

        assert torch.equal(run(1), run(1))
        assert not torch.equal(run(1), run(2))

    def test_it_survives_copies_pickles_and_quantisation(self, graph):
        prune_transform_pass(graph, activation=HALF, weight=HALF)
        expected = graph.model(X)
        assert torch.equal(graph.clone().model(X), expected)
        assert torch.equal(copy.deepcopy(graph.model)(X), expected)
        layer = graph.modules["fc"]
        assert torch.equal(pickle.loads(pickle.dumps(layer))(X[0, 0, 0, :6]), layer(X[0, 0, 0, :6]))
        integer = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
        integer |= {"weight_width": 8, "weight_frac_width": 4}
        quantize_transform_pass(graph, {"by": "type", "linear": {"config": integer}})
        assert activation_pruning_of(graph.modules["fc"]) == activation_pruning_of(layer)
        assert hook_names(graph) == dict.fromkeys(LAYERS, "sparsify_input")

    @pytest.mark.parametrize("method", ["random", "l1-norm"])
    def test_an_empty_batch_and_a_single_sample_pass(self, graph, method):
        prune_transform_pass(graph, activation={"sparsity": 0.5, "method": method})
        layer = graph.modules["head"]
        assert layer(torch.ones(0, 10)).shape == (0, 5)
        assert torch.equal(layer(torch.arange(10.0)), layer(torch.arange(10.0)[None])[0])

    def test_gradients_reach_only_what_stayed(self, graph):
        prune_transform_pass(graph, activation={"sparsity": 0.5, "method": "l1-norm"})
        x = torch.arange(1.0, 11).reshape(1, 10).requires_grad_()
        graph.modules["head"](x).sum().backward()
        assert not x.grad[0, :5].any()
        assert x.grad[0, 5:].all()


def hook_names(graph):
    hooks = hook_inspection_analysis_pass(graph)[1]
    return {key.rpartition("_")[0]: hook.__name__ for key, (_, hook) in hooks.items()}


def test_detaching_leaves_plain_layers_with_zeros(graph):
    prune_transform_pass(graph, weight={"sparsity": 0.5}, activation={"sparsity": 0.5})
    weights = {name: graph.modules[name].weight.detach().clone() for name in LAYERS}
    _, info = prune_detach_hook_transform_pass(graph)
    assert info == {"weight": LAYERS, "activation": LAYERS}
    assert hook_names(graph) == {}
    for name in LAYERS:
        layer = graph.modules[name]
        assert type(layer) is type(getattr(Net(), name))
        assert torch.equal(layer.weight, weights[name])
        assert activation_pruning_of(layer) is None
        assert layer.state_dict().keys() == {"weight", "bias"}
    assert prune_detach_hook_transform_pass(graph)[1] == {"weight": [], "activation": []}


def test_masks_survive_our_training_loop(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
    mg = ready(model, "input", torch.randn(2, 16))
    prune_transform_pass(mg, weight={"sparsity": 0.5, "method": "l1-norm"})
    masks = {name: masks_of(mg.modules[name])["weight"].clone() for name in "03"}
    before = mg.modules["0"].weight.detach().clone()
    split = TensorSplit(torch.randn(256, 16), torch.arange(256) % 5)
    data = SimpleNamespace(train_dataset=split, val_dataset=split, batch_size=64, num_workers=0)
    options = TrainOptions(max_epochs=2, learning_rate=1e-2, weight_decay=0.1, progress=False)
    Training(mg.model, data, options, place=Place(torch.device("cpu"))).fit()
    for name, mask in masks.items():
        assert torch.equal(mg.modules[name].weight != 0, mask)
    assert not torch.equal(mg.modules["0"].weight, before)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"weight": {"sparsity": 1.5}}, "weight.sparsity is 1.5; give a number from 0 to 1"),
        ({"weight": {"sparsity": True}}, "weight.sparsity is True"),
        ({"weight": {"sparsity": "0.5"}}, "weight.sparsity is '0.5'"),
        ({"weight": {"sparsity": {"fc": -1}}}, "weight.sparsity.fc is -1"),
        ({"weight": {"sparsity": float("nan")}}, "weight.sparsity is nan"),
        ({"weight": {"sparsty": 0.5}}, "did you mean 'sparsity'"),
        ({"weight": {"method": "l1"}}, r"unknown weight.method 'l1'.*l1-norm"),
        ({"weight": {"scope": "layer"}}, "unknown weight.scope 'layer'"),
        ({"weight": {"by": "names"}}, "did you mean 'name'"),
        ({"weight": {"granularity": "4:2"}}, "granularity is '4:2'; give 'elementwise'"),
        ({"weight": {"granularity": "2:4", "sparsity": 0.3}}, "2:4 means 0.5"),
        ({"activation": {"granularity": "channel"}}, "activation.granularity is 'elementwise'"),
        (
            {"weight": {"scope": "global", "sparsity": {"fc": 0.5}}},
            "Layer-wise budgets only possible with a local scope!",
        ),
        ({"weight": {"sparsity": {"fcc": 0.5}}}, "unknown node 'fcc'; did you mean 'fc'"),
        ({"weight": {"sparsity": {"relu": 0.5}}}, "node 'relu' is relu, which cannot be pruned"),
        ({"weight": {"by": "type", "sparsity": {"relu": 0.5}}}, "op 'relu' cannot be pruned"),
        ({"weight": 0.5}, "option 'weight' is 0.5"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused_before_anything_changes(graph, tables, message):
    given = {"weight": {"sparsity": 0.5}} | tables
    with pytest.raises((TypeError, ValueError, KeyError), match=message):
        prune_transform_pass(graph, given)
    assert masks_of(graph.modules["conv"]) == {}


def test_a_global_threshold_needs_activations():
    mg, _ = init_metadata_analysis_pass(MaseGraph(Net()))
    mg, _ = add_common_metadata_analysis_pass(mg, {"dummy_in": {"x": X}, "add_value": False})
    with pytest.raises(ValueError, match=r"node 'conv' has none.*add_value = True"):
        prune_transform_pass(mg, activation={**HALF, "scope": "global"})


def test_a_layer_whose_weight_is_computed_is_refused_by_name_and_left_out_otherwise():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nn.utils.parametrizations.weight_norm(model[0])
    mg = ready(model, "input", torch.ones(1, 4))
    with pytest.raises(ValueError, match="node '_0' is linear without a weight parameter"):
        prune_transform_pass(mg, weight={"sparsity": {"0": 0.5}})
    _, info = prune_transform_pass(mg, weight={"sparsity": 0.5})
    assert list(info["weight"]) == ["_1", "total"]


def test_an_expression_that_matches_nothing_gives_one_message(caplog):
    mg = ready(nn.Sequential(nn.Linear(4, 4)), "input", torch.ones(1, 4))
    with caplog.at_level("WARNING", "chop"):
        prune_transform_pass(mg, weight={"by": "regex_name", "sparsity": {"head.*": 0.5}})
    assert caplog.messages == ["no node of the graph matches regex_name 'head.*'"]


def test_one_module_has_one_sparsity(calls):
    mg = ready(calls(lambda self, x: self.fc(self.fc(x)), fc=nn.Linear(4, 4)), x=torch.ones(1, 4))
    with pytest.raises(ValueError, match=r"'fc' and 'fc_1' call the same module 'fc'"):
        prune_transform_pass(mg, weight={"sparsity": {"fc": 0.5, "fc_1": 0.25}})
    _, info = prune_transform_pass(mg, weight={"sparsity": 0.5})
    assert list(info["weight"]) == ["fc", "total"]


def test_a_graph_without_layers_to_prune_is_remarked(caplog):
    mg = ready(nn.Sequential(nn.ReLU()), "input")
    prune_transform_pass(mg, weight={"sparsity": 0.5})
    assert "no layer with weights that can be pruned" in caplog.text


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("method", ["random", "l1-norm"])
def test_weights_that_cannot_be_ranked_are_refused_by_the_name_of_their_layer(bad, method):
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    mg = ready(model, "input", torch.ones(2, 16))
    mg.modules["2"].weight.data[1, 2] = bad
    before = mg.modules["0"]
    message = r"layer '2' has weights that are NaN or infinite; load or train finite ones"
    with pytest.raises(ValueError, match=message):
        prune_transform_pass(mg, weight={"sparsity": 0.5, "method": method})
    assert mg.modules["0"] is before
    with pytest.raises(ValueError, match=message):
        prune_channels_transform_pass(mg, sparsity=0.5, method=method)


def test_large_weights_whose_sum_overflows_are_finite():
    mg = ready(nn.Sequential(nn.Linear(16, 8)), "input", torch.ones(2, 16))
    mg.modules["0"].weight.data.fill_(3e38)
    prune_transform_pass(mg, weight={"sparsity": 0.5, "method": "l1-norm"})
    assert (mg.modules["0"].weight == 0).float().mean() == 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999, 1.0])
def test_the_smallest_in_size_are_those_of_a_copy_of_absolute_values(dtype, share):
    numbers = torch.randn(200_003, generator=torch.Generator().manual_seed(0)).to(dtype)
    numbers[::7] = numbers[3]  # many are equal
    count = round(share * len(numbers))
    found = smallest_in_size(numbers, count)
    assert torch.equal(found, smallest(numbers.abs(), count))
    assert int(found.sum()) == count
