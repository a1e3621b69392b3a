"""Helpers under the names that scripts and notebooks use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop import lazy
from chop.devices import parse_accelerator as parse_accelerator
from chop.ir.dotted import deepgetattr as deepgetattr
from chop.ir.dotted import deepsetattr as deepsetattr


def __getattr__(name: str) -> Any:
    home = lazy.names_of_methods("tools").get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def is_tensor(x: object) -> bool:
    return isinstance(x, Tensor)


def to_numpy(x: Tensor) -> np.ndarray:
    """Return the values of a tensor on any device, without its gradient."""
    return x.detach().cpu().numpy()


def to_numpy_if_tensor(x: Any) -> Any:
    return to_numpy(x) if is_tensor(x) else x


def to_tensor(x: Any) -> Tensor:
    """Return a tensor that shares the memory of an array."""
    return torch.from_numpy(x)


def to_tensor_if_numpy(x: Any) -> Any:
    return to_tensor(x) if isinstance(x, np.ndarray) else x


def copy_weights(src_weight: Tensor, tgt_weight: Tensor) -> None:
    """Copy the values of one parameter to another, without autograd."""
    with torch.no_grad():
        tgt_weight.copy_(src_weight)


def nested_dict_replacer(
    compound_dict: Mapping[str, Any], fn: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return a copy with `fn` applied to every value that is not a dictionary.

    >>> nested_dict_replacer({"a": 1, "b": {"c": 2}}, str)
    {'a': '1', 'b': {'c': '2'}}
    """
    return {
        key: nested_dict_replacer(value, fn) if isinstance(value, Mapping) else fn(value)
        for key, value in compound_dict.items()
    }


def get_factors(n: int) -> set[int]:
    """Return all divisors of `n`.

    >>> sorted(get_factors(12))
    [1, 2, 3, 4, 6, 12]
    """
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return {*small, *(n // i for i in small)}


def get_checkpoint_file(checkpoint_dir: str | Path) -> str:
    """Return the path of best.ckpt in a directory, or of the newest checkpoint if it is missing."""
    folder = Path(checkpoint_dir)
    if (folder / "best.ckpt").exists():
        return str(folder / "best.ckpt")
    files = sorted(folder.glob("*.ckpt"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise FileNotFoundError(
            f"no .ckpt file in {str(folder)!r}; give the directory of a training run"
        )
    return str(files[-1])
