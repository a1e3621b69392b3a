"""Files that `torch.save` wrote: why one cannot be read, and which tensors are plain numbers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def load_plain(file: Path) -> Any:
    """What `torch.save` wrote, on the CPU; a file that would run code raises an error of torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about files of other programs; the errors say more
        return torch.load(file, map_location="cpu", weights_only=True)


def why_unreadable(error: Exception) -> str:
    """Return the first sentence of what torch says; its advice, to run the file's code, is not."""
    sentence = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
    if "weights" in sentence.lower():
        return "reading it would run code from it, or it is in a format of old versions of torch"
    # other errors are those of torch's own code, tripping over bytes that it did not expect
    said = isinstance(error, RuntimeError | OSError | ValueError) and " " in sentence
    return sentence if said else "torch cannot read it"


def why_not_plain(tensor: Tensor) -> str | None:
    """What a tensor is instead of an array of numbers; None for one that is."""
    if tensor.is_nested:
        return "is nested"
    if tensor.is_quantized:
        return "is quantised"
    if tensor.layout is not torch.strided:
        return "is sparse"
    if tensor.is_meta:
        return "has no values, as it is on the device meta"
    return None
