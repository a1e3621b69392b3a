"""Lab 2: the notebook and the students' code on graphs, metadata, reports and statistics."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import chop
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import (
    add_hardware_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    report_graph_analysis_pass,
    report_node_hardware_type_analysis_pass,
    report_node_meta_param_analysis_pass,
    report_node_shape_analysis_pass,
    report_node_type_analysis_pass,
)
from chop.passes.graph.utils import get_mase_type
from chop.tools.logger import set_logging_verbosity

Notebook = Callable[..., dict[str, Any]]
GraphOf = Callable[..., MaseGraph]
Golden = Callable[[str, str], None]
FILES = Path(__file__).parent / "files"

# The notebook's first cell. It also imports MaseDataModule, get_model, get_model_info, load_model
# and InputGenerator, which the `notebook` fixture stands in for until chop has them.
IMPORTS = """\
from chop.tools.logger import set_logging_verbosity
from chop.passes.graph.analysis import (
    report_node_meta_param_analysis_pass,
    profile_statistics_analysis_pass,
)
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
)
from chop.ir.graph.mase_graph import MaseGraph

set_logging_verbosity("info")
"""

# Seed 003, question 5: the notebook's flow for the student's own network.
FLOW = (FILES / "seed_003_flow.py").read_text(encoding="utf-8")

# Seed 003, lab 1 question 4.
JSC_X10 = (FILES / "seed_003_jsc_tiny_x10.py").read_text(encoding="utf-8")

# Seed 001, lab 1 question 4.
JSC_BIG = (FILES / "seed_001_jsc_big.py").read_text(encoding="utf-8")

# Seed 000, question 1: how the report finds the layers.
LAYERS = """\
for node in graph.fx_graph.nodes:
    if node.meta["mase"].module is not None:
        layer_types.append(node.meta["mase"].module)
"""

# Seed 000, question 4; the body of get_data_cfg, which lost its indentation there, is indented.
TRAVERSE_000 = (FILES / "seed_000_compare_nodes.py").read_text(encoding="utf-8")

# Seed 000, question 6.
OUTPUTS = (FILES / "seed_000_outputs.py").read_text(encoding="utf-8")

# Seed 001, question 4.
TRAVERSE_001 = (FILES / "seed_001_compare_nodes.py").read_text(encoding="utf-8")

# Seed 001, question 6, up to the quantised layer.
LINEAR_LAYER = """\
# original linear layer in the MaseGraph
linear_layer = getattr(ori_mg.modules["seq_blocks"], "2") # '2' for the linear layer
print(linear_layer.weight)
"""

# Seed 003, question 4.
DIFFERENCES = (FILES / "seed_003_differences.py").read_text(encoding="utf-8")

# A script as users write them: nobody sets up logging before the first report.
SCRIPT = """\
import torch
from torch import nn
from chop import MaseGraph, passes
from chop.tools.logger import set_logging_verbosity

mg, _ = passes.init_metadata_analysis_pass(MaseGraph(nn.Sequential(nn.Linear(2, 3))))
mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": {"input": torch.ones(1, 2)}})
passes.report_node_type_analysis_pass(mg)
set_logging_verbosity("info")
set_logging_verbosity("info")
passes.report_node_shape_analysis_pass(mg)
"""


@pytest.fixture
def run_flow(notebook: Notebook) -> Callable[[str], dict[str, Any]]:
    """Runs the flow of the notebook for jsc-tiny or for a student's network, by name."""

    def run(model_name: str) -> dict[str, Any]:
        names = notebook(IMPORTS, dummy_in={"x": torch.randn(8, 16)}, nn=nn)
        if model_name != "jsc-tiny":
            notebook(JSC_X10 + f"\nPHYSICAL_MODELS[{model_name!r}] = JSC_Tiny_x10\n", **names)
        return notebook(FLOW.replace('"jsc-tiny-x10"', f'"{model_name}"'), **names)

    return run


@pytest.fixture
def report(caplog: pytest.LogCaptureFixture) -> Callable[..., str]:
    """What a report pass logs, one message after the other."""

    def run(report_pass: Any, graph: MaseGraph, pass_args: dict[str, Any] | None = None) -> str:
        caplog.clear()
        with caplog.at_level(logging.INFO, "chop"):
            assert report_pass(graph, pass_args) == (graph, {})
        return "\n".join(caplog.messages) + "\n"

    return run


def test_the_notebook_prints_the_graph_of_jsc_tiny(
    run_flow: Any, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    run_flow("jsc-tiny")
    golden("report_graph_jsc_tiny.txt", capsys.readouterr().out)


def test_the_notebook_logs_the_table_of_statistics_that_seed_000_shows(
    run_flow: Any,
    capsys: pytest.CaptureFixture[str],
    numbers_aside: Callable[[str], str],
    golden: Golden,
) -> None:
    run_flow("jsc-tiny")
    logged = capsys.readouterr().err
    assert logged.startswith("INFO     Set logging level to info\n")
    logged = logged[logged.index("INFO     Inspecting graph") :]
    golden("report_node_meta_param_software_jsc_tiny.txt", numbers_aside(logged))


def test_the_notebook_shows_its_progress_by_node_and_by_batch(
    run_flow: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # tqdm would draw the bar as wide as that
    run_flow("jsc-tiny")
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    for last in (
        "Profiling weight statistics: 100%|██████████| 6/6 [",
        "Profiling act statistics: 100%|██████████| 4/4 [",
    ):
        assert any(line.startswith(last) for line in lines)


def test_statistics_count_every_element_of_a_students_network(run_flow: Any) -> None:
    graph = run_flow("jsc-tiny-x10")["mg"]
    counts = {
        f"{node.name}.{name}": stat["count"]
        for node in graph.nodes
        for name, entry in node.meta["mase"]["software"].get("args", {}).items()
        for stat in entry["stat"].values()
    }
    assert counts == {
        "seq_blocks_1.data_in_0": 32 * 16,
        "seq_blocks_2.weight": 16 * 40,
        "seq_blocks_2.bias": 40,
        "seq_blocks_4.data_in_0": 32 * 40,
        "seq_blocks_5.weight": 40 * 25,
        "seq_blocks_5.bias": 25,
        "seq_blocks_7.data_in_0": 32 * 25,
        "seq_blocks_8.weight": 25 * 5,
        "seq_blocks_8.bias": 5,
    }


def test_the_flow_can_be_run_again_with_the_same_arguments(run_flow: Any) -> None:
    names = run_flow("jsc-tiny")
    assert set(names["pass_args"]) == {
        "by",
        "target_weight_nodes",
        "target_activation_nodes",
        "weight_statistics",
        "activation_statistics",
        "input_generator",
        "num_samples",
    }
    again, _ = names["profile_statistics_analysis_pass"](names["mg"], names["pass_args"])
    relu = next(node for node in again.nodes if node.name == "seq_blocks_1")
    stat = relu.meta["mase"].parameters["software"]["args"]["data_in_0"]["stat"]
    assert stat["range_quantile"]["count"] == 512


def test_reports_are_seen_once_in_a_process_that_never_set_up_logging(tmp_path: Path) -> None:
    root = Path(chop.__file__).parents[1]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    for once in (
        "INFO     Inspecting graph [add_common_node_type_analysis_pass]",
        "Node name    Fx Node op    Mase type            Mase op      Value type",
        "INFO     Inspecting graph [add_common_node_shape_analysis_pass]",
        "weight = [3, 2]",
    ):
        assert lines.count(once) == 1, done.stderr
    assert lines.count("INFO     Set logging level to info") == 2


def test_a_report_is_logged_once_though_the_verbosity_was_set_twice(
    jsc_tiny: nn.Module, graph_of: GraphOf, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = graph_of(jsc_tiny)
    set_logging_verbosity("info")
    set_logging_verbosity("info")
    report_node_type_analysis_pass(graph)
    shown = capsys.readouterr().err
    assert shown.count("Inspecting graph [add_common_node_type_analysis_pass]") == 1
    assert shown.count("seq_blocks_2") == 1


def test_report_node_type_as_in_the_labs(
    jsc_tiny: nn.Module, graph_of: GraphOf, report: Any, golden: Golden
) -> None:
    text = report(report_node_type_analysis_pass, graph_of(jsc_tiny))
    golden("report_node_type_jsc_tiny.txt", text)


def test_report_node_shape_as_in_the_labs(
    jsc_tiny: nn.Module, graph_of: GraphOf, report: Any, golden: Golden
) -> None:
    text = report(report_node_shape_analysis_pass, graph_of(jsc_tiny))
    golden("report_node_shape_jsc_tiny.txt", text)


def test_report_node_hardware_type_lists_the_nodes_that_compute(
    jsc_tiny: nn.Module, graph_of: GraphOf, report: Any, golden: Golden
) -> None:
    graph, _ = add_hardware_metadata_analysis_pass(graph_of(jsc_tiny), None)
    text = report(report_node_hardware_type_analysis_pass, graph)
    golden("report_node_hardware_type_jsc_tiny.txt", text)


def test_report_graph_in_sections(
    jsc_tiny: nn.Module, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    report_graph_analysis_pass(MaseGraph(jsc_tiny), {"style": "sections"})
    golden("report_graph_sections_jsc_tiny.txt", capsys.readouterr().out)


def test_report_node_meta_param_shows_all_three_parts(
    graph_of: GraphOf, report: Any, golden: Golden
) -> None:
    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.fc(x)) + x.size(0)

    graph = graph_of(Tiny(), torch.zeros(1, 4), add_value=False)
    graph, _ = add_software_metadata_analysis_pass(graph, None)
    graph, _ = add_hardware_metadata_analysis_pass(graph, None)
    text = report(report_node_meta_param_analysis_pass, graph)
    assert text == report(report_node_meta_param_analysis_pass, graph, {"which": ("all",)})
    golden("report_node_meta_param_all_tiny.txt", text)


def test_seed_000_collects_the_layers_of_a_graph(
    jsc_tiny: nn.Module, graph_of: GraphOf, notebook: Notebook
) -> None:
    layer_types: list[nn.Module] = []
    notebook(LAYERS, graph=graph_of(jsc_tiny), layer_types=layer_types)
    assert layer_types == list(jsc_tiny.seq_blocks)


def test_seed_000_traverses_two_graphs_and_prints_types_and_precisions(
    jsc_tiny: nn.Module,
    graph_of: GraphOf,
    notebook: Notebook,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    notebook(TRAVERSE_000, ori_mg=graph_of(jsc_tiny), mg=graph_of(jsc_tiny))
    golden("seed_000_compare_nodes.txt", capsys.readouterr().out)


def test_seed_000_runs_the_layers_of_both_graphs_on_a_batch(
    run_flow: Any, graph_of: GraphOf, notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    names = run_flow("jsc-tiny")
    names = notebook(TRAVERSE_000, **names | {"ori_mg": graph_of(names["model"])})
    capsys.readouterr()
    names = notebook(OUTPUTS, **names)
    assert names["ori_relu"] is names["relu"]
    assert names["ori_linear"] is names["linear"] is names["model"].seq_blocks[2]
    printed = capsys.readouterr().out
    assert [line.split(":")[0] for line in printed.splitlines() if ": tensor(" in line] == [
        "Ori_ReLU",
        "ReLU",
        "Ori Linear",
        "Linear",
    ]


def test_seed_001_tabulates_two_graphs_of_one_model(
    jsc_tiny: nn.Module,
    graph_of: GraphOf,
    notebook: Notebook,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    compare = notebook(TRAVERSE_001)["compare_graph_nodes"]
    compare(graph_of(jsc_tiny), graph_of(jsc_tiny))
    golden("seed_001_summary_jsc_tiny.txt", capsys.readouterr().out)


def test_seed_001_tabulates_its_bigger_network(
    graph_of: GraphOf, notebook: Notebook, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    model = notebook(JSC_BIG, nn=nn)["JSC_Big"](info=None)
    notebook(TRAVERSE_001)["compare_graph_nodes"](graph_of(model), graph_of(model))
    golden("seed_001_summary_jsc_big.txt", capsys.readouterr().out)


def test_seed_001_finds_a_layer_by_the_name_of_its_container(
    jsc_tiny: nn.Module,
    graph_of: GraphOf,
    notebook: Notebook,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ori_mg = graph_of(jsc_tiny)
    layer = notebook(LINEAR_LAYER, ori_mg=ori_mg)["linear_layer"]
    assert layer is jsc_tiny.seq_blocks[2]
    assert capsys.readouterr().out == f"{layer.weight}\n"
    assert ori_mg.modules[""] is ori_mg.model


def test_seed_002_names_the_type_of_each_of_its_examples(graph_of: GraphOf) -> None:
    class Sheet(nn.Module):
        """The examples by which the lab sheet explains MASE types."""

        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU()
            self.norm = nn.BatchNorm2d(3)
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(F.relu(self.relu(x)))
            x = torch.cat([self.scale * x, x])[0]
            return torch.bmm(x, x)

    types = {
        node.name: get_mase_type(node) for node in graph_of(Sheet(), torch.ones(1, 3, 2, 2)).nodes
    }
    assert types == {
        "x": "placeholder",
        "relu": "module_related_func",
        "relu_1": "module_related_func",
        "norm": "module",
        "scale": "get_attr",
        "mul": "builtin_func",
        "cat": "builtin_func",
        "getitem": "implicit_func",
        "bmm": "builtin_func",
        "output": "output",
    }


def test_seed_003_finds_no_difference_between_two_graphs_of_one_model(
    jsc_tiny: nn.Module,
    graph_of: GraphOf,
    notebook: Notebook,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = notebook(DIFFERENCES, ori_mg=graph_of(jsc_tiny), mg=graph_of(jsc_tiny))
    assert capsys.readouterr().out == ""
    assert names["n"].name == "output"
