"""The cost pass: bits, memory, zeros, samples, and what it reports."""

import json
import logging
import math
import xml.etree.ElementTree as ET

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from chop.ir import MaseGraph
from chop.numerics import from_config
from chop.passes import PassArgsError, Pipeline, run_pass
from chop.passes.graph.analysis.cost import cost_of
from chop.passes.graph.analysis.cost.ledger import ledger_of

INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INTEGER |= {"weight_width": 4, "weight_frac_width": 2, "bias_width": 16, "bias_frac_width": 6}


def quantize(graph, config=INTEGER, op="linear"):
    return run_pass("quantize", graph, {"by": "type", op: {"config": config}})[0]


def mlp():
    return nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 3))


def test_bit_ops_are_those_of_the_multiplier_and_of_the_accumulator(make):
    graph = make.graph(nn.Sequential(nn.Linear(10, 6)), torch.randn(2, 10))
    row = cost_of(graph)["nodes"]["_0"]
    macs = 2 * 10 * 6
    assert row["bit_ops_multiply"] == macs * 32 * 32
    assert row["bit_ops_accumulate"] == macs * (32 + 32 + 4)  # ten terms need four bits more
    row = cost_of(quantize(graph))["nodes"]["_0"]
    assert row["bit_ops_multiply"] == macs * 8 * 4
    assert row["bit_ops_accumulate"] == macs * (8 + 4 + 4)
    assert row["bit_ops"] == macs * (32 + 16)


def test_a_quantized_product_of_activations_has_both_widths(make):
    graph = make.graph(make.doing(lambda _, x: x @ x.t()), torch.randn(4, 16))
    row = cost_of(quantize(graph, op="matmul"))["nodes"]["matmul"]
    assert row["bit_ops"] == 4 * 4 * 16 * (8 * 4 + 8 + 4 + 4)


def test_weights_take_the_bits_of_their_format(make):
    graph = make.graph(mlp(), torch.randn(2, 10))
    assert cost_of(graph)["total"]["weight_bits"] == 32 * (66 + 21)
    found = cost_of(quantize(graph))
    assert found["nodes"]["_0"]["weight_bits"] == 60 * 4 + 6 * 16
    assert found["total"]["weight_bits"] == (60 + 18) * 4 + (6 + 3) * 16


def test_shared_exponents_are_stored_and_not_multiplied(make):
    config = {"name": "block_fp"}
    for operand in ("data_in", "weight", "bias"):
        about = {"width": 6, "exponent_width": 8, "exponent_bias": 127, "block_size": [1, 4]}
        config |= {f"{operand}_{key}": value for key, value in about.items()}
    graph = quantize(make.graph(nn.Sequential(nn.Linear(10, 6)), torch.randn(2, 10)), config)
    row = cost_of(graph)["nodes"]["_0"]
    blocks = 6 * math.ceil(10 / 4)
    fmt = from_config(config, "bias")
    assert row["weight_bits"] == 60 * 6 + 8 * blocks + round(6 * fmt.average_bits([6]))
    assert row["bit_ops_multiply"] == 120 * 6 * 6


def test_a_functional_weight_is_stored_as_its_reader_reads_it(make):
    def layer(self, x):
        return F.linear(x, self.weight)

    graph = make.graph(make.doing(layer, weight=torch.randn(3, 5)), torch.randn(2, 5))
    assert cost_of(graph)["total"]["weight_bits"] == 15 * 32
    assert cost_of(quantize(graph))["total"]["weight_bits"] == 15 * 4


def test_an_activation_waits_in_the_widest_format_that_its_readers_need(make):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            y = self.a(x)
            return self.b(y) + self.c(y)

    graph = make.graph(Net(), torch.randn(2, 4))
    wide = {**INTEGER, "data_in_width": 12}
    tables = {"a": INTEGER, "b": INTEGER, "c": wide}
    run_pass("quantize", graph, {"by": "name", **{k: {"config": v} for k, v in tables.items()}})
    found = cost_of(graph)["nodes"]
    assert found["x"]["activation_bits"] == 8 * 8
    assert found["a"]["activation_bits"] == 8 * 12
    assert found["b"]["activation_bits"] == 8 * 32  # a sum in float reads it


def test_the_peak_is_what_lives_at_one_time(make):
    def net(_, x):
        a = x.relu()  # x, a
        b = a.view(-1).neg()  # a, b: the view lies where a lies
        return b + a.flatten()  # a, b, and the sum

    found = cost_of(make.graph(make.doing(net), torch.randn(2, 5)))["total"]
    assert found["peak_activation_bits"] == 3 * 10 * 32
    assert found["peak_node"] == "add"
    assert found["activation_bits"] == 4 * 10 * 32


@pytest.mark.parametrize("inplace", [False, True])
def test_what_is_written_in_place_takes_no_new_room(make, inplace):
    model = nn.Sequential(nn.Linear(4, 100), nn.ReLU(inplace), nn.Linear(100, 4))
    found = cost_of(make.graph(model, torch.randn(1, 4)))["total"]
    hidden = 100 * 32
    assert found["peak_activation_bits"] == (hidden + 4 * 32 if inplace else 2 * hidden)


def test_a_long_chain_needs_two_activations_at_a_time(make):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20)))
    found = cost_of(make.graph(model, torch.randn(3, 8)))["total"]
    assert found["peak_activation_bits"] == 2 * 3 * 8 * 32


def test_arithmetic_intensity_is_operations_per_byte_moved(make):
    found = cost_of(make.graph(nn.Sequential(nn.Linear(10, 6, bias=False)), torch.randn(2, 10)))
    moved = 4 * (20 + 60 + 12)
    assert found["nodes"]["_0"]["arithmetic_intensity"] == 2 * 120 / moved
    assert found["total"]["arithmetic_intensity"] == 2 * 120 / moved


class Mask(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight):
        return weight * self.mask


def test_zeros_are_left_out_on_request(make):
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        model[0].weight[0] = 0
        model[2].weight[:, ::2] = 0
        model[2].bias.fill_(1)
        model[0].bias.fill_(1)
    graph = make.graph(model, torch.randn(5, 2, 4, 4))
    dense, sparse = cost_of(graph), cost_of(graph, sparse=True)
    assert dense["nodes"]["_0"]["macs"] == 5 * 4 * 36
    assert sparse["nodes"]["_0"]["macs"] == 5 * 4 * 27
    assert sparse["nodes"]["_2"]["macs"] == 5 * 24
    assert sparse["total"]["parameters"] == 27 + 4 + 24 + 3
    assert sparse["total"]["weight_bits"] == 32 * (27 + 4 + 24 + 3)
    assert sparse["nodes"]["_0"]["flops"] == 2 * 5 * 4 * 27 + 5 * 16


def test_masked_and_rounded_weights_are_zeros_too(make):
    layer = nn.Linear(4, 4, bias=False)
    nn.init.ones_(layer.weight)
    parametrize.register_parametrization(layer, "weight", Mask(torch.eye(4)))
    graph = make.graph(nn.Sequential(layer), torch.randn(2, 4))
    assert cost_of(graph)["total"]["macs"] == 32
    found = cost_of(graph, sparse=True)["total"]
    assert (found["macs"], found["parameters"], found["weight_bits"]) == (8, 4, 4 * 32)
    found = cost_of(quantize(graph), sparse=True)["total"]
    assert (found["macs"], found["parameters"], found["weight_bits"]) == (8, 4, 4 * 4)
    assert found["bit_ops_multiply"] == 8 * 8 * 4
    small = nn.Sequential(nn.Linear(4, 4, bias=False))
    nn.init.constant_(small[0].weight, 0.01)
    graph = quantize(make.graph(small, torch.randn(2, 4)))
    assert cost_of(graph, sparse=True)["total"]["macs"] == 0


def test_zeros_of_attention_are_counted_where_they_are(make):
    model = make.itself(nn.MultiheadAttention(4, 1, batch_first=True))
    with torch.no_grad():
        model.layer.in_proj_weight[:4] = 0  # those of the query
    graph = make.graph(model, torch.randn(1, 3, 4))
    dense, sparse = cost_of(graph), cost_of(graph, sparse=True)
    assert dense["total"]["macs"] - sparse["total"]["macs"] == 3 * 16


def test_a_sample_costs_its_share_of_the_batch_and_weights_do_not(make):
    graph = make.graph(mlp(), torch.randn(8, 10))
    batch, one = cost_of(graph), cost_of(graph, per_sample=True)
    alone = cost_of(make.graph(mlp(), torch.randn(1, 10)))
    assert (batch["batch_size"], one["per_sample"]) == (8, True)
    for key in ("macs", "flops", "backward_flops", "bit_ops", "peak_activation_bits"):
        assert batch["total"][key] == 8 * one["total"][key]
        assert one["total"][key] == alone["total"][key]
    assert one["total"]["weight_bits"] == batch["total"]["weight_bits"]


def test_a_layer_that_is_called_twice_computes_twice_and_is_stored_once(make):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(self.layer(x))

    total = cost_of(make.graph(Twice(), torch.randn(1, 4)))["total"]
    assert (total["parameters"], total["macs"]) == (20, 32)


def test_types_and_nodes_add_up_to_the_total(make):
    found = cost_of(make.graph(mlp(), torch.randn(2, 10)))
    for key in ("parameters", "macs", "flops", "bit_ops", "weight_bits", "activation_bits"):
        assert sum(row[key] for row in found["nodes"].values()) == found["total"][key]
        assert sum(row[key] for row in found["by_type"].values()) == found["total"][key]
    assert found["by_type"]["linear"]["nodes"] == 2


@torch.fx.wrap
def strange(x):
    return x * 2


def test_what_is_unknown_counts_nothing_and_is_named_once(make, caplog):
    graph = make.graph(make.doing(lambda _, x: strange(strange(x)) + 1), torch.randn(2))
    with caplog.at_level(logging.WARNING, "chop"):
        found = cost_of(graph)
    (said,) = caplog.messages
    assert "user_defined_function: strange, strange_1" in said
    assert found["unknown"] == {"user_defined_function": ["strange", "strange_1"]}
    assert found["total"]["flops"] == 2


def test_the_report_is_a_table_a_json_file_and_a_picture(make, tmp_path, caplog, golden):
    graph = make.graph(mlp(), torch.randn(2, 10))
    options = {"file_name": tmp_path / "new" / "cost.json", "picture": tmp_path / "cost.svg"}
    with caplog.at_level(logging.INFO, "chop"):
        _, info = run_pass("cost", graph, options)
    golden("cost_table.txt", "\n".join(caplog.messages) + "\n")
    assert json.loads(options["file_name"].read_text()) == info
    picture = ET.fromstring(options["picture"].read_text())
    assert "_0" in [t.text for t in picture.iter("{http://www.w3.org/2000/svg}text")]


def test_silent_says_nothing(make, caplog):
    with caplog.at_level(logging.INFO, "chop"):
        run_pass("cost", make.graph(mlp(), torch.randn(2, 10)), {"silent": True})
    assert not caplog.messages


def test_zeros_of_weights_that_are_not_there_cannot_be_counted(make):
    with torch.device("meta"):
        model = mlp()
    graph = make.graph(model, torch.randn(2, 10), force_device_meta=True)
    assert cost_of(graph)["total"]["macs"] == 2 * 78
    with pytest.raises(PassArgsError, match="pass 'cost': sparse = true reads the weights"):
        run_pass("cost", graph, {"sparse": True})


def test_a_folder_is_no_file(make, tmp_path):
    with pytest.raises(IsADirectoryError, match="is a directory"):
        run_pass("cost", make.graph(mlp(), torch.randn(2, 10)), {"file_name": tmp_path})


class Tied(nn.Module):
    """A language model: what it reads with, it writes with."""

    def __init__(self):
        super().__init__()
        self.read, self.write = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.write.weight = self.read.weight

    def forward(self, x):
        return self.write(self.read(x))


def test_tied_weights_are_there_once(make):
    graph = make.graph(Tied(), torch.tensor([[1, 2, 3]]))
    for _ in range(2):
        total = cost_of(graph)["total"]
        assert total["parameters"] == 7 * 4 + 7
        assert total["weight_bits"] == 32 * (7 * 4 + 7)
        numbers = run_pass("calculate_flops", graph)[1]
        assert numbers["total_parameters"] == 7 * 4 + 7
        assert numbers["model_size_bits"] == 32 * (7 * 4 + 7)
        graph = graph.clone()


def test_tied_weights_are_there_once_beside_an_adapter(make):
    graph = make.graph(Tied(), torch.tensor([[1, 2, 3]]))
    run_pass("insert_lora_adapter", graph, {"rank": 1})
    assert cost_of(graph)["total"]["parameters"] == 7 * 4 + 7 + (4 + 7)


@pytest.mark.slow
def test_checks_of_sizes_cost_nothing_and_read_no_numbers(caplog):
    model, x = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU()).eval(), torch.randn(4, 2, 8, 8)
    totals = []
    for front_end in ("fx", "export"):
        graph = MaseGraph(model, front_end=front_end, dummy_in=(x,))
        described = [("add_common_metadata", {"dummy_in": {"input": x}, "add_value": False})]
        graph = quantize(Pipeline(["init_metadata", *described])(graph)[0], op="conv2d")
        totals.append(cost_of(graph)["total"])
        assert ledger_of(graph.model).read().peak_activation_bits == (
            totals[-1]["peak_activation_bits"] / 4
        )
    assert totals[0] == totals[1]
    assert "no cost rule" not in caplog.text
