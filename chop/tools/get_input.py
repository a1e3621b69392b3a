"""Batches of a data module as the keyword arguments of a model: `model(**batch)`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from chop.dataset.base import LABELLED, TASK_NAMES
from chop.dataset.matching import named_inputs
from chop.dataset.nested import on_device, pair_of
from chop.models.info import MaseModelInfo
from chop.registry import unknown

LOADERS = ("train", "val", "test")
TEXT = ("input_ids", "attention_mask", "token_type_ids", "labels")
# inputs of a language model for each task; those that a sample lacks are omitted
TEXT_INPUTS = {
    "cls": TEXT,
    "lm": TEXT,
    "tran": ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask"),
}


class InputGenerator:
    """Yields `{"x": batch}`, or the named inputs of a language model; `iter` starts again.

    With `model`, inputs have the names of the parameters of its `forward`.
    """

    def __init__(
        self,
        model_info: MaseModelInfo | None,
        data_module: Any,
        task: str,
        which_dataloader: str,
        max_batches: int | None = None,
        *,
        model: nn.Module | None = None,
    ) -> None:
        if which_dataloader not in LOADERS:
            raise ValueError(unknown("dataloader", which_dataloader, LOADERS))
        if max_batches is not None and max_batches < 1:
            raise ValueError(f"max_batches must be at least 1, or None for all, not {max_batches}")
        self.model_info, self.task = model_info, _checked(task, model_info)
        self.max_batches, self.model = max_batches, model
        self.batch_size = data_module.batch_size
        self.dataloader = getattr(data_module, f"{which_dataloader}_dataloader")()
        self.current_batch = 0
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> InputGenerator:
        self._batches, self.current_batch = iter(self.dataloader), 0
        return self

    def __next__(self) -> dict[str, Any]:
        if self._batches is None:
            iter(self)
        if self.current_batch == self.max_batches:
            raise StopIteration
        assert self._batches is not None
        batch = next(self._batches)
        self.current_batch += 1
        return _inputs(self.model_info, self.task, batch, self.model)


def get_dummy_input(
    model_info: MaseModelInfo | None,
    data_module: Any,
    task: str,
    device: str | torch.device = "meta",
    *,
    model: nn.Module | None = None,
) -> dict[str, Any]:
    """Return the first training batch (for text, one sample) on `device`, as model arguments.

    Inputs have the names of the parameters of the `forward` of `model`: those of a dictionary are
    matched by name, others by position. Without a model, the name is `x`.
    On the default device, `meta`, tensors have no values; use `"cpu"` to get them.
    """
    if data_module.train_dataset is None:
        raise ValueError("the data module holds no data yet; call its prepare_data() and setup()")
    task = _checked(task, model_info)
    if _is_text(model_info):
        sample = _inputs(model_info, task, data_module.train_dataset[0], model)
        inputs = {name: torch.as_tensor(value)[None] for name, value in sample.items()}
    else:
        inputs = _inputs(model_info, task, next(iter(data_module.train_dataloader())), model)
    return dict(on_device(inputs, device))


def get_cf_args(model_info: MaseModelInfo | None, task: str, model: nn.Module) -> dict[str, Any]:
    """Return the arguments of `forward` that tracing fixes, as it cannot branch on them."""
    patched = getattr(model, "patched_nodes", None)
    if patched:
        return dict(patched["concrete_forward_args"])
    if not _is_text(model_info):
        return {}
    inputs = TEXT_INPUTS[_checked(task, model_info)]
    return {
        name: parameter.default
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if name not in inputs and parameter.default is not inspect.Parameter.empty
    }


def _is_text(model_info: MaseModelInfo | None) -> bool:
    """Whether the model reads text; one without a description takes images or features."""
    return model_info is not None and model_info.is_nlp_model


def _checked(task: str, model_info: MaseModelInfo | None) -> str:
    """Return the short name of a task that the model supports."""
    known = TEXT_INPUTS if _is_text(model_info) else LABELLED
    short = TASK_NAMES.get(task, task)
    if short not in known:
        raise ValueError(unknown("task", task, known))
    return short


def _inputs(
    model_info: MaseModelInfo | None, task: str, batch: Any, model: nn.Module | None
) -> dict[str, Any]:
    """Return the inputs of a batch by the names of the parameters of `forward`."""
    if not _is_text(model_info):
        return named_inputs(model, pair_of(batch)[0])
    assert isinstance(batch, Mapping)
    return {name: batch[name] for name in TEXT_INPUTS[task] if name in batch}
