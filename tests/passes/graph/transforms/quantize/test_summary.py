"""What a quantisation changed, as tables that the labs print and files that others read."""

import csv
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import add_common_metadata_analysis_pass, init_metadata_analysis_pass
from chop.passes.graph.transforms import (
    quantize_transform_pass,
    summarize_quantization_analysis_pass,
)
from chop.passes.graph.transforms.quantize.summary import (
    graph_iterator_compare_nodes,
    graph_iterator_node_histogram,
)

X = torch.randn(2, 16)
CONFIG = {"config": {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}}
CONFIG["config"] |= {"weight_width": 8, "weight_frac_width": 4}


class JSC(nn.Module):
    """The labs' network."""

    def __init__(self):
        super().__init__()
        layers = nn.BatchNorm1d(16), nn.ReLU(16), nn.Linear(16, 5), nn.ReLU(5)
        self.seq_blocks = nn.Sequential(*layers)

    def forward(self, x):
        return self.seq_blocks(x)


class Mixed(nn.Module):
    """A module, a function, an operator, a method, and what cannot be quantised."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        y = F.relu(self.fc(x))
        return (y + y).relu().mean()


def pair_of(model, *ops):
    """The original graph and the one in which `ops` are quantized."""
    graph, _ = init_metadata_analysis_pass(MaseGraph(model), None)
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": X}, "add_value": False})
    original = graph.clone()
    quantize_transform_pass(graph, {"by": "type", **dict.fromkeys(ops, CONFIG)})
    return original, graph


HISTOGRAM = """
| Original type   | OP           |   Total |   Changed |   Unchanged |
|-----------------+--------------+---------+-----------+-------------|
| BatchNorm1d     | batch_norm1d |       1 |         0 |           1 |
| Linear          | linear       |       1 |         1 |           0 |
| ReLU            | relu         |       2 |         0 |           2 |
| output          | output       |       1 |         0 |           1 |
| x               | placeholder  |       1 |         0 |           1 |"""


def rows_of(table):
    """The rows of a table, which is a data frame where pandas is installed."""
    return table if isinstance(table, list) else table.to_dict("records")


@pytest.mark.parametrize("shape", ["original first", "options"])
def test_both_ways_to_call_it_log_the_histogram_of_the_labs(shape, caplog):
    original, graph = pair_of(JSC(), "linear")
    with caplog.at_level(logging.INFO, "chop"):
        if shape == "options":
            result = summarize_quantization_analysis_pass(graph, {"original_graph": original})
        else:
            result = summarize_quantization_analysis_pass(original, graph)
    assert caplog.messages == ["Quantized graph histogram:", HISTOGRAM]
    assert result[0] is graph
    assert result[1].keys() == {"table", "histogram"}


def test_relu_and_linear(caplog):
    original, graph = pair_of(JSC(), "linear", "relu")
    with caplog.at_level(logging.INFO, "chop"):
        table = graph_iterator_node_histogram(original, graph)
    unchanged, changed = ("0 |           2 |", "2 |           0 |")
    assert caplog.messages[1] == HISTOGRAM.replace(unchanged, changed)
    assert [row["Changed"] for row in rows_of(table)] == [0, 1, 2, 0, 0]


def test_with_pandas_the_histogram_is_a_data_frame(package):
    original, graph = pair_of(JSC(), "linear", "relu")
    frame = graph_iterator_node_histogram(original, graph)
    assert isinstance(frame, package("pandas").DataFrame)


def test_nodes_are_compared_in_a_table_at_debug_level(caplog, golden):
    original, graph = pair_of(Mixed(), "linear", "relu", "add")
    with caplog.at_level(logging.DEBUG, "chop"):
        table = graph_iterator_compare_nodes(original, graph)
    messages = [r.getMessage() for r in caplog.records if r.name.endswith("summary")]
    assert {r.levelname for r in caplog.records} == {"DEBUG"}
    assert messages[0] == "Compare nodes:"
    golden("compare_nodes.txt", messages[1] + "\n")
    columns = "Ori name,New name,MASE_TYPE,Mase_OP,Original type,Quantized type,Changed"
    assert list(rows_of(table)[0]) == columns.split(",")


def test_functions_operators_and_methods_count_as_changed_when_they_are():
    original, graph = pair_of(Mixed(), "linear", "relu", "add")
    rows = rows_of(graph_iterator_compare_nodes(original, graph, silent=True))
    assert [row["New name"] for row in rows if row["Changed"]] == ["fc", "relu", "add", "relu_1"]
    assert [row["New name"] for row in rows if not row["Changed"]] == ["x", "mean", "output"]
    relu = next(row for row in rows if row["New name"] == "relu")
    assert (relu["Original type"], relu["Quantized type"]) == ("relu", "relu_integer")


def test_nothing_changed_where_nothing_was_quantized():
    original, graph = pair_of(Mixed())
    rows = rows_of(graph_iterator_compare_nodes(original, graph, silent=True))
    assert not any(row["Changed"] for row in rows)


def test_silence_is_silent(caplog):
    original, graph = pair_of(JSC(), "linear")
    with caplog.at_level(logging.DEBUG, "chop.passes.graph.transforms.quantize.summary"):
        graph_iterator_compare_nodes(original, graph, silent=True)
    assert caplog.messages == []


@pytest.mark.parametrize("shape", ["original first", "options"])
def test_files_are_written_into_a_new_folder(shape, tmp_path):
    original, graph = pair_of(JSC(), "linear")
    folder = tmp_path / "summaries" / "first"
    if shape == "options":
        args = {"original_graph": original, "save_dir": str(folder)}
        summarize_quantization_analysis_pass(graph, args)
    else:
        summarize_quantization_analysis_pass(original, graph, save_dir=folder)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["quantize_histogram.csv", "quantize_table.csv"]
    with (folder / "quantize_table.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    changed = [row["Quantized type"] for row in table if row["Changed"] == "True"]
    assert changed == ["LinearInteger"]
    with (folder / "quantize_histogram.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["", "Original type", "OP", "Total", "Changed", "Unchanged"]
    assert rows[2] == ["1", "Linear", "linear", "1", "1", "0"]


def test_graphs_of_different_length_are_refused():
    original, _ = pair_of(JSC(), "linear")
    _, other = pair_of(Mixed())
    with pytest.raises(ValueError, match="the graphs have 6 and 7 nodes"):
        summarize_quantization_analysis_pass(original, other)


def test_the_original_graph_is_asked_for_by_name():
    _, graph = pair_of(JSC(), "linear")
    with pytest.raises(TypeError, match="needs the option 'original_graph'"):
        summarize_quantization_analysis_pass(graph, {})
