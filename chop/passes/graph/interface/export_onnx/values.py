"""What a node of the graph has become in an ONNX file: a value, a size, or a constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.ir.nested import contents
from chop.ir.ops import has_trait

__all__ = [
    "BATCHES",
    "DTYPES",
    "DynamicSize",
    "ExportError",
    "OnnxSize",
    "OnnxTensor",
    "TensorFacts",
    "as_array",
    "merged_facts",
    "with_leaves",
]

DTYPES: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}


BATCHES = (2, 3)  # with which a graph is run to see what depends on the batch


class ExportError(ValueError):
    """A network, or a part of it, that cannot be written to a file of this format."""


@dataclass(frozen=True)
class TensorFacts:
    """The dtype and the shape of a tensor; a size that depends on the batch is None."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]
    batch_dims: frozenset[int] = frozenset()  # those of unknown sizes that are the batch itself


@dataclass(frozen=True)
class DynamicSize:
    """Stands for an integer that depends on the batch."""


@dataclass(frozen=True)
class OnnxTensor:
    """A tensor in the file, by its name."""

    name: str
    facts: TensorFacts


@dataclass(frozen=True)
class OnnxSize:
    """An integer that is computed in the file, as an int64 tensor without dimensions."""

    name: str


def merged_facts(first: Any, second: Any) -> Any:
    """Return what two runs with different batches have in common."""
    if isinstance(first, TensorFacts) and isinstance(second, TensorFacts):
        pairs = list(zip(first.shape, second.shape, strict=True))
        batch = frozenset(place for place, pair in enumerate(pairs) if pair == BATCHES)
        return TensorFacts(first.dtype, tuple(a if a == b else None for a, b in pairs), batch)
    inside = contents(first) if isinstance(first, list | tuple | dict) else None
    if inside is not None and type(first) is type(second) and len(first) == len(second):
        others = contents(second) or {}
        merged = {key: merged_facts(item, others[key]) for key, item in inside.items()}
        return merged if isinstance(first, dict) else tuple(merged.values())
    is_size = isinstance(first, int) and isinstance(second, int) and not isinstance(first, bool)
    return DynamicSize() if is_size and first != second else first


def with_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested lists, tuples, dicts and slices with `change` applied to what is in them."""
    if isinstance(value, dict):
        return {key: with_leaves(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(with_leaves(item, change) for item in value)
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return slice(*(with_leaves(item, change) for item in parts))
    return change(value)


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as an array that a file can hold."""
    tensor = tensor.detach().cpu()
    if tensor.dtype not in DTYPES:
        raise ExportError(
            f"has a constant of {tensor.dtype}, which a file does not hold; convert the model to "
            f"float32 first"
        )
    return tensor.contiguous().numpy()


def is_fact(op: str) -> bool:
    """Return whether an op gives facts of a tensor, which do not depend on its numbers."""
    return has_trait(op, "sizes") or op in ("is_floating_point", "is_complex", "get_device")
