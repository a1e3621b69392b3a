"""Helpers under the names that scripts and notebooks use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.dotted import deepgetattr, deepsetattr
from chop.registry import unknown

__all__ = [
    "copy_weights",
    "deepgetattr",
    "deepsetattr",
    "get_checkpoint_file",
    "get_factors",
    "is_tensor",
    "nested_dict_replacer",
    "parse_accelerator",
    "to_numpy",
    "to_numpy_if_tensor",
    "to_tensor",
    "to_tensor_if_numpy",
]

ACCELERATORS = ("auto", "cpu", "cuda", "cuda:N", "gpu", "mps")


def parse_accelerator(accelerator: str | torch.device = "auto") -> torch.device:
    """The device that an accelerator of the command line means, which this machine must have.

    >>> parse_accelerator("cpu")
    device(type='cpu')
    """
    device = accelerator if isinstance(accelerator, torch.device) else _device_named(accelerator)
    if device.type == "cuda":
        _refuse_missing_gpu(device, accelerator)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise RuntimeError(f"accelerator {str(accelerator)!r}: no Apple GPU here; take 'cpu'")
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
            f"accelerator {str(asked)!r}: torch {torch.__version__} finds no CUDA device here; "
            f"take 'cpu', or 'auto' for the GPU wherever there is one"
        )
    there = torch.cuda.device_count()
    if (device.index or 0) >= there:
        raise RuntimeError(
            f"accelerator {str(asked)!r}: this machine has cuda:0 to cuda:{there - 1}"
        )


def is_tensor(x: object) -> bool:
    return isinstance(x, Tensor)


def to_numpy(x: Tensor) -> np.ndarray:
    """The values of a tensor of any device, without its gradient."""
    return x.detach().cpu().numpy()


def to_numpy_if_tensor(x: Any) -> Any:
    return to_numpy(x) if is_tensor(x) else x


def to_tensor(x: Any) -> Tensor:
    """The tensor that shares the memory of an array."""
    return torch.from_numpy(x)


def to_tensor_if_numpy(x: Any) -> Any:
    return to_tensor(x) if isinstance(x, np.ndarray) else x


def copy_weights(src_weight: Tensor, tgt_weight: Tensor) -> None:
    """Write the values of one parameter into another, unseen by autograd."""
    with torch.no_grad():
        tgt_weight.copy_(src_weight)


def nested_dict_replacer(
    compound_dict: Mapping[str, Any], fn: Callable[[Any], Any]
) -> dict[str, Any]:
    """The same nesting with `fn` of every value that is no dictionary.

    >>> nested_dict_replacer({"a": 1, "b": {"c": 2}}, str)
    {'a': '1', 'b': {'c': '2'}}
    """
    return {
        key: nested_dict_replacer(value, fn) if isinstance(value, Mapping) else fn(value)
        for key, value in compound_dict.items()
    }


def get_factors(n: int) -> set[int]:
    """All the whole numbers that divide `n`.

    >>> sorted(get_factors(12))
    [1, 2, 3, 4, 6, 12]
    """
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return {*small, *(n // i for i in small)}


def get_checkpoint_file(checkpoint_dir: str | Path) -> str:
    """The best checkpoint of a training, or the newest if none is called best."""
    folder = Path(checkpoint_dir)
    if (folder / "best.ckpt").exists():
        return str(folder / "best.ckpt")
    files = sorted(folder.glob("*.ckpt"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise FileNotFoundError(f"no .ckpt file in {str(folder)!r}; name the folder of a training")
    return str(files[-1])
