"""The torch device for the name of an accelerator."""

from __future__ import annotations

import re

import torch

from chop.registry import unknown

ACCELERATORS = ("auto", "cpu", "cuda", "cuda:N", "gpu", "mps")


class MissingDevice(RuntimeError, ValueError):
    """An accelerator that this machine does not have."""


def parse_accelerator(accelerator: str | torch.device = "auto") -> torch.device:
    """Return the device for the name of an accelerator; refuse one that this machine lacks.

    >>> parse_accelerator("cpu")
    device(type='cpu')
    """
    device = accelerator if isinstance(accelerator, torch.device) else _device_named(accelerator)
    if (reason := _why_missing(device)) is not None:
        raise MissingDevice(f"accelerator {str(accelerator)!r}: {reason}")
    return device


def _device_named(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if name in ("gpu", "cuda"):
        return torch.device("cuda:0")
    if re.fullmatch(r"cpu|mps|cuda:\d+", name):
        return torch.device(name)
    raise ValueError(unknown("accelerator", name, ACCELERATORS))


def _why_missing(device: torch.device) -> str | None:
    """Return why this machine cannot use `device`; None if it can."""
    if device.type == "mps" and not torch.backends.mps.is_available():
        return "this machine does not have an Apple GPU; use 'cpu'"
    if device.type != "cuda":
        return None
    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} finds no CUDA device; use 'cpu', or 'auto' to use a GPU "
            f"if there is one"
        )
    count = torch.cuda.device_count()
    return f"this machine has cuda:0 to cuda:{count - 1}" if (device.index or 0) >= count else None
