"""Averages of bits count parametrized layers and transposed convolutions as any other."""

import math

import torch
from torch import nn
from torch.nn.utils import parametrizations

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import Pipeline
from chop.passes.graph.analysis.cost import cost_of
from chop.passes.graph.analysis.cost.ledger import ledger_of
from chop.passes.module import calculate_avg_bits_module_analysis_pass

INTEGER = {"name": "integer"} | {
    f"{operand}_{key}": number
    for operand in ("data_in", "weight", "bias")
    for key, number in (("width", 8), ("frac_width", 6))
}


def numbers_of(graph):
    return Pipeline([("calculate_avg_bits", {})])(graph)[1]["calculate_avg_bits"]


def test_a_parametrized_and_a_transposed_layer_are_among_the_averages():
    conv = parametrizations.weight_norm(nn.Conv1d(3, 4, 3, bias=False))
    model = nn.Sequential(nn.ConvTranspose1d(2, 3, 2, bias=False), conv)
    about = {"dummy_in": {"input": torch.ones(1, 2, 8)}}
    graph = Pipeline(["init_metadata", ("add_common_metadata", about)])(MaseGraph(model))[0]
    found = numbers_of(graph)["layers"]
    assert {name: row["w_avg_bit"] for name, row in found.items()} == {"_0": 32, "_1": 32}
    four = INTEGER | {"weight_width": 4}
    table = {"by": "type", "default": {"config": four}}
    graph = Pipeline([("quantize", table)])(graph)[0]
    found = numbers_of(graph)["layers"]
    assert {name: row["w_avg_bit"] for name, row in found.items()} == {"_0": 4, "_1": 4}
    transposed, direction, lengths = 12, 36, 4
    bits = 4 * (transposed + direction) + 32 * lengths
    ledger = ledger_of(graph.model).read()
    elements = sum(size for _, size in ledger.tensors)
    assert elements == transposed + direction + lengths
    assert ledger.weights == ((4, transposed), (4, direction))
    assert cost_of(graph)["total"]["weight_bits"] == ledger.parameter_bits == bits
    _, info = calculate_avg_bits_module_analysis_pass(graph.model)
    assert math.isclose(info["average_bitwidth"], bits / elements)
    assert info["layers"] == {"0": 4, "1": 4}
    _, info = calculate_avg_bits_module_analysis_pass(graph.model, count="weights")
    assert info["average_bitwidth"] == 4
