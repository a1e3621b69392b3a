"""`export`: write a network to an ONNX file."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.circuits import given_source, graph_of, source_of, table_options
from chop.actions.config import RunConfig
from chop.actions.onnx_models import ONNX
from chop.actions.prepare import model_and_data
from chop.actions.project import Project
from chop.onnx.targets import ExportFormat, ExportOptions

if TYPE_CHECKING:  # `ch export --help` does not import torch
    from torch import nn

    from chop.ir.graph.mase_graph import MaseGraph

__all__ = ["export", "run_export"]

logger = logging.getLogger(__name__)


def export(
    model: nn.Module | MaseGraph,
    model_info: Any = None,
    task: str = "cls",
    dataset_info: Any = None,
    data_module: Any = None,
    load_name: str | None = None,
    load_type: str | None = None,
    *,
    project_dir: str | Path | None = None,
    format: ExportFormat = ExportOptions.format,
    accuracy: float | None = ExportOptions.accuracy,
) -> Path:
    """Write a model or graph to `software/onnx/<format>.onnx` in `project_dir`; return the file.

    The directory is `mase_output/top` by default. `accuracy` goes into the metadata of the file.
    """
    from chop.hardware.projects import HardwareProject
    from chop.log import show_logs_unless_configured

    show_logs_unless_configured()
    project = HardwareProject.at(project_dir)
    source = given_source(model, model_info, data_module, task, load_name, load_type)
    options = ExportOptions(format=format, accuracy=accuracy)
    return _exported(graph_of(source), options, project.hardware.parent / "software")


def check_export(config: RunConfig, project: Project, from_file: Collection[str]) -> ExportOptions:
    """Refuse wrong options, and a missing package, before anything is loaded."""
    from chop.onnx.packages import need_package

    options = table_options(config, "export", ExportOptions)
    need_package("onnx", "ch export")
    return options


def run_export(config: RunConfig, project: Project, options: ExportOptions) -> None:
    """Run `ch export`."""
    model, info, data_module = model_and_data(config)
    graph = graph_of(source_of(config, model, info, data_module))
    if options.accuracy is None:
        options = replace(options, accuracy=_tested_accuracy(config, project))
    _exported(graph, options, project.software)
    project.create()
    logger.info("Export is completed")


def _tested_accuracy(config: RunConfig, project: Project) -> float | None:
    """Return the accuracy of the latest `ch test` of the checkpoint in its project, if any."""
    from chop.actions.test import latest_test

    found = latest_test(project.software / "checkpoints", config.load_name, str(config.dataset))
    if found is None:
        return None
    file, metrics = found
    accuracy = metrics.get("test_acc_epoch")
    if not isinstance(accuracy, int | float):
        return None
    logger.info("The metadata have the accuracy %.6g of %s", accuracy, file.name)
    return float(accuracy)


def _exported(graph: MaseGraph, options: ExportOptions, software: Path) -> Path:
    """Write the file, and log what it is."""
    from chop.passes import run_pass

    logger.info("Exporting to ONNX (%s)...", options.format)
    file = software / ONNX.name / f"{options.format}.onnx"
    chosen = {"format": options.format, "accuracy": options.accuracy}
    _, info = run_pass("export_onnx", graph, {"save_path": file, "silent": True, **chosen})
    names = ", ".join(info["inputs"]), ", ".join(info["outputs"])
    size = file.stat().st_size / 1e6
    logger.info(
        "Exported %d nodes to %s (%.3g MB; inputs: %s; outputs: %s)",
        *(info["onnx_nodes"], file, size, *names),
    )
    for note in info["notes"]:
        logger.warning("%s", note)
    return file
