"""`train`: train a model on a data set, and write checkpoints, curves and a summary."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError, RunConfig
from chop.actions.prepare import model_and_data
from chop.actions.project import Project
from chop.actions.suggestion import command_to_test
from chop.actions.trained_on import adapt_data, adapt_to_resumed, log_assumed_classes, names_in
from chop.memory import memory_for
from chop.processes import is_first_process
from chop.redaction import redacted

if TYPE_CHECKING:  # `ch train --help` does not import torch
    from torch import nn

    from chop.ir.graph.mase_graph import MaseGraph
    from chop.training.loop import Fitted
    from chop.training.names import Names
    from chop.training.options import TrainOptions
    from chop.training.scalars import Visualizer
    from chop.training.scores import Score
    from chop.training.tasks import TrainingTask

logger = logging.getLogger(__name__)
SLOW_RATE = 1e-4  # the labs' default rate is below this
LOST = "start the run again with `resume`, which continues from its last checkpoint"


def train(
    model: nn.Module,
    model_info: Any,
    data_module: Any,
    dataset_info: Any,
    task: str,
    optimizer: str,
    learning_rate: float,
    weight_decay: float,
    *,
    plt_trainer_args: Mapping[str, Any],
    scheduler_args: Mapping[str, Any] | None = None,
    auto_requeue: bool = False,
    save_path: str | Path | None = None,
    visualizer: Visualizer | None = None,
    load_name: str | None = None,
    load_type: str | None = None,
) -> Fitted:
    """Train `model`, with the labs' arguments; save checkpoints in `save_path`."""
    from chop.log import show_logs_unless_configured
    from chop.training.names import Names
    from chop.training.options import TrainOptions

    show_logs_unless_configured()
    kind = checked_task(task, data_module)
    options = TrainOptions.from_trainer_args(
        dict(plt_trainer_args),
        optimizer=optimizer,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        auto_requeue=auto_requeue,
        **(scheduler_args or {}),
    )
    names = Names.claim(Path(save_path)) if save_path is not None else None
    graph = graph_to_train(load_name, load_type or "mz")
    fitted = fit(
        model if graph is None else graph.model,
        data_module,
        options,
        names=names,
        visualizers=[visualizer] if visualizer is not None else [],
        load_name=load_name,
        load_type=load_type or "mz",
        graph=graph,
        task=kind,
    )
    hint_of_guessing(fitted, options)
    return fitted


def graph_to_train(load_name: str | Path | None, load_type: str) -> MaseGraph | None:
    """Return the graph to train if `load_name` is a saved graph, else None."""
    from chop.checkpoints import load_graph
    from chop.ir.graph.saved_files import is_saved_graph

    if load_name is None or load_type != "mz" or not is_saved_graph(load_name):
        return None
    return load_graph(load_name)


def fit(
    model: nn.Module,
    data_module: Any,
    options: TrainOptions,
    *,
    names: Names | None,
    visualizers: Sequence[Visualizer] = (),
    load_name: str | Path | None = None,
    load_type: str = "mz",
    resume: dict[str, Any] | None = None,
    hyper_parameters: dict[str, Any] | None = None,
    graph: MaseGraph | None = None,
    task: TrainingTask | None = None,
) -> Fitted:
    """Train from the initial weights, from loaded ones, or from the checkpoint `resume`.

    With `graph`, the graph of the model, the trained graph is saved beside the checkpoints. The
    default task is classification.
    """
    from chop.checkpoints import load_model
    from chop.dataset.data_module import facts_of
    from chop.ir.graph.saved_files import has_saved_modules
    from chop.training.devices import together
    from chop.training.loop import Training
    from chop.training.tasks import CLASSIFICATION

    if data_module.train_dataset is None:
        data_module.prepare_data()
        data_module.setup("fit")
    is_recorded = _adapt_to_network(data_module, resume, load_name, load_type)
    has_layers = load_type == "mz" and load_name is not None and has_saved_modules(load_name)
    if load_name is not None and (resume is None or has_layers):
        model = load_model(load_name, load_type, model) if graph is None else model
        logger.info("'%s' checkpoint loaded before training", load_type)
        if not is_recorded:
            log_assumed_classes(data_module, load_name)
    if options.weight_decay:
        logger.info("Weight decay: %g", options.weight_decay)
    _warn_of_lowest_rate(options)
    with memory_for(f"train with batches of {data_module.batch_size}"), together(LOST):
        training = Training(
            model,
            data_module,
            options,
            names=names,
            visualizers=visualizers,
            hyper_parameters=hyper_parameters or dataclasses.asdict(options),
            task=task or CLASSIFICATION,
        )
        if resume is not None:
            training.resume_from(resume)
        fitted = training.fit()
    if (graph is not None or has_layers) and names is not None and fitted.place.leads:
        notes = {"trained_on": facts_of(data_module) or {}}
        with best_weights(model, names):
            _save_transformed(model, graph, trained_graph(names), notes | _made_from(load_name))
    with together(LOST):
        fitted.place.leave()
    return fitted


def _adapt_to_network(
    data_module: Any, resume: dict[str, Any] | None, load_name: Any, load_type: str
) -> bool:
    """Adapt the data to a network that is trained further; return whether its facts are known."""
    if resume is None:
        return adapt_data(data_module, load_name, load_type, strict=False)
    adapt_to_resumed(data_module, resume)
    return True


def _warn_of_lowest_rate(options: TrainOptions) -> None:
    """Warn if the minimum of the schedule is above the initial learning rate."""
    initial, lowest = options.learning_rate, options.eta_min
    if options.schedule != "constant" and lowest > initial:
        logger.warning(
            "eta_min = %g is above learning_rate = %g, so the learning rate stays at %g; lower "
            "`eta_min`, or use `schedule='constant'`",
            *(lowest, initial, initial),
        )


def _made_from(load_name: str | Path | None) -> dict[str, Any]:
    """Return the note of what a saved graph or transformed model was made from."""
    return {"made_from": names} if (names := names_in(load_name, "mz")) else {}


def _save_transformed(
    model: nn.Module, graph: MaseGraph | None, folder: Path, notes: Mapping[str, Any]
) -> None:
    """Save a trained graph, or a trained model with transformed layers."""
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.ir.graph.saved_modules import save_modules
    from chop.passes.graph.describe.formats import note_scales

    if graph is not None:
        if isinstance(graph, MaseGraph):  # a model of the module style has no metadata
            note_scales(graph)
        graph.meta |= notes
        logger.info("Saved mase graph to %s", graph.export(folder))
    else:
        logger.info("Saved transformed layers to %s", save_modules(model, folder, notes=notes))


@contextlib.contextmanager
def best_weights(model: nn.Module, names: Names) -> Iterator[None]:
    """Context in which the model has the weights of its best epoch, if they were saved."""
    from chop.checkpoints import fill
    from chop.training.saving import PREFIX, read_run

    last = {key: value.clone() for key, value in model.state_dict().items()}
    if names.best.exists():
        saved = read_run(names.best)["state_dict"]
        best = {key.removeprefix(PREFIX): value for key, value in saved.items()}
        fill(model, best, names.best)
    try:
        yield
    finally:
        model.load_state_dict(last)


def trained_graph(names: Names) -> Path:
    """Return the directory in which a trained graph is saved."""
    return names.folder / names("transformed_ckpt", "ckpt").stem


def checked_task(name: str, data_module: Any) -> TrainingTask:
    """Return the task `name`; refuse one that the data set does not have labels for."""
    from chop.dataset.base import check_task
    from chop.training.tasks import task_named

    task = task_named(name)
    check_task(task.short, data_module.dataset_info)
    return task


def hint_of_guessing(fitted: Fitted, options: TrainOptions) -> None:
    """Warn if the validation score is no better than the best constant guess, within its error."""
    score, task = fitted.validation, fitted.task
    if score is None or options.fast_dev_run or not fitted.place.leads:
        return
    reached = score.metrics[task.main]
    if fitted.progress.best_accuracy is not None:
        reached = max(reached, fitted.progress.best_accuracy)
    if reached > score.guess + _sampling_error(score, task) or math.isnan(reached):
        return
    fix = "train for more epochs with `max_epochs`, or check that the labels belong to the samples"
    if options.learning_rate < SLOW_RATE:
        fix = f"the learning rate {options.learning_rate:g} is low: try `learning_rate=1e-3`"
    logger.warning(
        "The validation %s of %.4g is no better than %s (%.4g); %s",
        *(task.main, reached, task.guess, score.guess, fix),
    )


def _sampling_error(score: Score, task: TrainingTask) -> float:
    """Return two standard errors of the accuracy of a constant guess, 0 for other metrics."""
    if task.main != "accuracy" or math.isnan(score.guess):
        return 0.0
    return 2 * math.sqrt(score.guess * (1 - score.guess) / score.samples)


def check_train(config: RunConfig, project: Project, from_file: Collection[str]) -> TrainOptions:
    """Refuse options that are wrong for the training loop."""
    return options_of(config)


def run_train(config: RunConfig, project: Project, options: TrainOptions) -> None:
    """Run `ch train`."""
    from chop.training.display import model_summary
    from chop.training.interruption import is_requeued
    from chop.training.names import Names

    resume = config.resume or (config.is_to_auto_requeue and is_requeued())
    names, saved = latest_run(project.training_ckpts) if resume else (None, None)
    model, _, data_module = model_and_data(config, strict=False, resumed=saved)
    task = checked_task(config.task, data_module)
    data_module.prepare_data()
    data_module.setup("fit")
    folder = project.create(config).training_ckpts
    graph = graph_to_train(config.load_name, config.load_type)
    model = model if graph is None else graph.model
    if names is None:
        names = Names.claim(folder) if is_first_process() else Names(folder)
    if saved is not None:
        say_resumed(names, saved)
    elif names.version:
        logger.info("This directory already holds a run; saving this one as %s", names.best.name)
    logger.info("Training model '%s'...", config.model)
    logger.info("%s", model_summary(model, str(config.model)))
    logger.info("%s", sizes(data_module))
    curves = open_curves(config, project, names, saved)
    with _closed_after_errors(curves):
        fitted = fit(
            model,
            data_module,
            options,
            names=names,
            visualizers=curves,
            load_name=config.load_name,
            load_type=config.load_type,
            resume=saved,
            hyper_parameters=plain(config),
            graph=graph,
            task=task,
        )
    for each in curves:
        each.finalize("success")
    if not fitted.steps:
        logger.info(
            "This run is complete after %d epochs; raise --max-epochs to continue",
            fitted.progress.epoch,
        )
    elif fitted.place.leads and curves:
        files = Names(project.software, names.version)
        report(config, files, model, data_module, fitted)
        hint_of_guessing(fitted, options)
        logger.info("Curves are in %s", files("curves", "svg"))
        # the layers of a transformed network differ from those of the named model
        transformed = trained_graph(names)
        is_transformed = config.load_type == "mz" and transformed.is_dir()
        weights, kind = (transformed, "mz") if is_transformed else (names.best, "pl")
        logger.info("Test it with: %s", command_to_test(config, weights, kind))
    logger.info("Training is completed")


@contextlib.contextmanager
def _closed_after_errors(curves: Sequence[Any]) -> Iterator[None]:
    """Close the curves after an error, and ignore errors of closing."""
    try:
        yield
    except BaseException:
        for each in curves:
            with contextlib.suppress(OSError):
                each.finalize("failed")
        raise


def sizes(data_module: Any) -> str:
    """Return a sentence with the numbers of training and validation samples."""
    num_validation = len(data_module.val_dataset or ())
    return f"{len(data_module.train_dataset):,} training and {num_validation:,} validation samples"


def latest_run(folder: Path) -> tuple[Names | None, dict[str, Any] | None]:
    """Return the names and the state of the latest run in `folder`; (None, None) without one."""
    from chop.training.names import Names
    from chop.training.saving import read_run

    names = Names.latest(folder)
    if names is None:
        return None, None
    file = names.latest_state
    try:
        return names, read_run(file)
    except ValueError as error:
        if file == names.best or not names.best.exists():
            raise
        raise ValueError(f"{error}; delete it to continue from {names.best.name}") from error


def say_resumed(names: Names, saved: Mapping[str, Any]) -> None:
    """Log from which step a run is resumed."""
    logger.info("Resumed from %s at step %s", names.latest_state, f"{saved['global_step']:,}")


def report(
    config: RunConfig, files: Names, model: nn.Module, data_module: Any, fitted: Fitted
) -> None:
    """Draw the curves and write the summary of a finished run."""
    from chop.training.report import draw_curves, write_summary

    info = data_module.dataset_info
    draw_curves(files("metrics", "csv"), files("curves", "svg"), f"{config.model} on {info.title}")
    splits = {"train": data_module.train_dataset, "validation": data_module.val_dataset}
    write_summary(
        files("summary", "json"),
        fitted=fitted,
        config=plain(config),
        info=info,
        fingerprints={name: getattr(s, "fingerprint", None) for name, s in splits.items()},
        parameters=sum(p.numel() for p in model.parameters()),
    )


def options_of(config: RunConfig) -> TrainOptions:
    """Return the options of a run that the training loop reads."""
    if config.max_steps == 0:
        raise ConfigError("--max-steps must be positive, or -1 for no limit; not 0")
    from chop.training.options import TrainOptions, spellings

    values = {name: value for name, value in vars(config).items() if name in spellings()}
    return TrainOptions.of("", values | {"progress": not config.no_progress})


RATE_TAGS = {"adam": "lr-Adam", "adamw": "lr-AdamW", "sgd": "lr-SGD"}  # as TensorBoard shows them


def open_curves(
    config: RunConfig, project: Project, names: Names, saved: dict[str, Any] | None
) -> list[Any]:
    """Open the loggers of training curves; none with `--debug`, which trains on one batch."""
    from chop.training.names import Names
    from chop.training.scalars import CsvCurves, ResumedAt, TensorBoardCurves, WandbCurves
    from chop.training.tasks import task_named

    if config.to_debug or not is_first_process():
        return []
    at = None
    if saved is not None:
        at = ResumedAt(saved["global_step"], saved["mase"]["progress"]["step_in_epoch"] == 0)
    file = Names(project.software, names.version)("metrics", "csv")
    curves: list[Any] = [CsvCurves(file, resumed_at=at, task=task_named(config.task))]
    with _closed_after_errors(curves):
        if config.report_to == "wandb":
            curves.append(WandbCurves(project.software, project.name))
        else:
            folder, rate = project.software / "tensorboard", RATE_TAGS[config.training_optimizer]
            curves.append(TensorBoardCurves(folder, resumed_at=at, rate=rate))
        curves[-1].log_hyperparams(plain(config))
    return curves


def plain(config: RunConfig) -> dict[str, Any]:
    """Return the options as JSON values, without passwords."""
    tables = {"passes", "search", "transform", "cf_args"}
    values = {k: v for k, v in dataclasses.asdict(config).items() if k not in tables}
    return {k: _plain(v) for k, v in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return value if isinstance(value, bool | int | float | None) else redacted(str(value))
