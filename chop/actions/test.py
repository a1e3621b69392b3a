"""`test` and `validate`: score a model on samples that it was not trained on."""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import RunConfig
from chop.actions.prepare import model_and_data
from chop.actions.project import Project
from chop.actions.train import checked_task, options_of
from chop.actions.trained_on import adapt_data, log_assumed_classes
from chop.files import write_whole
from chop.memory import memory_for
from chop.processes import is_first_process

if TYPE_CHECKING:
    from torch import nn

    from chop.training.options import TrainOptions
    from chop.training.scores import Score
    from chop.training.tasks import TrainingTask

logger = logging.getLogger(__name__)


SHORT = {"test": "test", "validation": "val"}
SETUP = {"test": "test", "validation": "validate"}  # stages of a data module
PLACE = ("accelerator", "devices", "num_nodes", "strategy", "precision", "fast_dev_run")


def _scoring(name: str, split: str, doc: str) -> Callable[..., dict[str, float]]:
    """Return the function `name`, which scores a model on one split."""

    def score(
        model: nn.Module,
        model_info: Any,
        data_module: Any,
        dataset_info: Any,
        task: str,
        optimizer: str | None = None,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        *,
        plt_trainer_args: Mapping[str, Any],
        auto_requeue: bool = False,
        save_path: str | Path | None = None,
        visualizer: Any = None,
        load_name: str | None = None,
        load_type: str | None = None,
        allow_nonfinite: bool = False,
    ) -> dict[str, float]:
        from chop.checkpoints import load_model, refuse_nonfinite
        from chop.log import show_logs_unless_configured
        from chop.training.options import TrainOptions
        from chop.training.tasks import logged

        kind = checked_task(task, data_module)
        show_logs_unless_configured()
        if load_name is not None:
            is_recorded = adapt_data(data_module, load_name, load_type or "mz")
            model = load_model(load_name, load_type or "mz", model)
            if not is_recorded:
                log_assumed_classes(data_module, load_name)
        if not allow_nonfinite:
            refuse_nonfinite(model, load_name)
        options = TrainOptions.from_trainer_args(dict(plt_trainer_args))
        result = scored(model, data_module, split, options, kind)
        values = result.with_loss.items()
        metrics = {f"{SHORT[split]}_{logged(name)}_epoch": value for name, value in values}
        if visualizer is not None:
            visualizer.log_metrics(metrics, 0)
        report_score(split, metrics, result, data_module, save_path, load_name, kind)
        return metrics

    score.__name__, score.__qualname__, score.__doc__ = name, name, doc
    return score


DOC = "Score `model` on the test split as the labs call it; the metrics are logged and returned."
test = _scoring("test", "test", DOC)
validate = _scoring(
    "validate", "validation", "Score `model` on the validation split; otherwise like `test`."
)


def scored(
    model: nn.Module, data_module: Any, split: str, options: TrainOptions, task: TrainingTask
) -> Score:
    """Return the score of `model` on one split of the data module."""
    from chop.training.check import check_fit, float_type
    from chop.training.devices import take_place, together
    from chop.training.evaluate import evaluate
    from chop.training.feed import Feed
    from chop.training.steps import Mixed

    if split not in data_module.dataset_info.available_splits:
        raise ValueError(f"data set {data_module.name!r} has no {split} split to test on")
    attribute = f"{SHORT[split]}_dataset"
    if getattr(data_module, attribute) is None:
        data_module.prepare_data()
        data_module.setup(SETUP[split])
    place = take_place(options)
    model.to(place.device)
    if options.precision == "64":
        model.double()
    feed = Feed(
        getattr(data_module, attribute),
        data_module.batch_size,
        place,
        float_type(model),
        num_workers=data_module.num_workers,
        collate=getattr(data_module, "collate_fn", None),
    )
    with memory_for(f"score batches of {data_module.batch_size}"), together("run it again"):
        check_fit(model, feed, task, learning=False)
        score = evaluate(
            model,
            feed.every(),
            mixed=Mixed(options.precision, place.device),
            task=task,
            reduce=place.total,
            limit=1 if options.fast_dev_run else None,
        )
        place.leave()
    return score


def report_score(
    split: str,
    metrics: dict[str, float],
    score: Score,
    data_module: Any,
    save_path: str | Path | None,
    load_name: str | None,
    task: TrainingTask,
) -> None:
    """Log the metrics as a table, and write them to `save_path`."""
    from chop.training.display import metric_table

    if not is_first_process():
        return
    info = data_module.dataset_info
    names = info.class_names or map(str, range(len(score.by_class)))
    classes = dict(zip(names, score.by_class, strict=False))
    shown = {f"{task.by_class} of {name}": v for name, v in classes.items() if v is not None}
    title = f"{split.capitalize()} on {score.samples:,} samples of {info.title}"
    logger.info("%s\n%s", title, metric_table(split.capitalize(), metrics | shown))
    if save_path is None:
        return
    content: dict[str, Any] = {
        "checkpoint": load_name,
        "dataset": info.name,
        "simulated": info.simulated,
        "split": split,
        "samples": score.samples,
        "metrics": {name: v if math.isfinite(v) else None for name, v in metrics.items()},
    }
    if task.by_class is not None:
        content[f"class_{task.by_class.lower()}"] = classes
    write_whole(_unused(Path(save_path), f"{split}_metrics"), json.dumps(content, indent=2) + "\n")


def _unused(folder: Path, stem: str) -> Path:
    """Return `test_metrics.json`, or `test_metrics-v1.json` if it exists, and so on."""
    names = (f"{stem}-v{n}.json" if n else f"{stem}.json" for n in itertools.count())
    return next(folder / name for name in names if not (folder / name).exists())


def latest_test(
    folder: Path, checkpoint: str | None, dataset: str
) -> tuple[Path, Mapping[str, Any]] | None:
    """Return the file and the metrics of the latest test of a checkpoint on a data set.

    Tests that are older than the checkpoint do not count.
    """
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    parts = [path, *path.rglob("*")] if path.is_dir() else [path]
    changed = max((part.stat().st_mtime_ns for part in parts if part.exists()), default=0)
    files = sorted(folder.glob("test_metrics*.json"), key=lambda file: -file.stat().st_mtime_ns)
    for file in files:
        try:
            content = json.loads(file.read_text())
            same = (content["checkpoint"], content["dataset"]) == (checkpoint, dataset)
            metrics = dict(content["metrics"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # not a file that a test wrote
        if same and file.stat().st_mtime_ns >= changed:
            return file, metrics
    return None


def check_test(config: RunConfig, project: Project, from_file: Collection[str]) -> TrainOptions:
    """Refuse options that are wrong for a test."""
    from chop.actions.runtime_test import check_runtime

    check_runtime(config)
    return options_of(config)


def run_test(config: RunConfig, project: Project, options: TrainOptions) -> None:
    """Run `ch test`."""
    if config.runtime == "onnxruntime":
        from chop.actions.runtime_test import run_runtime_test

        run_runtime_test(config, project)
        return
    model, model_info, data_module = model_and_data(config)
    data_module.prepare_data()
    data_module.setup("test")
    project.create()
    logger.info("Testing model '%s'...", config.model)
    test(
        model,
        model_info,
        data_module,
        data_module.dataset_info,
        config.task,
        plt_trainer_args={name: getattr(options, name) for name in PLACE},
        save_path=project.software / "checkpoints",
        load_name=config.load_name,
        load_type=config.load_type,
        allow_nonfinite=config.allow_nonfinite,
    )
    logger.info("Testing is completed")
