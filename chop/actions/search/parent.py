"""The parent of a search: where its weights come from, and who trains its candidates."""

from __future__ import annotations

import copy
import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError, RunConfig
from chop.actions.project import Project
from chop.actions.search.search_space.parts import WIDENINGS

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

RUNS = ("basic_evaluation", "sqnr")  # what is meaningless for weights that nobody has trained


def candidates_trained(config: RunConfig) -> dict[str, Any]:
    """The tables of the search, in which candidates with new weights are trained.

    Files of the labs score widened networks by basic_evaluation alone; their own options say how
    to train, and so that is done first.
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
        "Candidates of other widths have new weights: each is trained for max_epochs = %d at "
        "learning_rate = %g before it is scored (sw_runner.basic_train says otherwise)",
        config.max_epochs,
        config.learning_rate,
    )
    training = {
        "max_epochs": config.max_epochs,
        "optimizer": config.training_optimizer,
        "learning_rate": config.learning_rate,
        "weight_decay": float(config.weight_decay),
    }
    strategy["sw_runner"] = {"basic_train": training, **runners}
    return tables


def _widens(tables: dict[str, Any]) -> bool:
    """Whether the space is one of widths."""
    space = tables["search_space"]
    if "redefine" in str(space.get("name")) or "redefine" in (space.get("passes") or {}):
        return True
    seeds = [seed for seed in (space.get("seed") or {}).values() if isinstance(seed, dict)]
    names = [(seed.get("config") or seed).get("name") for seed in seeds]
    return any(name in WIDENINGS for n in names if isinstance(n, list) for name in n)


def _inherits(tables: dict[str, Any]) -> bool:
    """Whether candidates of other widths have the parent's weights."""
    space = tables["search_space"]
    options = [space.get("options"), *(space.get("passes") or {}).values()]
    return any(isinstance(o, dict) and o.get("weights") == "inherit" for o in options)


def parent_checkpoint(
    config: RunConfig, project: Project, model: nn.Module, data_module: Any
) -> tuple[str | None, str]:
    """What the parent is loaded from; with `search.train_parent`, what it is trained to first."""
    if config.load_name is not None or config.is_pretrained:
        return config.load_name, config.load_type
    if config.search.get("train_parent"):
        return _trained(config, project, model, data_module), "pl"
    runners = (config.search.get("strategy") or {}).get("sw_runner") or {}
    untrained = [name for name in RUNS if name in runners]
    tolerant = any((runners[name] or {}).get("allow_untrained") for name in untrained)
    trains = any(name.endswith("_train") for name in runners) or _widens(dict(config.search))
    if untrained and not tolerant and not trains:
        raise ConfigError(
            f"the model has random weights, whose {untrained[0]} says nothing: give a checkpoint "
            f"by --load, or train it first by search.train_parent = true"
        )
    return None, config.load_type


def trains_parent(config: RunConfig, project: Project) -> bool:
    """Whether the parent has yet to be trained."""
    given = config.load_name is not None or config.is_pretrained
    wanted = not given and bool(config.search.get("train_parent"))
    return wanted and _earlier(project) is None


def _earlier(project: Project) -> str | None:
    """The checkpoint of a parent that an earlier run has trained."""
    from chop.training.names import Names

    there = Names.latest(project.training_ckpts)
    return str(there.best) if there is not None and there.best.exists() else None


def _trained(config: RunConfig, project: Project, model: nn.Module, data_module: Any) -> str:
    """Train the parent as `ch train` would; what an earlier run has trained is taken."""
    from chop.actions.train import fit, options_of, plain
    from chop.training.names import Names

    if (there := _earlier(project)) is not None:
        logger.info("The parent was trained before: %s", there)
        return there
    logger.info("Training the parent '%s'...", config.model)
    names = Names.claim(project.training_ckpts)
    settings = dataclasses.replace(options_of(config), progress=not config.no_progress)
    fit(model, data_module, settings, names=names, hyper_parameters=plain(config))
    return str(names.best)
