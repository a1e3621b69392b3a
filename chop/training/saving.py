"""Checkpoints in Lightning's layout, written atomically."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.checkpoints import check_fits, fill, read_torch_file
from chop.system.files import write_whole
from chop.training.fields import (
    COUNT,
    START_FROM_WEIGHTS,
    TrainingProgress,
    check_fields,
    check_moments,
)
from chop.version import __version__

SOURCE = "the resumed checkpoint"
PREFIX = "model."  # Lightning prefixes the parameters of a wrapped model with its attribute
FULL = (
    "the previous checkpoint is untouched: free some space or choose another `save_path`, "
    "then `resume`"
)


def checkpoint(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: TrainingProgress,
    hyper_parameters: dict[str, Any],
    scaler: torch.amp.GradScaler | None,
    trained_on: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the complete state of a run in Lightning's layout; our additions are in `mase`.

    `trained_on` are the facts about the data that a user of the weights needs.
    """
    random = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        random["cuda"] = torch.cuda.get_rng_state()
    return {
        "epoch": progress.epoch,
        "global_step": progress.step,
        "pytorch-lightning_version": "2.0.0",  # of the layout, for other tools
        "state_dict": {PREFIX + k: v for k, v in model.state_dict().items()},
        "loops": {},
        "callbacks": {},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
        "hyper_parameters": hyper_parameters,
        "mase": {
            "version": __version__,
            "optimizer": type(optimizer).__name__,
            "progress": asdict(progress),
            "random": random,
            "scaler": scaler.state_dict() if scaler else None,
            "trained_on": trained_on,
        },
    }


def write_atomically(content: dict[str, Any], file: Path) -> None:
    """Write `content` to `file`; if that fails, the previous file is unchanged."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_whole(file, buffer.getbuffer(), advice=FULL)


def read_run(file: Path) -> dict[str, Any]:
    """Read a checkpoint from which a run can be resumed."""
    saved = read_torch_file(file)
    if not isinstance(saved, dict) or "mase" not in saved:
        raise ValueError(
            f"{file} cannot be resumed: it was not written by MASE; {START_FROM_WEIGHTS}"
        )
    check_fields(saved, file)
    return saved


def restore(
    saved: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
) -> TrainingProgress:
    """Restore the state of a run, and return its progress."""
    ours, now = saved["mase"], type(optimizer).__name__
    if ours["optimizer"] != now:
        raise ValueError(
            f"the resumed run was trained with {ours['optimizer']}, not {now}; "
            f"resume it with the same `optimizer`"
        )
    weights = {k.removeprefix(PREFIX): v for k, v in saved["state_dict"].items()}
    check_fits(model, weights, SOURCE)
    check_moments(optimizer, saved["optimizer_states"][0])
    fill(model, weights, SOURCE)
    _restore_moments(optimizer, saved["optimizer_states"][0])
    if scaler is not None and ours["scaler"]:
        _restore_scaler(scaler, ours["scaler"])
    torch.set_rng_state(ours["random"]["cpu"])
    if torch.cuda.is_available() and "cuda" in ours["random"]:
        torch.cuda.set_rng_state(ours["random"]["cuda"])
    return TrainingProgress(**ours["progress"])


def _restore_scaler(scaler: torch.amp.GradScaler, saved: dict[str, Any]) -> None:
    try:
        scaler.load_state_dict(saved)
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"mase.scaler of the resumed checkpoint does not match the run ({error}); "
            f"{START_FROM_WEIGHTS}"
        ) from error


def _restore_moments(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Restore the moments of the optimiser, but keep the options of this run."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        index: {
            name: value if name == COUNT else _laid_out_like(parameters[index], value)
            for name, value in moments.items()
        }
        for index, moments in saved["state"].items()
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _laid_out_like(parameter: torch.Tensor, value: Any) -> Any:
    """Return a moment in memory of its own: a fused kernel goes through both in one order."""
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
