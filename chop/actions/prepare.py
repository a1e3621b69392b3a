"""The model and the data of a run, from its options."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError, RunConfig
from chop.tools.config_load import load_config

if TYPE_CHECKING:
    from torch import nn

    from chop.dataset import MaseDataModule, MaseDatasetInfo
    from chop.models import MaseModelInfo

logger = logging.getLogger(__name__)


def model_and_data(config: RunConfig) -> tuple[nn.Module, MaseModelInfo, MaseDataModule]:
    """What a run works on, announced in the labs' order; the data are not loaded yet."""
    logger.info("Initialising model '%s'...", config.model)
    logger.info("Initialising dataset '%s'...", config.dataset)
    try:
        data_module = data_module_for(config)
        model, info = model_for(config, data_module.dataset_info)
    except (ValueError, TypeError) as error:  # names and options that do not go together
        raise ConfigError(str(error)) from error
    return model, info, data_module


def data_module_for(config: RunConfig) -> MaseDataModule:
    """The data set that the options name, not loaded yet."""
    from chop.dataset import MaseDataModule

    options: dict[str, Any] = dict(config.dataset_args)
    if config.legacy_val:
        options["legacy_val"] = True
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
    """The model that the options name, built for the data set."""
    from chop.models import get_model, get_model_info

    name = str(config.model)
    quant_config = load_config(config.quant_config) if config.quant_config else None
    model = get_model(
        name,
        task=config.task,
        dataset_info=info,
        pretrained=config.is_pretrained,
        quant_config=quant_config,
        **config.model_args,
    )
    return model, get_model_info(name)
