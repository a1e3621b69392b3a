"""Checkpoints on disk: Lightning's layout, written whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.version import __version__

PREFIX = "model."  # Lightning files a wrapped model's parameters under its attribute


@dataclass
class Progress:
    """How far a run is; enough, with the weights, to go on as if nothing had happened."""

    epoch: int = 0
    step: int = 0  # optimiser steps in all
    step_in_epoch: int = 0
    best_loss: float = float("inf")
    best_epoch: int = -1

    @property
    def stale_epochs(self) -> int:
        """Finished epochs since the best one."""
        return self.epoch - 1 - self.best_epoch


@dataclass(frozen=True)
class Names:
    """File names of one run in a folder; a second run there gets `best-v1.ckpt` and so on."""

    folder: Path
    version: int = 0

    @classmethod
    def fresh(cls, folder: Path) -> Names:
        version = _latest(folder)
        return cls(folder, 0 if version is None else version + 1)

    @classmethod
    def latest(cls, folder: Path) -> Names | None:
        version = _latest(folder)
        return None if version is None else cls(folder, version)

    def __call__(self, stem: str, ending: str) -> Path:
        mark = f"-v{self.version}" if self.version else ""
        return self.folder / f"{stem}{mark}.{ending}"

    @property
    def best(self) -> Path:
        return self("best", "ckpt")

    @property
    def last(self) -> Path:
        return self("last", "ckpt")


def _latest(folder: Path) -> int | None:
    """The highest version of a run that has left a checkpoint in `folder`."""
    pattern = re.compile(r"(?:last|best)(?:-v(\d+))?\.ckpt")
    found = [pattern.fullmatch(p.name) for p in folder.glob("*.ckpt")]
    return max((int(m[1] or 0) for m in found if m), default=None)


def checkpoint(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    hyper_parameters: dict[str, Any],
    scaler: torch.amp.GradScaler | None,
) -> dict[str, Any]:
    """Everything that a run consists of, as Lightning lays it out; ours is under `mase`."""
    random = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        random["cuda"] = torch.cuda.get_rng_state()
    return {
        "epoch": progress.epoch,
        "global_step": progress.step,
        "pytorch-lightning_version": "2.0.0",  # the layout, for tools that ask
        "state_dict": {PREFIX + k: v for k, v in model.state_dict().items()},
        "loops": {},
        "callbacks": {},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
        "hyper_parameters": hyper_parameters,
        "mase": {
            "version": __version__,
            "progress": asdict(progress),
            "random": random,
            "scaler": scaler.state_dict() if scaler else None,
        },
    }


def write_atomically(content: dict[str, Any], file: Path) -> None:
    """Put `content` at `file`; if that fails, what was there before is still there."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as out:
            out.write(buffer.getbuffer())
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise OSError(
            f"cannot write the checkpoint {file}: {error.strerror or error}; the previous one is "
            f"untouched: free some space or choose another --project-dir, then --resume"
        ) from error


def restore(
    saved: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
) -> Progress:
    """Bring a run back to where `saved` was written."""
    model.load_state_dict({k.removeprefix(PREFIX): v for k, v in saved["state_dict"].items()})
    _restore_moments(optimizer, saved["optimizer_states"][0])
    ours = saved["mase"]
    if scaler is not None and ours["scaler"]:
        scaler.load_state_dict(ours["scaler"])
    torch.set_rng_state(ours["random"]["cpu"])
    if torch.cuda.is_available() and "cuda" in ours["random"]:
        torch.cuda.set_rng_state(ours["random"]["cuda"])
    return Progress(**ours["progress"])


def _restore_moments(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Take over what the optimiser has learnt; how it works here is this run's own affair."""
    own = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(saved)
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)
