"""Attention, recurrence and torch's transformers: quantised, pruned and counted in a graph."""

import logging
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.passes import run_pass
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    prune_transform_pass,
    quantize_transform_pass,
)
from chop.passes.graph.analysis.cost import cost_of
from chop.passes.graph.analysis.cost.ledger import ledger_of
from chop.passes.graph.transforms.pruning.weights import layer_masks, weight_names


class Reader(nn.Module):
    """Reads short texts with an encoder, two recurrent layers, a cell and attention."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.lstm = nn.LSTM(8, 5, 2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(10, 4, batch_first=True)
        self.mix = nn.MultiheadAttention(4, 2, batch_first=True)
        self.cell = nn.RNNCell(4, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        x, _ = self.lstm(self.encoder(self.embedding(x)))
        x, _ = self.gru(x)
        x, _ = self.mix(x, x, x)
        return self.last(self.cell(x[:, -1]))


class Pair(nn.Module):
    """A bilinear layer, which has no quantized form, behind a linear one."""

    def __init__(self):
        super().__init__()
        self.first, self.both = nn.Linear(4, 4, bias=False), nn.Bilinear(4, 4, 3, bias=False)

    def forward(self, x):
        y = self.first(x)
        return self.both(y, y)


SEVERAL = ["encoder_layers_0_self_attn", "lstm", "gru", "mix", "cell"]


def graph_of(model, x):
    graph, _ = init_metadata_analysis_pass(MaseGraph(model))
    return add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x}})[0]


@pytest.fixture(scope="module")
def reader():
    torch.manual_seed(0)
    return graph_of(Reader().eval(), torch.randint(7, (2, 5)))


def integer(data=8, weight=4, bias=6):
    widths = {"data_in": data, "weight": weight, "bias": bias}
    pairs = {f"{o}_{k}": w // d for o, w in widths.items() for k, d in KEYS.items()}
    return {"config": {"name": "integer", **pairs}}


KEYS = {"width": 1, "frac_width": 2}


@pytest.mark.parametrize(
    ("by", "key", "chosen"),
    [
        ("type", "lstm", ["lstm"]),
        ("type", "attention", ["encoder_layers_0_self_attn", "mix"]),
        ("name", "gru", ["gru"]),
        ("regex_name", r"(cell|encoder_.*attn)", ["encoder_layers_0_self_attn", "cell"]),
    ],
)
def test_they_are_quantized_by_type_name_and_expression(reader, by, key, chosen):
    graph = reader.clone()
    _, info = quantize_transform_pass(graph, {"by": by, key: integer()})
    assert info == {"quantized": chosen}
    x = torch.randint(7, (2, 5))
    assert not torch.equal(graph.model(x), reader.model(x))
    for node in graph.nodes:
        widths = {
            name: tensor.precision[0] for name, tensor in node.meta["mase"].common.args.tensors()
        }
        wanted = {"data_in": 8, "weight": 4, "bias": 6} if node.name in chosen else {}
        for name, width in widths.items():
            kind = "bias" if "bias" in name else "weight" if "weight" in name else name[:7]
            assert node.op != "call_module" or width in (wanted.get(kind, 32), 64), (node, name)


def test_a_quantized_and_pruned_network_comes_back_from_a_file(reader, tmp_path):
    graph, x = reader.clone(), torch.randint(7, (2, 5))
    prune_transform_pass(graph, {"weight": {"sparsity": 0.5, "method": "l1-norm"}})
    quantize_transform_pass(graph, {"by": "type", "default": integer()})
    graph.export(tmp_path / "g")
    after = MaseGraph.from_checkpoint(tmp_path / "g")
    assert torch.equal(after.model(x), graph.model(x))
    assert cost_of(after)["total"] == cost_of(graph)["total"]


def test_all_their_weights_are_pruned_and_reported(reader):
    graph = reader.clone()
    request = {"sparsity": 0.5, "method": "l1-norm", "scope": "local"}
    _, info = prune_transform_pass(graph, {"weight": request})
    for name in SEVERAL:
        layer = graph.modules[name.replace("_layers_0_", ".layers.0.")]
        masks = layer_masks(layer)
        assert list(masks) == [n for n in masks if n in weight_names(layer)]
        assert len(masks) == len(weight_names(layer)) > 1
        for weight, mask in masks.items():
            values = dict(layer.named_parameters())[weight].abs()
            assert int(mask.sum()) == mask.numel() // 2
            assert values[~mask].max() <= values[mask].min()
        total = sum(mask.numel() for mask in masks.values())
        assert info["weight"][name] == {
            "requested": 0.5, "reached": 0.5, "pruned": total // 2, "total": total
        }  # fmt: skip
    inputs = {"x": torch.randint(7, (2, 5))}
    shares = run_pass("add_pruning_metadata", graph, {"dummy_in": inputs})[1]
    assert {shares[t]["weight_sparsity"] for t in ("lstm", "gru", "mix", "cell")} == {0.5}
    natural = run_pass("add_natural_sparsity", graph, {"dummy_in": inputs})[1]
    assert natural["lstm_weight"] == (2 * (20 * 13 + 20 * 15), 0.5)
    before = graph.model(inputs["x"])
    _, info = run_pass("prune_detach_hook", graph)
    assert {"lstm", "mix", "encoder.layers.0.self_attn"} <= set(info["weight"])
    assert torch.equal(graph.model(inputs["x"]), before)


@pytest.mark.parametrize("granularity", ["channel", "2:4"])
def test_rows_and_patterns_of_their_weights_are_pruned(reader, granularity):
    graph = reader.clone()
    table = {"granularity": granularity, "by": "type", "method": "l1-norm"}
    prune_transform_pass(graph, {"weight": {**table, "sparsity": {"gru": 0.5, "attention": 0.5}}})
    for name, mask in layer_masks(graph.modules["mix"]).items():
        groups = mask if granularity == "2:4" else mask.T
        assert groups.sum(1).tolist() == [len(groups[0]) // 2] * len(groups), name
    assert graph.model(torch.randint(7, (2, 5))).isfinite().all()


def test_movement_of_all_their_weights_is_tracked(reader, tmp_path):
    graph, x = reader.clone(), torch.randint(7, (2, 5))
    run_pass("add_movement_metadata", graph)
    graph.export(tmp_path / "g")
    graph = MaseGraph.from_checkpoint(tmp_path / "g")
    graph.model(x).square().sum().backward()
    lstm = graph.modules["lstm"]
    weight = lstm.weight_hh_l1
    assert torch.allclose(lstm.weight_hh_l1_movement, -weight * weight.grad)
    prune_transform_pass(graph, {"weight": {"sparsity": 0.25, "method": "movement"}})
    mask = layer_masks(graph.modules["mix"])["out_proj.weight"]
    assert int(mask.sum()) == 12


def test_channels_and_inputs_of_them_stay_with_a_reason(reader):
    info = run_pass("prune_channels", reader.clone(), {"sparsity": 0.5})[1]
    assert info["kept"]["lstm"] == "node 'lstm' is lstm, which keeps its size"
    with pytest.raises(ValueError, match="'mix' is attention, which keeps its size; leave 'mix'"):
        run_pass("prune_channels", reader.clone(), {"sparsity": {"mix": 0.5}})
    with pytest.raises(ValueError, match="'gru' is gru, of which only weights are pruned"):
        prune_transform_pass(reader.clone(), {"activation": {"sparsity": {"gru": 0.5}}})


def test_bit_operations_of_a_quantized_lstm_and_attention_by_hand():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 4, batch_first=True)
            self.mix = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            x, _ = self.lstm(x)
            return self.mix(x, x, x)[0]

    graph = graph_of(Both().eval(), torch.randn(1, 5, 4))
    quantize_transform_pass(graph, {"by": "type", "default": integer(8, 3, 6)})
    cost = cost_of(graph)
    steps, sums = 5 * 16 * (4 + 4), 2  # two bits more for sums of four products
    assert cost["nodes"]["lstm"]["bit_ops"] == steps * (8 * 3 + 8 + 3 + sums)
    projections, pairs = 4 * 5 * 16, 2 * 5 * 5
    scores, values = pairs * 2 * (64 + 16 + 1), pairs * 2 * (64 + 16 + 3)
    mixed = projections * (8 * 3 + 8 + 3 + sums) + scores + values
    assert cost["nodes"]["mix"]["bit_ops"] == mixed
    stored = 3 * (2 * 64) + 6 * 32  # weights and biases of the LSTM
    assert cost["nodes"]["lstm"]["weight_bits"] == stored
    assert cost["nodes"]["mix"]["weight_bits"] == 3 * (4 * 16) + 6 * (4 * 4)
    numbers = ledger_of(graph.model).read()
    total = cost["total"]
    assert (numbers.bit_ops, numbers.parameter_bits) == (total["bit_ops"], total["weight_bits"])


def test_costs_of_the_reader_in_many_formats_are_those_of_the_pass(reader):
    graph = reader.clone()
    for width in (3, 8):
        quantize_transform_pass(graph, {"by": "type", "default": integer(width, width + 1)})
        total, numbers = cost_of(graph, per_sample=True)["total"], ledger_of(graph.model).read()
        assert numbers.bit_ops == total["bit_ops"]
        assert numbers.parameter_bits == total["weight_bits"]
        assert numbers.peak_activation_bits == total["peak_activation_bits"]
    assert math.isclose(run_pass("calculate_avg_bits", graph)[1]["layers"]["lstm"]["w_avg_bit"], 9)


def test_what_cannot_be_quantized_is_warned_of_once_with_its_share(caplog):
    graph = graph_of(Pair(), torch.randn(2, 4))
    with caplog.at_level(logging.WARNING, "chop"):
        for copy in (graph, graph.clone(), graph.clone()):
            quantize_transform_pass(copy, {"by": "type", "linear": integer()})
    weights = 100 * 48 / (16 + 48)
    linear, bilinear = 2 * 16 * 2, (3 * 16 + 3 * 4) * 2 * 2
    operations = 100 * bilinear / (linear + bilinear)
    share = f"{weights:.3g} % of the weights and {operations:.3g} % of the operations"
    warning = f"both (Bilinear) cannot be quantised and stays in float: {share}"
    assert caplog.messages == [warning]
    caplog.clear()
    prune_transform_pass(graph, {"weight": {"sparsity": 0.5}})
    assert f"both (Bilinear) cannot be pruned and stays as it is: {share}" in caplog.text


def test_quantize_and_prune_give_the_same_shares_of_a_layer_with_a_bias(caplog):
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.last = nn.Bilinear(6, 6, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.both(x, x))

    graph = graph_of(Biased(), torch.randn(2, 6))
    with caplog.at_level(logging.WARNING, "chop"):
        quantize_transform_pass(graph, {"by": "type", "linear": integer()})
        prune_transform_pass(graph, {"weight": {"sparsity": 0.5}})
    # 148 of 168 parameters; 2 · 2 · (4 · 36 + 4 · 6) + 8 of 680 + 72 operations
    share = "88.1 % of the weights and 90.4 % of the operations"
    assert caplog.messages == [
        f"both (Bilinear) cannot be quantised and stays in float: {share}",
        f"both (Bilinear) cannot be pruned and stays as it is: {share}",
    ]


class Queries(nn.Module):
    """Learned queries attend to the input, and a matrix of weights is multiplied in forward()."""

    def __init__(self):
        super().__init__()
        self.q, self.w = nn.Parameter(torch.ones(1, 3, 8)), nn.Parameter(torch.ones(8, 4))
        self.mix, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(4, 4)

    def forward(self, x):
        mixed = self.mix(self.q.expand(x.shape[0], -1, -1), x, x, need_weights=False)[0]
        return self.last(mixed @ self.w)


def test_operations_of_layers_that_are_pruned_do_not_count_for_their_inputs(caplog):
    graph = graph_of(Queries(), torch.randn(2, 5, 8))
    with caplog.at_level(logging.WARNING, "chop"):
        quantize_transform_pass(graph, {"by": "type", "default": integer()})
        prune_transform_pass(graph, {"weight": {"sparsity": 0.5}})
    counts = {name: row["flops"] for name, row in cost_of(graph)["nodes"].items()}
    assert counts["matmul"] == 2 * 6 * 8 * 4
    operations = 100 * counts["matmul"] / sum(counts.values())
    weights = 100 * (24 + 32) / (24 + 32 + 3 * 64 + 24 + 64 + 8 + 16 + 4)
    share = f"{weights:.3g} % of the weights and {operations:.3g} % of the operations"
    what = "q (a parameter), w (a parameter) cannot be pruned and stay as they are"
    assert caplog.messages[-1] == f"{what}: {share}"
    assert share == "15.4 % of the weights and 6.12 % of the operations"


def test_layers_of_the_user_and_parameters_of_functions_are_warned_of_too(caplog):
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * self.scale

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mine, self.first = Mine(), nn.Linear(4, 4)
            self.table, self.shift = nn.Parameter(torch.ones(2, 4, 4)), nn.Parameter(torch.ones(2))

        def forward(self, x):
            x = self.first(self.mine(x))
            return F.bilinear(x, x, self.table) + self.shift

    graph = MaseGraph(Net(), custom_ops={"modules": {Mine: {}}})
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": torch.randn(2, 4)}})
    with caplog.at_level(logging.WARNING, "chop.passes"):
        quantize_transform_pass(graph, {"by": "type", "default": integer()})
    share = "62.1 % of the weights and an unknown share of the operations"
    warning = "mine (Mine), table (a parameter) cannot be quantised and stay in float: "
    assert caplog.messages == [warning + share]


def test_a_network_that_can_be_quantized_as_a_whole_is_warned_of_files_only(reader, caplog):
    with caplog.at_level(logging.WARNING, "chop"):
        quantize_transform_pass(reader.clone(), {"by": "type", "default": integer()})
    (said,) = caplog.messages
    assert "lstm (lstm), gru (gru)" in said
    assert "which no ONNX file and no circuit holds" in said


def test_a_recurrence_called_as_a_function_is_refused_by_name():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 4)

        def forward(self, x):
            cell = self.cell
            return torch.gru_cell(x, x.new_zeros(2, 4), cell.weight_ih, cell.weight_hh)

    graph = graph_of(Functional(), torch.randn(2, 3))
    with pytest.raises(ValueError, match="'gru_cell' calls gru_cell as a function, and only"):
        quantize_transform_pass(graph, {"by": "name", "gru_cell": integer()})
