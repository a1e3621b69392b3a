"""Build the model and the data of a run from its options."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError, RunConfig
from chop.actions.trained_on import adapt_data, adapt_to_resumed, log_assumed_classes, names_in
from chop.system.files import is_onnx_file
from chop.system.memory import memory_for
from chop.tools.config_load import load_config

if TYPE_CHECKING:
    from torch import nn

    from chop.dataset import MaseDataModule, MaseDatasetInfo
    from chop.dataset.tensors import Scalers
    from chop.models import MaseModelInfo

logger = logging.getLogger(__name__)


def model_and_data(
    config: RunConfig, *, strict: bool = True, resumed: Mapping[str, Any] | None = None
) -> tuple[nn.Module, MaseModelInfo, MaseDataModule]:
    """Return the model and the data module of a run; the data are not loaded yet.

    With `strict`, data of other classes than those of the loaded network are refused. `resumed` is
    the checkpoint of a run that continues.
    """
    from chop.dataset.base import TASK_NAMES, check_task

    _warn_of_other_names(config)
    logger.info("Initialising model '%s'...", config.model)
    logger.info("Initialising dataset '%s'...", config.dataset)
    try:
        data_module = data_module_for(config)
        check_task(TASK_NAMES.get(config.task, config.task), data_module.dataset_info)
        if resumed is not None:
            adapt_to_resumed(data_module, resumed)
        else:
            _adapt(data_module, config, strict=strict)
        model, info = model_for(config, data_module.dataset_info)
    except (ValueError, TypeError) as error:  # names and options that do not match
        raise ConfigError(str(error)) from error
    return model, info, data_module


def _adapt(data_module: MaseDataModule, config: RunConfig, *, strict: bool) -> None:
    """Adapt the data to the loaded network, or to the ONNX file that is the model."""
    is_recorded = adapt_data(data_module, config.load_name, config.load_type, strict=strict)
    if not is_recorded and is_onnx_file(config.model):
        is_recorded = adapt_data(data_module, str(config.model), "onnx", strict=strict)
        if not is_recorded and config.load_name is None:
            log_assumed_classes(data_module, str(config.model))


def _warn_of_other_names(config: RunConfig) -> None:
    """Warn if a saved graph was made from a different model or data set."""
    names = {"model": config.model, "dataset": config.dataset}
    saved = names_in(config.load_name, config.load_type)
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
    load_options = options_of(DATASETS[str(config.dataset)].load)
    takes_option = "standardize" in load_options
    if config.standardize != "auto" and takes_option:
        options["standardize"] = config.standardize == "own"
    task = TASK_NAMES.get(config.task, config.task)
    if task in ("reg", "dense") and "task" in load_options:
        options.setdefault("task", task)  # labels of a file may be classes or numbers
    data_module = MaseDataModule(
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
    if config.standardize != "auto" and not takes_option:
        _keep_scaler(data_module, is_raw=config.standardize == "off")
    return data_module


def _keep_scaler(data_module: MaseDataModule, *, is_raw: bool) -> None:
    """Let a data set that has no option for it be standardised as it is, or not at all."""
    from chop.dataset.facts import DataFacts

    neutral = _neutral_scaler(data_module.dataset_info)
    if not neutral:
        raise ValueError(
            f"data set {data_module.name!r} has no features to standardise; omit `standardize`"
        )
    if is_raw:
        data_module.adapt_to(DataFacts(data_module.name, scaler=neutral))
    data_module.keeps_scaler = True


def _neutral_scaler(info: MaseDatasetInfo) -> Scalers | None:
    """Return scalers that leave the features of a data set as they are; None without features."""
    from chop.dataset.facts import Scaler

    if info.num_features is not None:
        return Scaler.neutral(info.num_features)
    shapes = (info.input_shapes or {}).items()
    return {name: Scaler.neutral(shape[0]) for name, shape in shapes if len(shape) == 1} or None


def model_for(config: RunConfig, info: MaseDatasetInfo) -> tuple[nn.Module, MaseModelInfo]:
    """Return the model that the options name, built for the data set."""
    from chop.models import get_model, get_model_info

    name = str(config.model)
    quant_config = load_config(config.quant_config) if config.quant_config else None
    options = config.model_args | _sizes(config)
    with memory_for(f"build the model {name!r}", "choose a smaller one or smaller model_args"):
        model = get_model(
            name,
            task=config.task,
            dataset_info=info,
            pretrained=config.is_pretrained,
            quant_config=quant_config,
            **options,
        )
        model = as_in_file(model)
    return model, get_model_info(name)


def _sizes(config: RunConfig) -> dict[str, Any]:
    """Return the sizes of free dimensions of an ONNX file, as an option of its model."""
    if not config.size:
        return {}
    if not is_onnx_file(config.model):
        raise ConfigError("--size is the size of a dimension of an .onnx file; omit it")
    pairs = [text.rpartition("=")[::2] for text in config.size]
    wrong = [text for text, (name, size) in zip(config.size, pairs, strict=True)
             if not name or not size.strip().isdecimal()]  # fmt: skip
    if wrong:
        raise ConfigError(f"--size should be a name and a size, such as time=32, not {wrong[0]!r}")
    return {"sizes": {name.strip(): int(size) for name, size in pairs}}


def as_in_file(model: nn.Module) -> nn.Module:
    """Return a network that was read from an ONNX file, quantised to the formats of the file."""
    meta = getattr(model, "meta", None)
    if not meta:
        return model
    from chop.models.onnx_files import FORMATS, INPUTS

    if not meta.get(FORMATS):
        return model
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.passes import Pipeline

    tables = {name: {"config": config} for name, config in meta[FORMATS].items()}
    logger.info("Quantising %d nodes as the ONNX file does", len(tables))
    steps = [
        "init_metadata",
        ("add_common_metadata", {"dummy_in": meta[INPUTS], "add_value": False}),
        ("quantize", {"by": "name", **tables}),
    ]
    graph = Pipeline(steps)(MaseGraph(model))[0]  # type: ignore[arg-type]
    return graph.model
