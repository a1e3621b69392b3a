"""Models: each has a description (`MaseModelInfo`) and a function that builds it for a data set."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from chop.checkpoints import load_model
from chop.dataset.base import TASK_NAMES, MaseDatasetInfo
from chop.files import is_onnx_file
from chop.models.info import ABILITIES, TASKS, MaseModelInfo, ModelSource, ModelTaskType
from chop.options import Option, Options, options_of, takes_any
from chop.registry import Registry, UnknownName, identity, unknown

logger = logging.getLogger(__name__)

Build = Callable[..., nn.Module]
B = TypeVar("B", bound=Build)

INFO_NAMES = ("info", "dataset_info")  # names of the builder's parameter for the data set
# flag of a model -> the attribute that a matching data set has, and a description of such data
INPUTS = {
    "physical_data_point_classification": ("num_features", "rows of features"),
    "image_classification": ("image_size", "images"),
    "image_segmentation": ("image_size", "images"),
}
# task -> the attribute with the number of outputs
OUTPUTS = {"cls": "num_classes", "dense": "num_classes", "reg": "num_targets"}
# flags of tasks that a model supports besides classification
ADDED_TASKS = {"regression", "image_segmentation"}


class UnknownModel(UnknownName, ValueError):
    """An unknown model name; scripts may catch it as either of its base classes."""


@dataclass(frozen=True)
class ModelSpec:
    """`build(info, *, …)`; its keyword parameters are the options of the model."""

    info: MaseModelInfo
    build: Build

    def make(
        self, data: MaseDatasetInfo | None, *, pretrained: bool, options: Mapping[str, Any]
    ) -> nn.Module:
        """Build the model for `data`, after checking that they match."""
        parameters = inspect.signature(self.build).parameters
        takes_more = takes_any(self.build)
        owner = f"model {self.info.name!r}"
        arguments = Options(owner, self.options, takes_any=takes_more).check(options)
        if "pretrained" in parameters:
            arguments["pretrained"] = pretrained
        elif pretrained:
            raise ValueError(
                f"MASE has no published weights for model {self.info.name!r}; "
                f"load your own with `checkpoint`"
            )
        info_name = next((name for name in INFO_NAMES if name in parameters), None)
        if info_name or takes_more:
            self._check_data(data)
            arguments[info_name or "dataset_info"] = data
        try:
            return self.build(**arguments)
        except TypeError as error:
            if data is None or not (missing := _missing_facts(data, error)):
                raise
            raise ValueError(
                f"data set {data.name!r} has {_input(data)} and no {' or '.join(missing)}, which "
                f"{owner} uses; build the model from info.input_shapes, or use data in one array x"
            ) from error

    @property
    def options(self) -> dict[str, Option]:
        """What users can choose about the model."""
        parameters = options_of(self.build).items()
        return {k: v for k, v in parameters if k not in (*INFO_NAMES, "pretrained")}

    def _check_data(self, data: MaseDatasetInfo | None) -> None:
        owner = f"model {self.info.name!r}"
        if not isinstance(data, MaseDatasetInfo):
            raise TypeError(
                f"{owner} needs dataset_info, such as get_dataset_info('jsc'); got {data!r}"
            )
        any_input = self.info.regression and data.num_targets  # numbers are predicted from either
        needed = [
            needed for flag, needed in INPUTS.items() if any_input or getattr(self.info, flag)
        ]
        inputs = list(dict.fromkeys(needed)) if data.input_shapes is None else []
        if inputs and not any(getattr(data, attribute) for attribute, _ in inputs):
            wanted = " or ".join(f"{words} ({attribute})" for attribute, words in inputs)
            hint = ""
            if data.image_size and not self.build.__module__.startswith("chop."):
                hint = '; if it takes images, register it with @model(…, task_type="vision")'
            raise ValueError(
                f"{owner} takes {wanted}, but data set {data.name!r} has {_input(data)}{hint}"
            )
        facts = {OUTPUTS[task]: None for task in self.info.tasks if task in OUTPUTS}
        if facts and not data.num_outputs:
            raise ValueError(
                f"{owner} needs {' or '.join(facts)}, but data set {data.name!r} has none"
            )


def _missing_facts(data: MaseDatasetInfo, error: TypeError) -> list[str]:
    """Return the facts that data with named inputs lack, and that a failed builder mentions.

    Builders that pass such a None to torch fail in many ways, and all of them name its type.
    """
    if data.input_shapes is None or "None" not in str(error):
        return []
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][1:]
    codes = [f.f_code for f in frames if any(v is data for v in f.f_locals.values())]
    mentioned = {word for code in codes for word in (*code.co_names, *code.co_consts)}
    facts = dict.fromkeys(attribute for attribute, _ in INPUTS.values())
    return [fact for fact in facts if fact in mentioned and getattr(data, fact) is None]


def _input(data: MaseDatasetInfo) -> str:
    if data.input_shapes:
        return f"the input{'s' * (len(data.input_shapes) > 1)} {', '.join(data.input_shapes)}"
    if data.image_size:
        return f"images of {' x '.join(map(str, data.image_size))}"
    if data.num_features:
        return f"{data.num_features} features"
    return "neither; set it, or input_shapes for several inputs, in its MaseDatasetInfo"


MODELS: Registry[ModelSpec] = Registry("model", "chop.models", room="models", for_users=True)


def _file(spec: ModelSpec, *aliases: str, again: bool = False) -> None:
    """Register `spec`; a builder that is defined again, as in a notebook cell, replaces itself."""
    for name in (spec.info.name, *aliases):
        # `in` imports a model of the package with this name, so that a clash is reported here
        registered = MODELS[name].build if name in MODELS else None
        same = identity(registered) == identity(spec.build)
        MODELS.register(name, replace=again or same)(spec)


def model(
    name: str,
    *aliases: str,
    task_type: ModelTaskType | str = ModelTaskType.PHYSICAL,
    model_source: ModelSource | str = ModelSource.MANUAL,
    is_fx_traceable: bool = True,
    **flags: bool,
) -> Callable[[B], B]:
    """Register `build(info, *, …) -> nn.Module` as the model `name`.

    `flags` are those of `MaseModelInfo`; by default, the model classifies data of its task type.
    `regression` and `image_segmentation` add to that; another flag of a task replaces it.
    """
    flags = _with_classification(task_type, flags) | {"is_fx_traceable": is_fx_traceable}
    return register_mase_model(
        name, aliases, model_source=model_source, task_type=task_type, **flags
    )


def _with_classification(task_type: ModelTaskType | str, flags: dict[str, bool]) -> dict[str, bool]:
    """Return `flags` with the classification of the task type, unless they choose other tasks."""
    abilities = ABILITIES.get(task_type, ())
    choices = {*TASKS["cls"], *abilities} - ADDED_TASKS
    return flags if choices & flags.keys() else dict.fromkeys(abilities[:1], True) | flags


def register_mase_model(
    name: str,
    checkpoints: Iterable[str] = (),
    *,
    model_source: ModelSource | str,
    task_type: ModelTaskType | str,
    **flags: bool,
) -> Callable[[B], B]:
    """Register a class or function that builds the model `name`, also known by `checkpoints`."""
    known = [field.name for field in fields(MaseModelInfo) if field.default is False]
    for flag in flags:
        if flag not in known:
            raise UnknownName(f"flag of model {name!r}:", flag, known)
    info = MaseModelInfo(name, model_source, task_type, **flags)

    def add(build: B) -> B:
        _file(ModelSpec(info, build), *checkpoints)
        return build

    return add


def register_mase_checkpoint(checkpoint: str) -> Callable[[B], B]:
    """Register the builder of `checkpoint`, which a registered model has listed."""

    def add(build: B) -> B:
        info = get_model_info(checkpoint)
        MODELS.register(checkpoint, replace=True)(ModelSpec(info, build))
        return build

    return add


class ModelFamily(MutableMapping[str, dict[str, Any]]):
    """The models of one kind as the dict that the labs use: {name: {"model": …, "info": …}}."""

    def __init__(self, title: str, has: Callable[[MaseModelInfo], bool]) -> None:
        self._title, self._has = title, has

    def _mine(self) -> dict[str, ModelSpec]:
        return {name: spec for name, spec in MODELS.items() if self._has(spec.info)}

    def __getitem__(self, name: str) -> dict[str, Any]:
        mine = self._mine()
        if name not in mine:
            raise UnknownModel(self._title, name, sorted(mine))
        return {"model": mine[name].build, "info": mine[name].info}

    def __setitem__(self, name: str, entry: Mapping[str, Any]) -> None:
        if not isinstance(entry, Mapping) or entry.keys() != {"model", "info"}:
            raise ValueError(
                f"{self._title} {name!r} must be {{'model': builder, 'info': "
                f"MaseModelInfo(…)}}; got {entry!r}"
            )
        if not isinstance(entry["info"], MaseModelInfo):
            raise TypeError(f"the info of {name!r} must be MaseModelInfo(…), not {entry['info']!r}")
        # the labs copy the info of another model with its name; the key is the right name
        info = replace(entry["info"], name=name)
        if not self._has(info):
            raise ValueError(
                f"{name!r} is not a {self._title}: its info has model_source="
                f"{info.model_source!s}, task_type={info.task_type!s}"
            )
        _file(ModelSpec(info, entry["model"]), again=True)

    def __delitem__(self, name: str) -> None:
        self[name]
        del MODELS._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mine())

    def __len__(self) -> int:
        return len(self._mine())

    def __repr__(self) -> str:
        return f"<{self._title}s: {', '.join(sorted(self))}>"


def _find(name: str | None) -> ModelSpec:
    if name is not None and is_onnx_file(name):
        from chop.models.onnx_files import build_onnx, onnx_info

        return ModelSpec(onnx_info(name), functools.partial(build_onnx, name))
    if name is None or name not in MODELS:
        raise UnknownModel("model", name, sorted(MODELS), MODELS.advice)
    return MODELS[name]


def get_model_info(name: str) -> MaseModelInfo:
    """Return the description of the model `name`."""
    return _find(name).info


def get_model(
    name: str | None = None,
    task: str = "cls",
    dataset_info: MaseDatasetInfo | None = None,
    pretrained: bool = False,
    checkpoint: str | Path | None = None,
    quant_config: Mapping[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    """Build the model `name` for a data set, with random weights or those in `checkpoint`.

    `options` are those of the model. Older scripts may pass the name of the model as `checkpoint`.
    """
    if name is None and checkpoint is not None:
        name, checkpoint = str(checkpoint), None
    spec = _find(name)
    _check_task(spec.info, task)
    if quant_config is not None:
        options["quant_config"] = quant_config
    if pretrained and checkpoint is not None:
        logger.warning("pretrained is ignored: the weights come from %s", checkpoint)
        pretrained = False
    built = spec.make(dataset_info, pretrained=pretrained, options=options)
    if not isinstance(built, nn.Module):
        raise ValueError(
            f"the builder of model {spec.info.name!r} returned {built!r}, not a module; "
            f"add a return statement"
        )
    if checkpoint is not None:
        load_model(checkpoint, "auto", built)
    return built


def _check_task(info: MaseModelInfo, task: str) -> None:
    short = TASK_NAMES.get(task, task)
    if short not in TASKS:
        raise ValueError(unknown("task", task, [*TASKS, *TASK_NAMES]))
    if short not in info.tasks:
        abilities = ABILITIES.get(info.task_type, ())
        flag = next((flag for flag in TASKS[short] if flag in abilities), TASKS[short][0])
        raise ValueError(
            f"model {info.name!r} supports {', '.join(info.tasks) or 'no task'}, not {task}; "
            f"if it is yours, register it with {flag}=True"
        )


def get_tokenizer(name: str, checkpoint: str | Path | None = None) -> Any:
    """Return the tokenizer of a language model."""
    info = get_model_info(name)
    if not info.is_nlp_model:
        raise ValueError(
            f"model {name!r} has no tokenizer, as its data are of type {info.task_type!s}"
        )
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        from chop.extras import install_command

        raise ImportError(f"tokenizers need transformers: {install_command('hf')}") from error
    return transformers.AutoTokenizer.from_pretrained(str(checkpoint or name))
