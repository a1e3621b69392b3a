"""Lab 2, optional task: seed 003 counts operations from the values that the metadata keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from chop.passes import calculate_flops_analysis_pass

Notebook = Callable[..., dict[str, Any]]
FILES = Path(__file__).parent / "files"

IMPORT = "from chop.passes.graph.analysis.quantization import calculate_flops_pass\n"

# Without that import: the student put the second function into that file.
TRAVERSE = (FILES / "seed_003_flops_of_a_graph.py").read_text(encoding="utf-8")
COUNT = (FILES / "seed_003_flops_of_a_module.py").read_text(encoding="utf-8")


def test_seed_003_counts_the_operations_of_jsc_tiny(
    jsc_tiny: nn.Module,
    graph_of: Any,
    notebook: Notebook,
    golden: Callable[[str, str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "machop").mkdir()
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "docs")
    graph = graph_of(jsc_tiny)
    names = notebook(TRAVERSE, ori_mg=graph, **notebook(COUNT))
    golden("seed_003_flops.txt", capsys.readouterr().out)
    same, info = names["calculate_flops_mg_pass"](graph)
    assert same is graph
    assert info["total_flops"] == 8 * (4 * 16 + 16 + 16 * 5 + 5 + 5)
    assert list(info["flop_module_breakdown"]) == list(jsc_tiny.seq_blocks)


def test_our_own_function_at_the_student_s_import_gives_the_same_numbers(
    jsc_tiny: nn.Module,
    graph_of: Any,
    notebook: Notebook,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "machop").mkdir()
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "docs")
    graph = graph_of(jsc_tiny)
    ours = notebook(IMPORT + TRAVERSE, ori_mg=graph)
    theirs = notebook(COUNT)["calculate_flops_pass"]
    info = ours["calculate_flops_mg_pass"](graph)[1]
    assert info["total_flops"] == 8 * (4 * 16 + 16 + 16 * 5 + 5 + 5)
    for module, row in info["flop_module_breakdown"].items():
        n = 8 * (5 if module is jsc_tiny.seq_blocks[3] else 16)
        results = torch.randn(8, 5 if module is not jsc_tiny.seq_blocks[0] else 16)
        expected = theirs(module, (torch.randn(8, n // 8),), (results,))
        assert row.keys() == expected.keys()
        assert row["computations"] == expected["computations"]
        assert row["total_parameters"] == expected["total_parameters"]
    assert calculate_flops_analysis_pass(graph)[1]["total_flops"] == info["total_flops"]


def test_only_the_ends_of_a_graph_lack_the_value_of_an_input(
    jsc_tiny: nn.Module, graph_of: Any
) -> None:
    lacking = []
    for node in graph_of(jsc_tiny).fx_graph.nodes:
        try:
            node.meta["mase"].parameters["common"]["args"]["data_in_0"]["value"]
        except KeyError:
            lacking.append(node.name)
    assert lacking == ["x", "output"]


def test_every_node_keeps_the_value_of_its_result(jsc_tiny: nn.Module, graph_of: Any) -> None:
    x = torch.randn(8, 16)
    *_, last = (
        node.meta["mase"].parameters["common"]["results"]["data_out_0"]["value"]
        for node in graph_of(jsc_tiny, x).fx_graph.nodes
    )
    assert torch.equal(last, jsc_tiny.eval()(x))


def test_kept_values_are_those_before_the_next_relu_worked_in_place(
    jsc_tiny: nn.Module, graph_of: Any
) -> None:
    x = torch.randn(8, 16)
    nodes = {
        node.name: node.meta["mase"].parameters["common"] for node in graph_of(jsc_tiny, x).nodes
    }
    expected = jsc_tiny.eval().seq_blocks[0](x)
    assert expected.min() < 0
    assert torch.equal(nodes["seq_blocks_0"]["results"]["data_out_0"]["value"], expected)
    assert torch.equal(nodes["seq_blocks_1"]["args"]["data_in_0"]["value"], expected)
