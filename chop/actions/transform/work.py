"""Run the passes of a plan, one after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from chop.actions.config import ConfigError
from chop.actions.transform import report
from chop.actions.transform.calibration import output_error_of, with_calibration
from chop.actions.transform.effect import Traits, effect
from chop.actions.transform.plan import PassStep, Plan
from chop.actions.transform.report import Result
from chop.actions.transform.source import Source, model_of
from chop.registry import UnknownName
from chop.system.memory import OutOfMemory, memory_for

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph

logger = logging.getLogger(__name__)

# the split that an input generator draws from, if it is not the training data
GENERATORS = {"prune": "val"}
# errors that are reported in one sentence; any other error is a bug
EXPECTED = (ValueError, OSError, ImportError, ArithmeticError, RuntimeError, OutOfMemory)

Scorer = Callable[[Any], Any]


class PassFailed(ValueError):
    """A pass failed; the message names the pass."""


def carry_out(
    plan: Plan,
    source: Source,
    folder: Path | None,
    accelerator: str,
    score: Scorer | None = None,
    command_to_test: str | None = None,
) -> Result:
    """Load, prepare, run every pass, and save to `folder`; `score` runs before and after.

    `command_to_test` is shown before the result is saved.
    """
    from chop.devices import parse_accelerator

    device = parse_accelerator(accelerator)
    data = source.data_module
    if data.train_dataset is None:
        data.prepare_data()
        data.setup("fit")
    whole = plan.style == "module"
    built = _classes(source.model)
    subject = source.model_on(device) if whole else source.graph_on(device, plan.cf_args)
    plan.check_subject(subject)
    result = Result(subject)
    report.remove_stale(folder)
    if score is not None:
        result.before = score(model_of(subject))
    steps = plan.steps if whole else with_calibration(plan.steps, subject, folder)
    _run_all(steps, result, source, folder)
    if score is not None:
        result.after = score(model_of(result.graph))
    report.show(result)
    report.write(result, folder)
    if command_to_test is not None:
        # the labs' sheets end with the lines of saving and completion
        logger.info("Test it with: %s", command_to_test)
    if folder is not None:
        _save(result.graph, folder / "transformed_ckpt", source, built)
    return result


def _run_all(steps: list[PassStep], result: Result, source: Source, folder: Path | None) -> None:
    for i, step in enumerate(steps, 1):
        try:
            with memory_for(f"run the pass {step.label!r}"):
                result.graph = _run(step, result, source, folder)
        except Exception as error:
            _report_failure(error, step, f"{i} of {len(steps)}", result, folder)
        report.write(result, folder)


def _report_failure(
    error: Exception, step: PassStep, position: str, result: Result, folder: Path | None
) -> NoReturn:
    """Report what was done, and raise the error with the name of the pass."""
    from chop.passes.base import PassArgsError

    result.failed = {"Pass": step.label, "Position": position, "Error": str(error)}
    report.write(result, folder)
    if result.rows:
        report.show(result)
    own = f"pass {step.name!r}"
    reason = str(error).removeprefix(f"{own}: ").removeprefix(f"{own}, ")
    sentence = f"pass {step.label!r} ({position}) failed: {reason}"
    if isinstance(error, PassArgsError | UnknownName):
        raise ConfigError(sentence) from error
    if isinstance(error, EXPECTED):
        raise PassFailed(sentence) from error
    error.add_note(sentence)
    raise error


def _run(step: PassStep, result: Result, source: Source, folder: Path | None) -> Any:
    from chop.passes import run_pass
    from chop.passes.module.base import ModulePass

    before, start = Traits.of(result.graph), time.perf_counter()
    options = step.options | _injected(step, source, result.graph)
    if isinstance(step.run, ModulePass):
        subject, info = step.run(result.graph, options)
    elif step.name == "quantize":
        subject, info, tables = _quantize(step, result.graph, options, folder)
        result.files += tables
    else:
        subject, info = run_pass(step.run, result.graph, options)
    seconds = time.perf_counter() - start
    summary = effect(before, Traits.of(subject), info, list(step.paths("written").values()))
    logger.debug("pass %s took %.3f s: %s", step.label, seconds, summary)
    result.rows.append(
        {"Pass": step.label, "Kind": step.run.kind, "Seconds": seconds, "Effect": summary}
    )
    result.files += step.paths("written").values()
    return subject


def _quantize(
    step: PassStep, graph: MaseGraph, options: dict[str, Any], folder: Path | None
) -> tuple[MaseGraph, dict[str, Any], list[Path]]:
    """Quantise, and compare with the original; only changed nodes count as quantised."""
    from chop.passes import run_pass
    from chop.passes.graph.transforms.quantize.summary import HISTOGRAM, TABLE, compare_nodes

    original = graph.clone()
    graph, info = run_pass(step.run, graph, options)
    saved = {"save_dir": folder / step.label} if folder is not None else {}
    run_pass("summarize_quantization", graph, {"original_graph": original, **saved})
    changed = [row["New name"] for row in compare_nodes(original, graph) if row["Changed"]]
    files = [place / name for place in saved.values() for name in (TABLE, HISTOGRAM)]
    if folder is not None and "calibrated" in info:
        files.append(_clipped(graph, info["calibrated"], folder / step.label))
    return graph, info | {"quantized": changed}, files


def _clipped(graph: MaseGraph, rows: list[dict[str, Any]], folder: Path) -> Path:
    """Draw the histograms of calibrated operands, with what their formats clip."""
    from chop.passes.graph.analysis.calibrate.table import drawn
    from chop.system.files import write_whole

    file = folder / "calibration.svg"
    write_whole(file, drawn(graph, rows))
    return file


def _injected(step: PassStep, source: Source, subject: Any) -> dict[str, Any]:
    """Return the missing options that a file cannot hold."""
    model = model_of(subject)
    device = next((p.device for p in model.parameters()), "cpu")
    makers: dict[str, Callable[[], Any]] = {
        "input_generator": lambda: source.batches(GENERATORS.get(step.name, "train"), model),
        "dummy_in": lambda: source.batch_on(device, model),
        "model_name": lambda: source.model_name,
        "output_error": lambda: output_error_of(source.task),
    }
    missing = step.run.options.keys() - step.options.keys()
    return {name: make() for name, make in makers.items() if name in missing}


def _classes(model: Any) -> dict[str, type]:
    return {name: type(layer) for name, layer in model.named_modules(remove_duplicate=False)}


def _save(subject: Any, folder: Path, source: Source, built: Mapping[str, type]) -> None:
    """Save a graph or, in the module style, all layers that are not what the model was built of."""
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.passes.graph import save_mase_graph_interface_pass

    if isinstance(subject, MaseGraph):
        save_mase_graph_interface_pass(subject, {"save_dir": folder})
        return
    from chop.ir.graph.saved_modules import save_modules

    replaced = [name for name, cls in _classes(subject).items() if built.get(name) is not cls]
    save_modules(subject, folder, also=replaced, notes=source.notes())
    logger.info("Saved transformed layers to %s", folder)
