"""`ch test --runtime onnxruntime`: score the ONNX file of a network, and measure its latency."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.circuits import graph_of, source_of
from chop.actions.config import OPTIONS, ConfigError, RunConfig
from chop.actions.onnx_models import RunnableFormat, exported
from chop.actions.prepare import data_module_for, model_and_data
from chop.actions.project import Project
from chop.actions.train import checked_task
from chop.actions.trained_on import adapt_data, log_assumed_classes
from chop.system.files import is_onnx_file

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.onnx.runtime import Runtime

logger = logging.getLogger(__name__)

__all__ = ["check_runtime", "run_runtime_test"]

DEFAULTS = {name: OPTIONS[name].default for name in ("export_format", "threads")}


def run_runtime_test(config: RunConfig, project: Project) -> None:
    """Score the file of `--load`, or a file that is exported from the network of `--load`."""
    from chop.actions.test import report_score, scored
    from chop.onnx.packages import MissingPackage
    from chop.onnx.runtime_module import RuntimeModule
    from chop.training.options import TrainOptions
    from chop.training.tasks import logged

    try:
        (runtime, final_op), data_module = _runtime_and_data(config)
    except MissingPackage as error:
        raise ConfigError(f"--runtime onnxruntime: {error}") from error
    task = checked_task(config.task, data_module)
    data_module.prepare_data()
    data_module.setup("test")
    options = TrainOptions.from_trainer_args({"accelerator": "cpu", "devices": 1})
    turned = _permutation(config, runtime, data_module)
    module = RuntimeModule(runtime, permute=turned, final_op=final_op)
    project.create()
    score = scored(module, data_module, "test", options, task)
    metrics = {f"test_{logged(name)}_epoch": value for name, value in score.with_loss.items()}
    metrics |= _latencies(runtime, config.batch_size)
    folder = project.software / "checkpoints"
    loaded = config.load_name or config.model
    report_score("test", metrics, score, data_module, folder, loaded, task)
    logger.info("Testing is completed")


def check_runtime(config: RunConfig) -> None:
    """Refuse options of onnxruntime where it does not run, or has nothing to export."""
    flags = {"export_format": "--export-format", "threads": "--threads"}
    given = [flag for name, flag in flags.items() if getattr(config, name) != DEFAULTS[name]]
    if config.runtime == "torch" and given:
        raise ConfigError(f"{given[0]} is for --runtime onnxruntime; add it, or omit {given[0]}")
    if _is_file(config) and flags["export_format"] in given:
        raise ConfigError(f"--export-format: {config.model} is run as it is; omit the format")


def _is_file(config: RunConfig) -> bool:
    """Return whether an ONNX file is the model, and no other checkpoint is loaded into it."""
    return is_onnx_file(config.model) and config.load_name is None


def _runtime_and_data(config: RunConfig) -> tuple[tuple[Runtime, str], Any]:
    from chop.onnx.reading.files import load_proto
    from chop.passes.schema import PassArgsError

    if _is_file(config):
        logger.info("Testing %s in onnxruntime...", config.model)
        load_proto(str(config.model))  # onnxruntime has no limits of its own
        data_module = data_module_for(config)
        if not adapt_data(data_module, str(config.model), "onnx"):
            log_assumed_classes(data_module, str(config.model))
        return _opened(str(config.model), config.threads), data_module
    model, info, data_module = model_and_data(config)
    graph = graph_of(source_of(config, model, info, data_module))
    kind = config.export_format or _format_for(graph)
    logger.info("Testing model '%s' as %s in onnxruntime...", config.model, kind)
    with tempfile.TemporaryDirectory() as folder:
        try:
            file = exported(graph, kind, Path(folder))
        except PassArgsError as error:  # the option has another name here
            raise PassArgsError(str(error).replace("`format=", "`export_format=")) from error
        return _opened(file, config.threads), data_module


def _format_for(graph: MaseGraph) -> RunnableFormat:
    from chop.passes.graph.describe.formats import is_float_network

    return "onnx" if is_float_network(graph) else "integer"


def _permutation(config: RunConfig, runtime: Runtime, data_module: Any) -> tuple[int, ...] | None:
    """Return how images are turned for a file; refuse a file for samples of another shape."""
    from chop.models.onnx_files import TO_CHANNELS_LAST, takes_channels_last

    if not _is_file(config) or len(runtime.inputs) != 1:
        return None
    (declared,) = runtime.inputs.values()
    is_turned = takes_channels_last(str(config.model), declared.shape[1:], data_module.dataset_info)
    return TO_CHANNELS_LAST if is_turned else None


def _opened(file: str | Path, threads: int) -> tuple[Runtime, str]:
    """Return a session and the op at its end, and log which quantised layers it runs in float."""
    import onnx

    from chop.onnx.fusion import fusion_report
    from chop.onnx.onnx_graph import OnnxGraph
    from chop.onnx.runtime import Runtime

    runtime = Runtime(file, threads=threads)
    report = fusion_report(file, threads=threads)
    if report.num_integer_kernels or "QuantizeLinear" in report.kernels:
        count = sum(layer.integer for layer in report.layers)
        logger.info("%d of %d layers have integer kernels", count, len(report.layers))
        if report.in_float:
            logger.warning("Some layers run in float\n%s", report.table())
        if 2 * count < len(report.layers):
            logger.warning(
                "Fewer than half of the layers have integer kernels, so the file may be slower "
                "than in float; quantise sums and pools, too, as quantize_static does"
            )
    return runtime, OnnxGraph(onnx.load(file).graph).final_op


def _latencies(runtime: Runtime, batch_size: int) -> dict[str, float]:
    """Return the milliseconds of a batch of one, and of one as the run has them.

    A file with batches of one size is measured with that.
    """
    from chop.onnx.latency import measure_latency

    first = [declared.shape[0] for declared in runtime.inputs.values() if declared.shape]
    fixed = [size for size in first if isinstance(size, int)]
    found = measure_latency(runtime, batch_sizes=fixed[:1] or [*dict.fromkeys((1, batch_size))])
    return {
        f"latency_ms_batch_{latency.batch_size}{name}": value
        for latency in found
        for name, value in (
            ("", latency.median),
            ("_lower", latency.lower),
            ("_upper", latency.upper),
        )
    }
