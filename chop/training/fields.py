"""What a checkpoint has to hold so that its run can go on: every field, with its type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import torch
from annotated_types import Ge
from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError
from torch import Tensor

from chop.training.options import TrainOptions

Natural = Annotated[int, Ge(0)]
# the state of a parameter in torch's own optimisers
MOMENTS = {
    "Adam": {"step", "exp_avg", "exp_avg_sq"},
    "AdamW": {"step", "exp_avg", "exp_avg_sq"},
    "SGD": {"momentum_buffer"},
}


@dataclass
class TrainingProgress:
    """How far a run is; enough, with the weights, to go on as if nothing had happened."""

    epoch: Natural = 0
    step: Natural = 0  # optimiser steps in all
    step_in_epoch: Natural = 0
    best_loss: float = float("inf")
    best_accuracy: float | None = None
    best_epoch: Annotated[int, Ge(-1)] = -1

    @property
    def stale_epochs(self) -> int:
        """Finished epochs since the best one."""
        return self.epoch - 1 - self.best_epoch

    def is_at_limit(self, options: TrainOptions) -> bool:
        """Whether the epochs or the steps of `options` are done."""
        limit = 1 if options.fast_dev_run else options.max_steps
        return self.epoch >= options.max_epochs or (limit is not None and self.step >= limit)

    def is_out_of_patience(self, options: TrainOptions) -> bool:
        """Whether the loss has not fallen for as many epochs as `options` allow."""
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
    """Refuse a checkpoint in which a field is missing or of another kind."""
    problem = next(filter(None, (_problem(saved, path) for path in FIELDS)), None)
    problem = problem or _unknown_progress(saved) or _odd_random_state(saved)
    if problem is not None:
        raise ValueError(
            f"{file} cannot be resumed: {problem}; use --load {file} --load-type pl to start from "
            f"its weights"
        )


def _problem(saved: dict[str, Any], path: str) -> str | None:
    value: Any = saved
    for key in path.split("."):
        try:
            value = value[int(key) if key.isdecimal() else key]
        except (KeyError, IndexError, TypeError):
            return f"{path} is missing"
    return _problem_of_kind(FIELDS[path], value, path)


def _problem_of_kind(kind: Any, value: Any, path: str) -> str | None:
    """What pydantic says about a value, in one line."""
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
    odd = [name for name in saved["mase"]["progress"] if name not in known]
    return f"mase.progress has the unknown field {odd[0]!r:.40}" if odd else None


def _odd_random_state(saved: dict[str, Any]) -> str | None:
    state, own = saved["mase"]["random"]["cpu"], torch.get_rng_state()
    fits = state.dtype == own.dtype and state.shape == own.shape and state.layout == own.layout
    return None if fits else "mase.random.cpu is not a state of torch's random numbers"


def check_moments(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Refuse what an optimiser has learnt if it was not for these parameters."""
    groups = optimizer.state_dict()["param_groups"]
    own = [group["params"] for group in groups]
    theirs = [group.get("params") for group in saved["param_groups"]]
    problem = _problem_of_kind(list[list[int]], theirs, "param_groups")
    if problem is None and theirs != own:
        problem = f"they are of {sum(map(len, theirs))} parameters, not {sum(map(len, own))}"
    shapes = [p.shape for group in optimizer.param_groups for p in group["params"]]
    for index, moments in saved["state"].items():
        problem = problem or _problem_of_moments(optimizer, moments, index, shapes)
    if problem is not None:
        raise ValueError(
            f"optimizer_states of the resumed checkpoint do not match the run: {problem}; "
            f"start from its weights with --load and --load-type pl"
        )


def _problem_of_moments(
    optimizer: torch.optim.Optimizer, moments: Mapping[str, Any], index: int, shapes: list[Any]
) -> str | None:
    if not 0 <= index < len(shapes):
        return f"state.{index} is of no parameter"
    needed = MOMENTS.get(type(optimizer).__name__)
    if needed is not None and moments.keys() != needed:
        return f"state.{index} has {sorted(moments)}, not {sorted(needed)}"
    for name, value in moments.items():
        if needed is not None and not isinstance(value, Tensor):
            return f"state.{index}.{name} is not a tensor"
        if isinstance(value, Tensor) and value.shape not in (shapes[index], torch.Size([])):
            return f"state.{index}.{name} has the shape {list(value.shape)}"
    return None
