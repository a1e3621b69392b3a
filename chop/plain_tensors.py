"""Files of `torch.save`: why one cannot be read, and which tensors are plain numbers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def load_plain(file: Path) -> Any:
    """Return the contents of a `torch.save` file on the CPU; torch raises for files with code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about files of other programs; errors say more
        return torch.load(file, map_location="cpu", weights_only=True)


def why_unreadable(error: Exception) -> str:
    """The first sentence of torch's error, without its advice to run the file's code."""
    sentence = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
    if "weights" in sentence.lower():
        return "reading it would run code from it, or its format is that of an old version of torch"
    # other errors come from torch's parser failing on unexpected bytes
    is_sentence = isinstance(error, RuntimeError | OSError | ValueError) and " " in sentence
    return sentence if is_sentence else "torch cannot read it"


def why_not_plain(tensor: Tensor) -> str | None:
    """Return what a tensor is instead of a plain array of numbers; None for a plain one."""
    if tensor.is_nested:
        return "is nested"
    if tensor.is_quantized:
        return "is quantised"
    if tensor.layout is not torch.strided:
        return "is sparse"
    if tensor.is_meta:
        return "has no values, as it is on the meta device"
    return None
