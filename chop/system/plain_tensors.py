"""Safe reading of files that `torch.save` wrote, with reasons for what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def load_plain(file: Path) -> Any:
    """Read what `torch.save` wrote, to the CPU; torch raises an error for a file that runs code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about files of other programs; errors are more specific
        return torch.load(file, map_location="cpu", weights_only=True)


def why_unreadable(error: Exception) -> str:
    """Return the first sentence of torch's error, without its advice to allow the file's code."""
    sentence = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
    if "weights" in sentence.lower():
        return "reading it would run code from it, or it is in a format of old versions of torch"
    # other errors come from torch's code failing on unexpected bytes
    explains = isinstance(error, RuntimeError | OSError | ValueError) and " " in sentence
    return sentence if explains else "torch cannot read it"


def why_not_plain(tensor: Tensor) -> str | None:
    """Return why a tensor is not a plain array of numbers; None if it is."""
    reasons = {
        "is nested": tensor.is_nested,
        "is quantised": tensor.is_quantized,
        "is sparse": tensor.layout is not torch.strided,
        "has no values, as it is on the meta device": tensor.is_meta,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)
