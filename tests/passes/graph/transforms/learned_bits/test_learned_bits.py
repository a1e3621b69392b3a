"""Layers learn their bits; frozen, they are ordinary quantised layers with equal outputs."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call

from chop.hardware.estimate import estimate
from chop.ir import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.numerics.compiled import KERNELS
from chop.numerics.fused import fused_mode, set_fused
from chop.numerics.learned import LearnsBits
from chop.passes import PassArgsError
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    calculate_avg_bits_mg_analysis_pass,
    calibrate_analysis_pass,
    cost_analysis_pass,
    freeze_bits_transform_pass,
    init_metadata_analysis_pass,
    learn_bits_transform_pass,
    prune_channels_transform_pass,
    quantize_transform_pass,
    save_mase_graph_interface_pass,
    verify_integers_analysis_pass,
)
from chop.passes.graph.analysis.cost.ledger import ledger_of
from chop.passes.graph.transforms.pruning.shrink import shrunk
from chop.passes.module import calculate_avg_bits_module_analysis_pass

GRANULARITIES = ("tensor", "channel", "element")
PAIRS = list(itertools.product(GRANULARITIES, GRANULARITIES))
COSTS = ("ebops", "lut", "bitops", "model_size")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv2d(2, 4, 3, padding=1), nn.ReLU()
        self.pool, self.grouped = nn.MaxPool2d(2), nn.Conv2d(4, 4, 2, groups=2)
        self.last = nn.Linear(4 * 2 * 2, 3)

    def forward(self, x):
        x = self.grouped(self.pool(self.act(self.conv(x))))
        return self.last(torch.relu(x).flatten(1))


def traced(model=None, shape=(2, 6, 6)):
    torch.manual_seed(0)
    graph = MaseGraph(Net() if model is None else model)
    name = next(iter(graph.nodes)).target
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, dummy_in={name: torch.randn(2, *shape)})
    return graph


def learning(model=None, shape=(2, 6, 6), spread=1.2, **options):
    """A graph whose bits have moved away from where they start."""
    graph = traced(model, shape)
    learn_bits_transform_pass(graph, **{"width": 6} | options)
    with torch.no_grad():
        for bits in widths(graph).values():
            bits += torch.randn_like(bits) * (spread if bits.dim() else 0.6)
    graph.model.eval()
    return graph


def layers(graph):
    return [layer for layer in graph.model.modules() if isinstance(layer, LearnsBits)]


def widths(graph):
    named = [(n, m) for n, m in graph.model.named_modules() if isinstance(m, LearnsBits)]
    return {f"{n}.{key}": p for n, m in named for key, p in m.width_parameters().items()}


def cost(graph, kind, *, exact=True):
    return sum(layer.bit_cost(kind, exact=exact) for layer in layers(graph))


def outputs(graph, seed=1):
    x = torch.randn(32, 2, 6, 6, generator=torch.Generator().manual_seed(seed)) * 2
    with torch.no_grad():
        return graph.model(x)


class TestLearning:
    def test_all_linear_layers_and_convolutions_learn_by_default(self):
        graph = traced()
        _, info = learn_bits_transform_pass(graph)
        assert info["learning"] == ["conv", "grouped", "last"]
        kinds = ("data_in_integer_bits", "data_in_frac_bits", "weight_frac_bits", "bias_frac_bits")
        assert set(graph.model.conv.width_parameters()) == set(kinds)

    @pytest.mark.parametrize(
        ("granularity", "weight", "bias", "data"),
        [
            ("tensor", (), (), ()),
            ("channel", (4, 1, 1, 1), (4,), (2, 1, 1)),
            ("element", (4, 2, 3, 3), (4,), (2, 6, 6)),
        ],
    )
    def test_there_are_bits_for_each(self, granularity, weight, bias, data):
        graph = traced()
        both = {"granularity": granularity, "data_in_granularity": granularity}
        learn_bits_transform_pass(graph, **both)
        layer = graph.model.conv
        assert layer.weight_frac_bits.shape == weight
        assert layer.bias_frac_bits.shape == bias
        assert layer.data_in_integer_bits.shape == layer.data_in_frac_bits.shape == data

    def test_it_starts_as_a_network_of_that_width(self):
        graph, fixed = traced(), traced()
        learn_bits_transform_pass(graph, width=8)
        layer = graph.model.last
        largest = layer.weight.abs().max().log2().floor().int().item() + 1
        config = {"name": "integer", "weight_width": 8, "weight_frac_width": 7 - largest}
        config |= {"data_in_width": 8, "data_in_frac_width": 4, "data_in_signed": False}
        bias = layer.bias.abs().max().log2().floor().int().item() + 1
        config |= {"bias_width": 8, "bias_frac_width": 7 - bias}
        quantize_transform_pass(fixed, by="name", last={"config": config})
        x = torch.rand(4, 16) * 8
        assert torch.equal(layer(x), fixed.model.last(x))

    def test_calibration_gives_the_range_of_inputs(self):
        graph = traced()
        add_software_metadata_analysis_pass(graph)
        data = [{"x": torch.randn(16, 2, 6, 6) * 20}]
        calibrate_analysis_pass(graph, input_generator=iter(data), num_batches=1, method="minmax")
        learn_bits_transform_pass(graph, width=8)
        assert graph.model.conv.data_in_integer_bits.unique().item() >= 5
        assert graph.model.conv.formats["data_in"].signed
        assert not graph.model.grouped.formats["data_in"].signed

    def test_nodes_are_chosen_by_name_type_or_expression(self):
        for options, chosen in (
            ({"by": "name", "nodes": ["last"]}, ["last"]),
            ({"by": "type", "nodes": ["conv2d"]}, ["conv", "grouped"]),
            ({"by": "regex_name", "nodes": ["c.*|last"]}, ["conv", "last"]),
            ({"by": "name", "nodes": ["act"]}, ["act"]),
        ):
            _, info = learn_bits_transform_pass(traced(), **options)
            assert info["learning"] == chosen

    def test_bits_are_trained_down_by_a_price_and_weights_go_on_learning(self):
        graph = learning(spread=0.0)
        model, before = graph.model.train(), cost(graph, "ebops").item()
        weight = model.conv.weight.detach().clone()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(12):
            optimizer.zero_grad()
            price = 1e-5 * cost(graph, "ebops", exact=False)
            (model(torch.randn(8, 2, 6, 6)).square().mean() + price).backward()
            optimizer.step()
        assert cost(graph, "ebops") < 0.9 * before
        assert not torch.equal(weight, model.conv.weight)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"granularity": "row"}, "granularity"),
            ({"width": 1}, "width"),
            ({"width": 25}, "width"),
            ({"by": "name", "nodes": ["pool"]}, "'pool' is max_pool2d, which cannot learn"),
            ({"by": "name", "nodes": ["relu"]}, "'relu' calls relu as a function"),
            ({"by": "name", "nodes": ["lost"]}, "unknown node 'lost'"),
            ({"by": "type", "nodes": ["lstm"]}, "lstm"),
        ],
    )
    def test_bad_input_is_refused_in_one_sentence(self, options, text):
        with pytest.raises(PassArgsError, match=text) as refused:
            learn_bits_transform_pass(traced(), **options)
        assert "\n" not in str(refused.value)

    def test_a_graph_without_layers_and_weights_that_are_not_finite_are_refused(self):
        with pytest.raises(PassArgsError, match="no layer that can learn its bits"):
            learn_bits_transform_pass(traced(nn.Sequential(nn.Tanh())))
        graph = traced()
        graph.model.last.weight.data[0, 0] = torch.nan
        with pytest.raises(PassArgsError, match="'last' has a weight with NaN"):
            learn_bits_transform_pass(graph)

    def test_a_layer_by_hand_needs_the_shape_of_a_sample(self):
        config = {"name": "mixed_integer", "granularity": "element", "data_in_width": 8}
        config |= {"data_in_frac_width": 4, "weight_width": 8, "weight_frac_width": 4}
        with pytest.raises(PassArgsError, match="data_in_sample_shape is missing"):
            quantize_transform_pass(traced(), by="name", conv={"config": config})


@pytest.mark.parametrize("kind", COSTS)
def test_kernels_do_not_change_costs_nor_their_gradients(kind):
    if not KERNELS.ready(1, wait=True):
        pytest.skip("there is no C++ compiler")
    before, found = fused_mode(), []
    for mode in ("on", "off"):
        set_fused(mode)
        graph = learning(spread=3.0)
        total = cost(graph, kind, exact=False)
        total.backward()
        grads = (bits.grad for bits in widths(graph).values())
        found.append((total.detach(), *(grad for grad in grads if grad is not None)))
    set_fused(before)
    assert all(itertools.starmap(torch.equal, zip(*found, strict=True)))
    assert any((grad == 0).any() and grad.any() for grad in found[0][1:])  # some have no bits


class TestCost:
    @pytest.mark.parametrize("kind", COSTS)
    def test_it_has_gradients_for_all_widths(self, kind):
        graph = learning(spread=0.0)
        cost(graph, kind, exact=False).backward()
        costly = {n: p for n, p in widths(graph).items() if "bias" not in n or kind == "ebops"}
        costly = {n: p for n, p in costly.items() if "data" not in n or kind != "model_size"}
        assert all(p.grad is not None and p.grad.any() for p in costly.values())

    @pytest.mark.parametrize("kind", ["bitops", "model_size"])
    def test_whole_bits_cost_what_real_bits_do(self, kind):
        graph = learning()
        assert cost(graph, kind).item() == pytest.approx(cost(graph, kind, exact=False).item())

    def test_by_hand(self):
        graph = learning(nn.Sequential(nn.Linear(2, 1, bias=True)), (2,), spread=0.0)
        (layer,) = layers(graph)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([[0.75, 0.1]]))
            layer.bias.fill_(0.5)
            layer.weight_frac_bits.fill_(2)  # codes 3 and 0
            layer.bias_frac_bits.fill_(3)  # code 4
            layer.data_in_integer_bits.copy_(torch.tensor([1.0, 2.0]))
            layer.data_in_frac_bits.copy_(torch.tensor([2.0, 2.0]))
        x, weight, bias = 4, 3, 4  # with signs
        assert layer.bit_cost("model_size", exact=True) == weight + bias
        assert layer.bit_cost("ebops", exact=True) == x * (weight - 1) + 1  # 4 is 1 and two zeros
        assert layer.bit_cost("ebops") == x * (weight - 1) + bias - 1
        assert layer.bit_cost("bitops", exact=True) == x * weight + x + weight + 1

    @pytest.mark.parametrize(("granularity", "data"), PAIRS)
    def test_passes_and_metrics_count_the_same_bits(self, granularity, data):
        graph = learning(granularity=granularity, data_in_granularity=data)
        wanted = cost(graph, "bitops").item(), cost(graph, "model_size").item()
        for _ in ("learning", "frozen"):
            _, info = cost_analysis_pass(graph, per_sample=True, silent=True)
            assert info["total"]["bit_ops"] == pytest.approx(wanted[0], rel=1e-12)
            assert info["total"]["weight_bits"] == wanted[1]
            numbers = ledger_of(graph.model).read()
            assert numbers.bit_ops == pytest.approx(wanted[0], rel=1e-12)
            assert numbers.parameter_bits == numbers.saved_bits == wanted[1]
            _, module = calculate_avg_bits_module_analysis_pass(graph.model)
            size = sum(p.numel() for n, p in graph.model.named_parameters() if "_bits" not in n)
            assert module["average_bitwidth"] * size == pytest.approx(wanted[1])
            if _ == "learning":
                freeze_bits_transform_pass(graph)

    @pytest.mark.parametrize(("granularity", "width"), [*itertools.product(GRANULARITIES, (4, 6))])
    @pytest.mark.parametrize("padding", [0, 1])
    def test_luts_agree_with_the_formula_whether_weights_share_their_widths(
        self, granularity, width, padding
    ):
        """Where activations have their whole range; training does not know of narrower ones."""
        model = nn.Sequential(
            *(nn.Conv2d(2, 4, 3, padding=padding), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()),
            *(nn.Flatten(), nn.LazyLinear(3)),
        )
        model(torch.zeros(1, 2, 6, 6))
        graph = learning(model, width=width, granularity=granularity)
        for bits in widths(graph).values():
            with torch.no_grad():
                bits.round_()
        counted = cost(graph, "lut").item()
        freeze_bits_transform_pass(graph)
        expected = estimate(graph.to_integers(), fidelity="formula").metrics["lut"]
        assert counted == pytest.approx(expected, rel=0.2)

    def test_weights_of_no_bits_cost_nothing(self):
        graph = learning(spread=0.0)
        with torch.no_grad():
            graph.model.last.weight_frac_bits.fill_(-5)
        last = graph.model.last
        assert last.bit_cost("bitops", exact=True) == last.bit_cost("bitops") == 0
        freeze_bits_transform_pass(graph)
        _, info = calculate_avg_bits_mg_analysis_pass(graph)
        assert info["layers"]["last"]["w_avg_bit"] == 0
        _, sparse = cost_analysis_pass(graph, sparse=True, silent=True)
        assert sparse["nodes"]["last"]["bit_ops"] == 0
        assert not graph.model.last.q_parameter("weight").any()

    def test_an_unknown_cost_is_refused(self):
        (layer, *_) = layers(learning())
        with pytest.raises(ValueError, match="no cost 'area'; use one of ebops"):
            layer.bit_cost("area")

    def test_many_networks_at_once(self):
        graphs = [learning(data_in_granularity="element") for _ in range(2)]
        with torch.no_grad():
            for bits in widths(graphs[1]).values():
                bits += 1
        model = graphs[0].model
        states = [dict(graph.model.named_parameters()) for graph in graphs]
        stacked = {
            n: torch.stack([s[n].detach() for s in states]).requires_grad_() for n in states[0]
        }
        x = torch.randn(4, 2, 6, 6)

        class Costs(nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, x):
                each = [m for m in self.model.modules() if isinstance(m, LearnsBits)]
                return self.model(x), sum(m.bit_cost("lut") for m in each)

        def run(state):
            named = {f"model.{name}": tensor for name, tensor in state.items()}
            return functional_call(Costs(), named, (x,))

        results, costs = torch.vmap(run)(stacked)
        (results.square().sum() + costs.sum()).backward()
        for i, graph in enumerate(graphs):
            own = graph.model(x)
            assert torch.allclose(own, results[i], atol=1e-6)
            assert cost(graph, "lut", exact=False).item() == pytest.approx(costs[i].item())
            (own.square().sum() + cost(graph, "lut", exact=False)).backward()
            for name, parameter in graph.model.named_parameters():
                assert torch.allclose(parameter.grad, stacked[name].grad[i], rtol=1e-3, atol=1e-3)


class TestFreezing:
    @pytest.mark.parametrize(("granularity", "data"), PAIRS)
    def test_outputs_stay_equal_bit_for_bit(self, granularity, data):
        graph = learning(granularity=granularity, data_in_granularity=data)
        before = outputs(graph)
        _, info = freeze_bits_transform_pass(graph)
        assert info["frozen"] == ["conv", "grouped", "last"]
        assert torch.equal(outputs(graph), before)
        uniform = (granularity, data) == ("tensor", "tensor")
        assert graph.model.conv.format_name == ("integer" if uniform else "mixed_integer")
        assert not any(widths(graph).values())
        assert all(not b.is_floating_point() for b in graph.model.conv.format_tensors().values())

    @pytest.mark.parametrize("rounding", ["even", "up", "floor"])
    @pytest.mark.parametrize("overflow", ["saturate", "symmetric", "wrap"])
    def test_so_they_do_by_every_rule_and_in_integers(self, rounding, overflow):
        graph = learning(rounding=rounding, overflow=overflow)
        before = outputs(graph)
        freeze_bits_transform_pass(graph)
        assert torch.equal(outputs(graph), before)
        _, info = verify_integers_analysis_pass(graph, num_samples=64, silent=True)
        assert info["mismatches"] == 0

    def test_a_saved_graph_comes_back_learning_or_frozen(self, tmp_path):
        graph = learning()
        for name in ("learning", "frozen"):
            save_mase_graph_interface_pass(graph, str(tmp_path / name))
            loaded = MaseGraph.from_checkpoint(tmp_path / name)
            assert torch.equal(outputs(loaded), outputs(graph))
            assert widths(loaded).keys() == widths(graph).keys()
            if name == "learning":
                assert loaded.model.conv.reads_input
                assert cost(loaded, "lut") == cost(graph, "lut")
                freeze_bits_transform_pass(graph)
        tensors = graph.model.conv.format_tensors()
        for key, tensor in loaded.model.conv.format_tensors().items():
            assert torch.equal(tensor, tensors[key])

    def test_copies_pickles_and_states_have_the_bits(self):
        graph = learning()
        freeze_bits_transform_pass(graph)
        layer = graph.model.conv
        x = torch.randn(3, 2, 6, 6)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(other(x), layer(x))
        other = copy.deepcopy(layer)
        for bits in other.format_tensors().values():
            bits.zero_()
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other(x), layer(x))
        assert layer.half().weight_frac_bits.dtype == torch.int8

    def test_frozen_bits_stay_while_weights_train_on(self):
        graph = learning()
        freeze_bits_transform_pass(graph)
        model = graph.model.train()
        before = {n: b.clone() for n, b in model.named_buffers()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(8, 2, 6, 6)).square().mean().backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        assert all(torch.equal(b, before[n]) for n, b in model.named_buffers())

    def test_metadata_show_the_bits_in_use(self):
        graph = learning()
        freeze_bits_transform_pass(graph)
        node = next(node for node in graph.nodes if node.name == "conv")
        noted = mase(node).common.args.tensor("weight")
        assert noted.format.mean_width == graph.model.conv.current_formats()["weight"].mean_width
        assert noted["type"] == "mixed_integer"

    def test_a_graph_that_learns_nothing_is_refused(self):
        with pytest.raises(PassArgsError, match="no layer that learns its bits; run learn_bits"):
            freeze_bits_transform_pass(traced())
        graph = learning()
        freeze_bits_transform_pass(graph)
        assert freeze_bits_transform_pass(graph)[1] == {"frozen": []}


class TestPruning:
    @pytest.mark.parametrize("granularity", GRANULARITIES)
    def test_a_layer_keeps_the_bits_of_the_channels_that_are_left(self, granularity):
        graph = learning(granularity=granularity, data_in_granularity=granularity)
        layer, kept = graph.model.last, [0, 3, 5, 9]
        small = shrunk(layer, outs=[0, 2], ins=kept)
        x = torch.rand(5, 16) * 4
        masked = torch.zeros(5, 16)
        masked[:, kept] = x[:, kept]
        if granularity == "tensor":  # its range follows from fewer values, but its steps stay
            assert small.weight_frac_bits == layer.weight_frac_bits
        assert torch.equal(small(x[:, kept]), layer(masked)[:, [0, 2]])
        assert small.formats["data_in"].sample_shape == (4,)

    def test_channels_are_removed_from_a_network(self):
        graph = learning(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)))
        prune_channels_transform_pass(graph, sparsity=0.5)
        assert len(graph.model.get_submodule("2").data_in_frac_bits) == 2
        assert outputs(graph).shape == (32, 2, 2, 2)
        assert cost(graph, "ebops") > 0
