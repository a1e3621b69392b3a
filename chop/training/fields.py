"""The fields, with their types, that a checkpoint needs so that its run can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import torch
from annotated_types import Ge
from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError
from torch import Tensor

from chop.plain_tensors import why_not_plain
from chop.training.options import TrainOptions

START_FROM_WEIGHTS = "start from its weights with `load_name` and `load_type='pl'`"
Natural = Annotated[int, Ge(0)]
# the state of a parameter in torch's optimisers
MOMENTS = {
    "Adam": {"step", "exp_avg", "exp_avg_sq"},
    "AdamW": {"step", "exp_avg", "exp_avg_sq"},
    "SGD": {"momentum_buffer"},
}
COUNT = "step"  # the one of them that is a single number


@dataclass
class TrainingProgress:
    """How far a run has come, from which it resumes together with the weights."""

    epoch: Natural = 0
    step: Natural = 0  # optimiser steps in total
    step_in_epoch: Natural = 0
    best_loss: float = float("inf")
    best_accuracy: float | None = None
    best_epoch: Annotated[int, Ge(-1)] = -1

    @property
    def stale_epochs(self) -> int:
        """Number of finished epochs since the best one."""
        return self.epoch - 1 - self.best_epoch

    def is_at_limit(self, options: TrainOptions) -> bool:
        """Whether the epochs or the steps of `options` are done."""
        limit = 1 if options.fast_dev_run else options.max_steps
        return self.epoch >= options.max_epochs or (limit is not None and self.step >= limit)

    def is_out_of_patience(self, options: TrainOptions) -> bool:
        """Whether the loss has not improved for as many epochs as `options` allow."""
        patience = options.early_stopping
        return patience is not None and self.best_epoch >= 0 and self.stale_epochs >= patience

    def is_complete(self, options: TrainOptions) -> bool:
        """Whether a run with `options` has nothing left to train."""
        return self.is_at_limit(options) or self.is_out_of_patience(options)


FIELDS: Mapping[str, Any] = {
    "global_step": Natural,
    "state_dict": dict[str, Tensor],
    "hyper_parameters": dict[str, JsonValue],
    "optimizer_states.0.state": dict[int, dict[str, Tensor | float | None]],
    "optimizer_states.0.param_groups": list[dict[str, Any]],
    "mase.optimizer": str,
    **{
        f"mase.progress.{name}": kind
        for name, kind in get_type_hints(TrainingProgress, include_extras=True).items()
    },
    "mase.random.cpu": Tensor,
    "mase.scaler": dict[str, Any] | None,
}


def check_fields(saved: dict[str, Any], file: Path) -> None:
    """Refuse a checkpoint in which a field is missing or has the wrong type."""
    problem = next(filter(None, (_problem(saved, path) for path in FIELDS)), None)
    problem = problem or _unknown_progress(saved) or _wrong_random_state(saved)
    if problem is not None:
        raise ValueError(f"{file} cannot be resumed: {problem}; {START_FROM_WEIGHTS}")


def _problem(saved: dict[str, Any], path: str) -> str | None:
    value: Any = saved
    for key in path.split("."):
        try:
            value = value[int(key) if key.isdecimal() else key]
        except (KeyError, IndexError, TypeError):
            return f"{path} is missing"
    return _problem_of_kind(FIELDS[path], value, path)


def _problem_of_kind(kind: Any, value: Any, path: str) -> str | None:
    """Return pydantic's complaint about a value in one line; None if it is valid."""
    adapter = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        inside = "".join(f".{key}" for key in first["loc"][:1])
        return f"{path}{inside} {first['msg'].removeprefix('Input ')}"
    return None


def _unknown_progress(saved: dict[str, Any]) -> str | None:
    known = get_type_hints(TrainingProgress)
    unknown = [name for name in saved["mase"]["progress"] if name not in known]
    return f"mase.progress has the unknown field {unknown[0]!r:.40}" if unknown else None


def _wrong_random_state(saved: dict[str, Any]) -> str | None:
    state, now = saved["mase"]["random"]["cpu"], torch.get_rng_state()
    fits = state.dtype == now.dtype and state.shape == now.shape and state.layout == now.layout
    return None if fits else "mase.random.cpu is not a state of torch's random generator"


def check_moments(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Refuse the state of an optimiser that was saved for other parameters."""
    groups = optimizer.state_dict()["param_groups"]
    ours = [group["params"] for group in groups]
    theirs = [group.get("params") for group in saved["param_groups"]]
    problem = _problem_of_kind(list[list[int]], theirs, "param_groups")
    if problem is None and theirs != ours:
        problem = f"they are for {sum(map(len, theirs))} parameters, not {sum(map(len, ours))}"
    shapes = [p.shape for group in optimizer.param_groups for p in group["params"]]
    for index, moments in saved["state"].items():
        problem = problem or _problem_of_moments(optimizer, moments, index, shapes)
    if problem is not None:
        raise ValueError(
            f"optimizer_states of the resumed checkpoint do not match the run: {problem}; "
            f"{START_FROM_WEIGHTS}"
        )


def _problem_of_moments(
    optimizer: torch.optim.Optimizer, moments: Mapping[str, Any], index: int, shapes: list[Any]
) -> str | None:
    if not 0 <= index < len(shapes):
        return f"state.{index} does not belong to a parameter"
    needed = MOMENTS.get(type(optimizer).__name__)
    if needed is not None and moments.keys() != needed:
        return f"state.{index} has {sorted(moments)}, not {sorted(needed)}"
    for name, value in moments.items():
        if needed is None:  # an optimiser of the user's own
            shapes_of = (shapes[index], torch.Size([]))
            problem = _problem_of_moment(value, shapes_of) if isinstance(value, Tensor) else None
        elif not isinstance(value, Tensor):
            problem = "is not a tensor"
        elif value.is_complex() or value.dtype is torch.bool:
            problem = f"is of {str(value.dtype).removeprefix('torch.')}"
        else:
            shape = torch.Size([]) if name == COUNT else shapes[index]
            problem = _problem_of_moment(value, (shape,))
        if problem is not None:
            return f"state.{index}.{name} {problem}"
    return None


def _problem_of_moment(value: Tensor, shapes: tuple[torch.Size, ...]) -> str | None:
    """Return why a kernel cannot take a moment: it reads as many numbers as the parameter has."""
    if (reason := why_not_plain(value)) is not None:
        return reason
    return None if value.shape in shapes else f"has the shape {list(value.shape)}"
