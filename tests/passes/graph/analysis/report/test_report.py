"""What reports promise besides the labs' tables, which tests/seeds holds as golden files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import PassArgsError
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_hardware_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    init_metadata_analysis_pass,
    report_graph_analysis_pass,
    report_node_hardware_type_analysis_pass,
    report_node_meta_param_analysis_pass,
    report_node_shape_analysis_pass,
    report_node_type_analysis_pass,
)

REPORTS_OF_NODES = [
    report_node_hardware_type_analysis_pass,
    report_node_meta_param_analysis_pass,
    report_node_shape_analysis_pass,
    report_node_type_analysis_pass,
]


class Mixed(nn.Module):
    """A node of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        low, high = self.fc(x * self.scale).view(x.size(0), -1).chunk(2, dim=1)
        return low + 1, high


@pytest.fixture
def graph() -> MaseGraph:
    graph, _ = init_metadata_analysis_pass(MaseGraph(Mixed()), None)
    options = {"dummy_in": {"x": torch.ones(3, 4)}, "add_value": False}
    graph, _ = add_common_metadata_analysis_pass(graph, options)
    graph, _ = add_software_metadata_analysis_pass(graph, None)
    return graph


def logged(caplog: pytest.LogCaptureFixture, report: Any, *args: Any) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, "chop"):
        report(*args)
    return caplog.messages


def test_report_graph_needs_no_metadata_and_counts_every_kind_of_node(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report_graph_analysis_pass(MaseGraph(Mixed()))
    assert capsys.readouterr().out.endswith(
        "Network overview:\n"
        "{'placeholder': 1, 'get_attr': 1, 'call_function': 4, 'call_method': 3, "
        "'call_module': 1, 'output': 1}\n"
        "Layer types:\n"
        "[Linear(in_features=4, out_features=2, bias=True)]\n"
    )


@pytest.mark.parametrize("style", ["24", "sections"])
def test_report_graph_writes_to_a_file_what_it_would_print(
    graph: MaseGraph, style: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_graph_analysis_pass(graph, {"style": style})
    printed = capsys.readouterr().out
    file = tmp_path / "new" / "graph.txt"
    report_graph_analysis_pass(graph, {"style": style, "file_name": str(file)})
    assert capsys.readouterr().out == ""
    assert file.read_text(encoding="utf-8") + "\n" == printed


def test_report_node_shape_shows_shapes_of_tensors_and_all_other_arguments(
    graph: MaseGraph, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text = logged(caplog, report_node_shape_analysis_pass, graph)
    assert "view:\nin:\ndata_in_0 = [3, 2]\nshape_0 = 3\nshape_1 = -1\n" in text
    assert "chunk:\nin:\ndata_in_0 = [3, 2]\nchunks = 2\ndim = 1\nout:\n" in text
    assert "data_out_0 = [3, 1]\ndata_out_1 = [3, 1]\n" in text
    assert capsys.readouterr().out == "", "the table is logged, nothing is printed"


def test_report_node_meta_param_keeps_the_table_where_asked(
    graph: MaseGraph, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "new" / "table.txt"
    options = {"which": ["common"], "save_path": path}
    messages = logged(caplog, report_node_meta_param_analysis_pass, graph, options)
    assert messages == [
        "Inspecting graph [add_common_meta_param_analysis_pass]",
        "\n" + path.read_text(encoding="utf-8"),
        f"Node meta param table is saved to {path}",
    ]


@pytest.mark.parametrize(
    ("which", "columns"),
    [
        (["software", "common"], ["Common Param", "Software Param"]),
        (("hardware",), ["Hardware Param"]),
        (("all",), ["Common Param", "Hardware Param", "Software Param"]),
        (("software", "all"), ["Common Param", "Hardware Param", "Software Param"]),
    ],
)
def test_report_node_meta_param_has_a_column_for_each_part_asked_for(
    graph: MaseGraph, which: Any, columns: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    _, table = logged(caplog, report_node_meta_param_analysis_pass, graph, {"which": which})
    header = [cell.strip() for cell in table.splitlines()[2].strip("|").split("|")]
    assert header == ["Node name", "Fx Node op", "Mase type", "Mase op", *columns]


@pytest.mark.parametrize("which", ["softwear", ("softwear",), {"software": True}])
def test_report_node_meta_param_refuses_parts_that_do_not_exist(
    graph: MaseGraph, which: Any
) -> None:
    with pytest.raises(PassArgsError, match="option 'which"):
        report_node_meta_param_analysis_pass(graph, {"which": which})


@pytest.mark.parametrize("report", REPORTS_OF_NODES, ids=lambda report: report.name)
def test_reports_of_nodes_say_which_pass_comes_first(report: Any) -> None:
    graph, _ = init_metadata_analysis_pass(MaseGraph(Mixed()), None)
    with pytest.raises(PassArgsError, match="run add_common_metadata_analysis_pass first"):
        report(graph)


@pytest.mark.parametrize("report", REPORTS_OF_NODES, ids=lambda report: report.name)
def test_reports_leave_the_metadata_as_it_was(graph: MaseGraph, report: Any) -> None:
    graph, _ = add_hardware_metadata_analysis_pass(graph, None)
    before = [node.meta["mase"].parameters.clone() for node in graph.nodes]
    assert report(graph, None) == (graph, {})
    assert [node.meta["mase"].parameters for node in graph.nodes] == before
