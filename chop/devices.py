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
    if device.type == "cuda":
        _check_gpu(device, accelerator)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise MissingDevice(
            f"accelerator {str(accelerator)!r}: this machine does not have an Apple GPU; use 'cpu'"
        )
    return device


def _device_named(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if name in ("gpu", "cuda"):
        return torch.device("cuda:0")
    if re.fullmatch(r"cpu|mps|cuda:\d+", name):
        return torch.device(name)
    raise ValueError(unknown("accelerator", name, ACCELERATORS))


def _check_gpu(device: torch.device, accelerator: object) -> None:
    if not torch.cuda.is_available():
        raise MissingDevice(
            f"accelerator {str(accelerator)!r}: torch {torch.__version__} finds no CUDA device; "
            f"use 'cpu', or 'auto' to use a GPU if there is one"
        )
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise MissingDevice(
            f"accelerator {str(accelerator)!r}: this machine has cuda:0 to cuda:{count - 1}"
        )
