"""Operations as the labs count them."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import PassArgsError, calculate_flops_analysis_pass
from chop.passes.graph.analysis.flop_estimator.calculator.calc_modules import calculate_modules
from chop.passes.graph.analysis.quantization import calculate_flops_pass

KEYS = ["total_parameters", "computations", "backward_computations"]
KEYS += ["input_buffer_size", "output_buffer_size"]

# module, input -> parameters, computations, and those backward
ROWS = [
    (nn.AdaptiveAvgPool2d(1), (2, 3, 4, 4), (0, 96, 96)),
    (nn.AvgPool2d(2), (1, 2, 4, 4), (0, 32, 32)),
    (nn.MaxPool2d((2, 1)), (1, 2, 4, 4), (0, 16 * 2, 16)),
    (nn.Conv2d(3, 4, 3, bias=False), (2, 3, 5, 5), (108, 72 * 27, 2 * 72 * 27)),
    (nn.Conv2d(4, 4, 3, groups=4), (1, 4, 3, 3), (40, 4 * 9 + 4, 2 * 4 * 9 + 4)),
    (nn.Dropout(), (2, 3), (0, 0, 0)),
    (nn.Linear(5, 3, bias=False), (2, 4, 5), (15, 8 * 15, 2 * 8 * 15)),
    (nn.Linear(5, 3), (2, 5), (18, 2 * 15 + 6, 2 * 2 * 15 + 6)),
    (nn.ReLU(), (2, 3), (0, 6, 6)),
    (nn.LayerNorm(4), (2, 4), (8, 5 * 8, 5 * 8)),
    (nn.BatchNorm1d(4), (2, 4), (8, 4 * 8, 4 * 8)),
    (nn.BatchNorm2d(4), (2, 4, 3, 3), (8, 4 * 72, 4 * 72)),
]


@pytest.mark.parametrize(("module", "shape", "expected"), ROWS, ids=lambda row: str(row)[:20])
def test_modules_cost_what_the_table_of_the_labs_says(module, shape, expected):
    x = torch.randn(shape)
    y = module.eval()(x)
    found = calculate_modules(module, (x,), (y,))
    assert list(found) == KEYS
    assert tuple(found.values()) == (*expected, x.numel(), y.numel())
    assert calculate_flops_pass(module, x, y) == found  # tensors need no tuple


def test_results_may_be_nested():
    lstm, x = nn.LSTM(3, 2), torch.randn(4, 1, 3)
    assert calculate_modules(lstm, (x,), lstm(x))["computations"] == 160 + 4 * 16 + 4 * 2 * 22


def test_an_unknown_module_counts_nothing_and_says_so_quietly(caplog, capsys):
    class Mine(nn.Module):
        pass

    x = torch.randn(2, 3)
    with caplog.at_level("DEBUG", "chop"):
        found = calculate_modules(Mine(), (x,), (x,))
    assert list(found.values()) == [0, 0, 0, 6, 6]
    assert caplog.messages == ["no cost rule for Mine: its computations count as 0"]
    assert capsys.readouterr().out == ""


def test_tensors_and_modules_that_are_missing_are_asked_for():
    with pytest.raises(ValueError, match=r"give calculate_modules\(module, \(input,\), \(output"):
        calculate_modules(nn.Linear(2, 2), (None,), (None,))
    with pytest.raises(TypeError, match="takes a module first, not str"):
        calculate_modules("linear", (), ())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.act(self.layer(self.layer(x))) + 1


def test_the_pass_breaks_down_by_node_and_by_module(make):
    model, x = Net(), torch.randn(2, 4)
    graph = make.graph(model, x)
    same, info = calculate_flops_analysis_pass(graph)
    assert same is graph
    one = 2 * 16 + 8
    assert {n: row["computations"] for n, row in info["breakdown"].items()} == {
        "layer": one,
        "layer_1": one,
        "act": 8,
        "add": 8,
    }
    layer = info["flop_module_breakdown"][graph.model.layer]
    assert (layer["computations"], layer["total_parameters"]) == (2 * one, 20)
    assert info["total_flops"] == 2 * one + 16
    assert (info["total_macs"], info["total_parameters"]) == (64, 20)
    assert info["total_bitops"] == 64 * (32 * 32 + 32 + 32 + 2)
    assert info["model_size_bits"] == 20 * 32


def test_the_pass_can_run_the_graph_itself_and_leaves_no_trace():
    graph = MaseGraph(Net())
    info = calculate_flops_analysis_pass(graph, {"dummy_in": {"x": torch.randn(2, 4)}})[1]
    assert info["total_macs"] == 64
    assert list(info["flop_module_breakdown"]) == [graph.model.layer, graph.model.act]
    assert not any("mase" in node.meta and node.meta["mase"].common for node in graph.nodes)
    with pytest.raises(PassArgsError, match=r"node 'x' has no common metadata; run .*dummy_in"):
        calculate_flops_analysis_pass(graph)
