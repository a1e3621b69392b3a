"""The parent of a search: how it is loaded or trained, and how its candidates are trained."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import OPTIONS, ConfigError, HelpPanel, RunConfig
from chop.actions.project import Project
from chop.actions.search.space.base import Parent
from chop.actions.search.space.learned_names import LEARNED
from chop.actions.search.space.untraced import UntracedModel
from chop.passes.graph.transforms.redefine.width_requests import WIDENINGS

if TYPE_CHECKING:
    from torch import nn

    from chop.actions.transform.source import Source
    from chop.training.names import Names

logger = logging.getLogger(__name__)

NEED_TRAINING = ("basic_evaluation", "sqnr")  # metrics that are meaningless for random weights
# options outside the trainer's group that change the weights of a parent, and trainer's that do not
ALSO_CHANGE_WEIGHTS = {
    *("model", "model_args", "quant_config", "max_token_len", "batch_size", "seed"),
    *("dataset", "dataset_args", "data_path", "legacy_val", "num_devices", "num_nodes"),
}
KEEP_WEIGHTS = {"resume", "log_every_n_steps", "checkpoint_every", "compile"}


def make_parent(
    source: Source,
    accelerator: str,
    seed: int = 0,
    *,
    cf_args: Mapping[str, Any] | None = None,
    trained: bool = True,
    allow_nonfinite: bool = False,
    is_traced: bool = True,
) -> Parent:
    """Load the weights of a parent, and trace it unless the search is in the module style."""
    from chop.checkpoints import refuse_nonfinite
    from chop.devices import parse_accelerator

    data_module = source.data_module
    if data_module.train_dataset is None:
        data_module.prepare_data()
        data_module.setup("fit")
    try:
        device = parse_accelerator(accelerator)
    except RuntimeError as error:  # this machine has no such device
        raise ValueError(str(error)) from error
    graph: Any
    if is_traced:
        graph = source.graph_on(device, dict(cf_args or {}))
    else:
        graph = UntracedModel(source.model_on(device), source.notes())
    if not allow_nonfinite:
        refuse_nonfinite(graph.model, source.load_name)
    return Parent(graph, source.model_info, source.task, data_module, accelerator, seed, trained)


def candidates_trained(config: RunConfig) -> dict[str, Any]:
    """Return the tables of the search, with training of candidates that have new weights.

    Files of the labs only evaluate widened networks; these are first trained with the options of
    `ch train` in the same file.
    """
    tables: dict[str, Any] = copy.deepcopy(dict(config.search))
    strategy = tables["strategy"]
    runners = strategy.get("sw_runner")
    if not isinstance(runners, dict) or not _widens(tables) or "basic_evaluation" not in runners:
        return tables
    evaluation = runners["basic_evaluation"]
    if not isinstance(evaluation, dict) or evaluation.get("allow_untrained"):
        return tables
    if any(name.endswith("_train") for name in runners) or _inherits(tables):
        return tables
    logger.info(
        "Candidates with other widths have new weights: each is trained for max_epochs = %d at "
        "learning_rate = %g before it is scored (configure sw_runner.basic_train to change this)",
        config.max_epochs,
        config.learning_rate,
    )
    training = {key: getattr(config, key) for key in ("max_epochs", "learning_rate")}
    training |= {"optimizer": config.training_optimizer, "weight_decay": float(config.weight_decay)}
    strategy["sw_runner"] = {"basic_train": training, **runners}
    return tables


def _widens(tables: dict[str, Any]) -> bool:
    """Whether the space has designs of other widths."""
    space = tables["search_space"]
    if "redefine" in str(space.get("name")) or "redefine" in (space.get("passes") or {}):
        return True
    seeds = [seed for seed in (space.get("seed") or {}).values() if isinstance(seed, dict)]
    names = [(seed.get("config") or seed).get("name") for seed in seeds]
    return any(name in WIDENINGS for n in names if isinstance(n, list) for name in n)


def _inherits(tables: dict[str, Any]) -> bool:
    """Whether candidates of other widths inherit the parent's weights."""
    space = tables["search_space"]
    options = [space.get("options"), *(space.get("passes") or {}).values()]
    return any(isinstance(o, dict) and o.get("weights") == "inherit" for o in options)


def parent_checkpoint(
    config: RunConfig, project: Project, model: nn.Module, data_module: Any, *, alone: bool = True
) -> tuple[str | None, str]:
    """Return the checkpoint of the parent and its type; `search.train_parent` trains it first.

    Unless this process is `alone` in the project, it does not resume the training of another.
    """
    if config.has_weights:
        return config.load_name, config.load_type
    if config.search.get("train_parent"):
        return _trained(config, project, model, data_module, alone=alone), "pl"
    runners = (config.search.get("strategy") or {}).get("sw_runner") or {}
    untrained = [name for name in NEED_TRAINING if name in runners]
    tolerant = any((runners[name] or {}).get("allow_untrained") for name in untrained)
    trains = any(name.endswith("_train") for name in runners) or _widens(dict(config.search))
    trains = trains or config.search["search_space"].get("name") == LEARNED
    if untrained and not tolerant and not trains:
        raise ConfigError(
            f"the model has random weights, so its {untrained[0]} is meaningless; "
            f"give a checkpoint by --load, or set search.train_parent = true to train it first"
        )
    return None, config.load_type


def trains_parent(config: RunConfig, project: Project) -> bool:
    """Whether the parent has yet to be trained, or to be trained to the end."""
    if config.has_weights or not config.search.get("train_parent"):
        return False
    earlier = _earlier(config, project)
    return earlier is None or not earlier.is_complete


@dataclass(frozen=True)
class _Earlier:
    """A training of the parent by an earlier run: its files, its last state, whether it ended."""

    names: Names
    saved: dict[str, Any]
    is_complete: bool


def _earlier(config: RunConfig, project: Project) -> _Earlier | None:
    """Return the training of an earlier run with the same options; other options are refused."""
    from chop.actions.train import latest_run, options_of
    from chop.training.fields import TrainingProgress

    names, saved = latest_run(project.training_ckpts)
    if names is None or saved is None:
        return None
    _check_trained_alike(config, names.best, saved["hyper_parameters"])
    done = TrainingProgress(**saved["mase"]["progress"]).is_complete(options_of(config))
    if done and not names.best.exists():
        return None  # cut before its weights were scored
    return _Earlier(names, saved, done)


def _check_trained_alike(config: RunConfig, best: Path, trained_with: Mapping[str, Any]) -> None:
    """Refuse a parent that was trained with other options."""
    from chop.actions.train import plain

    for name, now in plain(config).items():
        is_training = OPTIONS[name].opt.group == HelpPanel.TRAINER and name not in KEEP_WEIGHTS
        if (is_training or name in ALSO_CHANGE_WEIGHTS) and trained_with.get(name, now) != now:
            raise ConfigError(
                f"the parent {best} was trained with {name} = {trained_with[name]}, not {now}; "
                f"change it back, use another --project, or use this parent with --load {best} "
                f"--load-type pl"
            )


def _trained(
    config: RunConfig, project: Project, model: nn.Module, data_module: Any, *, alone: bool
) -> str:
    """Train the parent as `ch train` does, or continue the training of an earlier run."""
    from chop.actions.train import (
        checked_task,
        fit,
        hint_of_guessing,
        options_of,
        plain,
        say_resumed,
    )
    from chop.training.names import Names

    earlier = _earlier(config, project)
    if earlier is not None and earlier.is_complete:
        logger.info("Reusing the trained parent: %s", earlier.names.best)
        return str(earlier.names.best)
    logger.info("Training the parent '%s'...", config.model)
    if earlier is not None and alone:
        names, resume = earlier.names, earlier.saved
        say_resumed(names, resume)
    else:
        names, resume = Names.claim(project.training_ckpts), None
    options = dataclasses.replace(options_of(config), progress=not config.no_progress)
    task, kept = checked_task(config.task, data_module), plain(config)
    fitted = fit(
        model, data_module, options, names=names, resume=resume, hyper_parameters=kept, task=task
    )
    hint_of_guessing(fitted, options)
    return str(names.best)
