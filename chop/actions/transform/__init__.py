"""`transform`: run the passes of a file on a model, and save the result.

plan.py reads the file, source.py loads the model, work.py runs the passes, effect.py and report.py
describe what they did.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import RunConfig
from chop.actions.prepare import model_and_data
from chop.actions.project import Project
from chop.actions.suggestion import command_to_test
from chop.actions.transform.plan import Plan, plan_of
from chop.actions.transform.source import Source
from chop.tools.config_load import convert_str_na_to_none, load_config

if TYPE_CHECKING:  # `ch transform --help` does not import torch
    from torch import nn

    from chop.actions.transform.work import Scorer
    from chop.ir.graph.mase_graph import MaseGraph

__all__ = ["plan_of", "run_transform", "transform"]

logger = logging.getLogger(__name__)


def transform(
    model: nn.Module,
    model_info: Any,
    model_name: str,
    data_module: Any,
    task: str,
    config: str | Path | Mapping[str, Any],
    save_dir: str | Path | None = None,
    load_name: str | None = None,
    load_type: str | None = None,
    accelerator: str = "auto",
    *,
    front_end: str = "auto",
) -> MaseGraph:
    """Run the passes of `config`, a TOML file or a dict, with the labs' arguments.

    Return the transformed graph or, in the module style, the transformed model.
    """
    from chop.actions.transform.work import carry_out
    from chop.log import show_logs_unless_configured

    show_logs_unless_configured()
    table = convert_str_na_to_none(config) if isinstance(config, Mapping) else load_config(config)
    folder = Path(save_dir) if save_dir is not None else None
    plan = plan_of(table, folder)
    checkpoint = load_name, load_type or "mz"
    source = Source(model, model_info, model_name, data_module, task, *checkpoint, front_end)
    graph: MaseGraph = carry_out(plan, source, folder, accelerator).graph
    return graph


def check_transform(config: RunConfig, project: Project, from_file: Collection[str]) -> Plan | None:
    """Refuse options that are wrong; return the plan, unless files of --import may add to it."""
    plan = _plan(config, project, are_all_known=not config.imports)
    return None if config.imports else plan


def _plan(config: RunConfig, project: Project, *, are_all_known: bool = True) -> Plan:
    table = {"passes": config.passes, "transform": config.transform, "cf_args": config.cf_args}
    folder, where = project.software / "transform", f"{config.config}: "
    return plan_of(table, folder, where, confined=True, are_all_known=are_all_known)


def run_transform(config: RunConfig, project: Project, plan: Plan | None = None) -> None:
    """Run `ch transform`."""
    from chop.actions.transform.work import carry_out

    folder = project.software / "transform"
    plan = plan or _plan(config, project)
    model, info, data_module = model_and_data(config)
    project.create(config)
    logger.info("Transforming model '%s'...", config.model)
    source = Source(
        model,
        info,
        str(config.model),
        data_module,
        config.task,
        config.load_name,
        config.load_type,
        config.front_end,
    )
    if config.to_test:
        _warn_of_random_weights(config)
    score = _scorer(config, data_module) if config.to_test else None
    tested = command_to_test(config, folder / "transformed_ckpt", "mz")
    carry_out(plan, source, folder, config.accelerator, score, tested)
    logger.info("Transformation is completed")


def _warn_of_random_weights(config: RunConfig) -> None:
    """Warn that scores are meaningless; a model of the user may load its weights itself."""
    from chop.models import MODELS

    name = str(config.model)
    ours = name in MODELS and MODELS[name].build.__module__.startswith("chop.")
    if ours and config.load_name is None and not config.is_pretrained:
        logger.warning(
            "the model %r has random weights, so its scores are meaningless; train it, and give "
            "the checkpoint with --load",
            name,
        )


def _scorer(config: RunConfig, data_module: Any) -> Scorer:
    from chop.actions.test import scored
    from chop.actions.train import checked_task, options_of

    options, task = options_of(config), checked_task(config.task, data_module)
    splits = data_module.dataset_info.available_splits
    split = "test" if "test" in splits else "validation"
    return lambda model: scored(model, data_module, split, options, task)
