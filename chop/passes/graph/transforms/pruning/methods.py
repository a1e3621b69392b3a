"""How much each part of a weight matters, and which parts matter least."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from chop.registry import Registry

# The score of each row of a matrix; rows are what is pruned as one: elements, channels
Method = Callable[[Tensor, Generator], Tensor]
METHODS: Registry[Method] = Registry("pruning method")


@METHODS.register("random")
def random_scores(rows: Tensor, generator: Generator) -> Tensor:
    """Each row a random number, drawn on the CPU, so that they are the same on any device."""
    return torch.rand(len(rows), generator=generator).to(rows.device)


@METHODS.register("l1-norm")
def l1_scores(rows: Tensor, generator: Generator) -> Tensor:
    """Mean absolute value, comparable between layers whose rows differ in length."""
    return rows.abs().squeeze(1) if rows.shape[1] == 1 else rows.abs().mean(1)


@METHODS.register("l2-norm")
def l2_scores(rows: Tensor, generator: Generator) -> Tensor:
    """Root mean square; of single elements the absolute value, without squares that underflow."""
    if rows.shape[1] == 1:
        return l1_scores(rows, generator)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms / math.sqrt(rows.shape[1])


def generator_for(seed: int, target: str) -> Generator:
    """Random numbers of one layer, which do not depend on the other layers."""
    return Generator().manual_seed(zlib.crc32(f"{seed} {target}".encode()))


def share(sparsity: float, size: int) -> int:
    """How many of `size` things are pruned, to the nearest.

    >>> share(0.5, 9), share(0.0, 9), share(1.0, 9)
    (4, 0, 9)
    """
    return round(sparsity * size)


def smallest(scores: Tensor, count: int) -> Tensor:
    """Marks exactly `count` of the smallest scores along the last dimension; of equals the first.

    >>> smallest(torch.tensor([3, 1, 1, 1]), 2)
    tensor([False,  True,  True, False])
    """
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    limit = scores.kthvalue(count, dim=-1, keepdim=True).values
    below, equal = scores < limit, scores == limit
    missing = count - below.sum(-1, keepdim=True)
    return below | (equal & (equal.cumsum(-1) <= missing))
