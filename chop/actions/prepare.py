"""Build the model and the data of a run from its options."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError, RunConfig
from chop.memory import memory_for
from chop.tools.config_load import load_config

if TYPE_CHECKING:
    from torch import nn

    from chop.dataset import MaseDataModule, MaseDatasetInfo
    from chop.models import MaseModelInfo

logger = logging.getLogger(__name__)


def model_and_data(config: RunConfig) -> tuple[nn.Module, MaseModelInfo, MaseDataModule]:
    """Return the model and the data module of a run; the data are not loaded yet."""
    from chop.dataset.base import TASK_NAMES, check_task

    _warn_of_other_names(config)
    logger.info("Initialising model '%s'...", config.model)
    logger.info("Initialising dataset '%s'...", config.dataset)
    try:
        data_module = data_module_for(config)
        check_task(TASK_NAMES.get(config.task, config.task), data_module.dataset_info)
        model, info = model_for(config, data_module.dataset_info)
    except (ValueError, TypeError) as error:  # names and options that do not match
        raise ConfigError(str(error)) from error
    return model, info, data_module


def _warn_of_other_names(config: RunConfig) -> None:
    """Warn if a saved graph was made from a different model or data set."""
    if config.load_type != "mz" or config.load_name is None:
        return
    from chop.ir.graph.saving import is_saved_graph, made_from

    if not is_saved_graph(config.load_name):
        return
    names = {"model": config.model, "dataset": config.dataset}
    saved = made_from(config.load_name)
    others = {kind: name for kind, name in saved.items() if name != names.get(kind, name)}
    if others:
        logger.warning(
            "%s was made from %s, but this run uses %s; use the same names unless this is intended",
            config.load_name,
            " and ".join(f"{kind} {name!r}" for kind, name in others.items()),
            " and ".join(f"{kind} {names[kind]!r}" for kind in others),
        )


def data_module_for(config: RunConfig) -> MaseDataModule:
    """Return the data module that the options name, without loading it."""
    from chop.dataset import MaseDataModule
    from chop.dataset.base import DATASETS, TASK_NAMES
    from chop.options import options_of

    options: dict[str, Any] = dict(config.dataset_args)
    DATASETS[str(config.dataset)].refuse_offered(options)
    if config.legacy_val:
        options["legacy_val"] = True
    task = TASK_NAMES.get(config.task, config.task)
    if task in ("reg", "dense") and "task" in options_of(DATASETS[str(config.dataset)].load):
        options.setdefault("task", task)  # labels of a file may be classes or numbers
    return MaseDataModule(
        name=str(config.dataset),
        batch_size=config.batch_size,
        num_workers=config.num_workers,
        max_token_len=config.max_token_len,
        load_from_cache_file=not config.disable_dataset_cache,
        model_name=config.model,
        custom_path=config.data_path,
        seed=config.seed,
        **options,
    )


def model_for(config: RunConfig, info: MaseDatasetInfo) -> tuple[nn.Module, MaseModelInfo]:
    """Return the model that the options name, built for the data set."""
    from chop.models import get_model, get_model_info

    name = str(config.model)
    quant_config = load_config(config.quant_config) if config.quant_config else None
    with memory_for(f"build the model {name!r}", "choose a smaller one or smaller model_args"):
        model = get_model(
            name,
            task=config.task,
            dataset_info=info,
            pretrained=config.is_pretrained,
            quant_config=quant_config,
            **config.model_args,
        )
    return model, get_model_info(name)
