"""Weights from a file into a model; no pickled code is ever run."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

logger = logging.getLogger(__name__)

WRAPPERS = ("state_dict", "model")  # keys under which files keep the state dict beside other things
MAX_NAMED = 3


def load_weights(model: nn.Module, file: str | Path) -> None:
    """Fill `model` with the state dict in `file`; every tensor of both must have its partner."""
    weights = read_state_dict(file)
    problems = mismatches(model, weights)
    if problems:
        raise ValueError(f"{file} does not fit the model: {'; '.join(problems)}")
    model.load_state_dict(weights)
    logger.info("Loaded weights from %s", file)


def read_state_dict(file: str | Path) -> dict[str, Tensor]:
    """The tensors by name in a `.safetensors` file or in one that `torch.save` has written."""
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"no file {str(file)!r} to load weights from")
    try:
        content: Any = _read(path)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{file} is damaged or holds more than tensors, and pickled code is never run; "
            f"write it with torch.save(model.state_dict(), file)"
        ) from error
    except (SafetensorError, RuntimeError, EOFError) as error:
        raise ValueError(f"{file} cannot be read as weights: {error}") from error
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(f"{file} holds no state dict, which is tensors by name")
    return dict(content)


def _read(path: Path) -> object:
    if path.suffix == ".safetensors":
        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def mismatches(model: nn.Module, weights: dict[str, Tensor]) -> list[str]:
    """What keeps `weights` from being the weights of `model`, in a few words each."""
    own = model.state_dict()
    shapes = [
        f"{name} is {list(weights[name].shape)} there and {list(own[name].shape)} here"
        for name in own.keys() & weights.keys()
        if own[name].shape != weights[name].shape
    ]
    parts = {
        "missing": [name for name in own if name not in weights],
        "unexpected": [name for name in weights if name not in own],
        "other shapes": sorted(shapes),
    }
    return [f"{what}: {_some(names)}" for what, names in parts.items() if names]


def _some(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
