"""Functions of torch that trust their tensors, and what saved graphs call in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["CHECKED", "weight_norm", "weight_norm_and_norms", "why_no_lengths"]


def why_no_lengths(lengths: Tensor, directions: Tensor, dim: int) -> str | None:
    """Return why a weight norm cannot have these lengths, as the end of a sentence, or None.

    They are those of the parts of the directions along `dim`, or of all of them with -1.
    """
    rank = directions.ndim
    if dim != -1 and not 0 <= dim < rank:
        return f"are along dimension {dim}; it must be from 0 to {rank - 1}, or -1"
    wanted = [] if dim == -1 else [n if d == dim else 1 for d, n in enumerate(directions.shape)]
    if [*lengths.shape] != wanted or lengths.dtype != directions.dtype:
        shape, dtype = [*lengths.shape], lengths.dtype
        return f"are {shape} of {dtype}; they must be {wanted} of {directions.dtype}"
    return None


def _checked(lengths: Tensor, directions: Tensor, dim: int) -> None:
    if (reason := why_no_lengths(lengths, directions, dim)) is not None:
        raise ValueError(f"the lengths of a weight norm {reason}")


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Directions with other lengths, as `torch._weight_norm`, which does not check their shapes."""
    _checked(g, v, dim)
    result: Tensor = torch._weight_norm(v, g, dim)
    return result


def weight_norm_and_norms(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """The same with the lengths that the directions had, as `torch._weight_norm_interface`."""
    _checked(g, v, dim)
    result: tuple[Tensor, Tensor] = torch._weight_norm_interface(v, g, dim)
    return result


_ATEN = torch.ops.aten
CHECKED: Mapping[Any, Callable[..., Any]] = {
    torch._weight_norm: weight_norm,
    _ATEN._weight_norm: weight_norm,
    _ATEN._weight_norm.default: weight_norm,
    torch._weight_norm_interface: weight_norm_and_norms,
    _ATEN._weight_norm_interface: weight_norm_and_norms,
    _ATEN._weight_norm_interface.default: weight_norm_and_norms,
}
