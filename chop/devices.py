"""The device that an accelerator name selects."""

from __future__ import annotations

import re

import torch

from chop.registry import unknown

ACCELERATORS = ("auto", "cpu", "cuda", "cuda:N", "gpu", "mps")


def parse_accelerator(accelerator: str | torch.device = "auto") -> torch.device:
    """Return the device that an accelerator name selects; this machine must have it.

    >>> parse_accelerator("cpu")
    device(type='cpu')
    """
    device = accelerator if isinstance(accelerator, torch.device) else _device_named(accelerator)
    if device.type == "cuda":
        _refuse_missing_gpu(device, accelerator)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise RuntimeError(
            f"accelerator {str(accelerator)!r}: this machine has no Apple GPU; use 'cpu'"
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


def _refuse_missing_gpu(device: torch.device, asked: object) -> None:
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"accelerator {str(asked)!r}: torch {torch.__version__} finds no CUDA device; "
            f"use 'cpu', or 'auto' to use a GPU if count is one"
        )
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise RuntimeError(
            f"accelerator {str(asked)!r}: this machine has cuda:0 to cuda:{count - 1}"
        )
