"""Importance scores of the parts of a weight, and selection of the least important."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Generator, Tensor, nn

from chop.passes.base import PassArgsError
from chop.passes.graph.transforms.pruning.movement import follows_movement, movement_name
from chop.passes.graph.transforms.pruning.weights import weight_names
from chop.registry import Registry

# Returns the score of each row of a matrix; a row is pruned as one: an element, a channel
Method = Callable[[Tensor, Generator], Tensor]
METHODS: Registry[Method] = Registry("pruning method")


@METHODS.register("random")
def random_scores(rows: Tensor, generator: Generator) -> Tensor:
    """A random number per row, drawn on the CPU to be the same on any device."""
    return torch.rand(len(rows), generator=generator).to(rows.device)


@METHODS.register("l1-norm")
def l1_scores(rows: Tensor, generator: Generator) -> Tensor:
    """Mean absolute value, comparable between layers with rows of different length."""
    return rows.abs().squeeze(1) if rows.shape[1] == 1 else rows.abs().mean(1)


@METHODS.register("l2-norm")
def l2_scores(rows: Tensor, generator: Generator) -> Tensor:
    """Root mean square; for single elements the absolute value, as squares may underflow."""
    if rows.shape[1] == 1:
        return l1_scores(rows, generator)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms / math.sqrt(rows.shape[1])


@METHODS.register("movement")
def movement_scores(rows: Tensor, generator: Generator) -> Tensor:
    """Mean movement during training; `scored_tensor` returns movement instead of weights for it."""
    return rows.mean(1)


def scored_tensor(layer: nn.Module, method: str, target: str, name: str = "weight") -> Tensor:
    """Return the tensor by which a method scores a layer: its masked weight, or its movement."""
    holder, last = layer.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
    weight: Tensor = getattr(holder, last)
    _check_finite(weight.detach(), "weights", target)
    if method != "movement":
        return weight.detach()
    movement = holder._buffers.get(movement_name(last))
    if movement is None:
        raise PassArgsError(
            f"layer {target!r} has no movement; run add_movement_metadata_analysis_pass and "
            f"train before pruning with the method 'movement'"
        )
    if not follows_movement(layer):
        raise PassArgsError(
            f"the movement of layer {target!r} is no longer accumulated, as its hook was removed; "
            f"run add_movement_metadata_analysis_pass and train again"
        )
    _check_finite(movement, "movements", target)
    if not any(scores.any() for scores in _movements(layer)):
        raise PassArgsError(
            f"the weights of layer {target!r} have not moved; train after "
            f"add_movement_metadata_analysis_pass"
        )
    return movement


def _movements(layer: nn.Module) -> Iterator[Tensor]:
    """Yield the movement scores of all weights of a layer; some of several may have no gradient."""
    for name in weight_names(layer):
        part, _, last = name.rpartition(".")
        yield layer.get_submodule(part).get_buffer(movement_name(last))


def _check_finite(numbers: Tensor, what: str, target: str) -> None:
    """Raise an error for NaN or infinity, which cannot be ranked; a finite sum is a quick check."""
    if not bool(numbers.sum().isfinite()) and not bool(numbers.isfinite().all()):
        raise PassArgsError(
            f"layer {target!r} has {what} that are NaN or infinite; load or train finite ones "
            f"before pruning"
        )


def generator_for(seed: int, target: str) -> Generator:
    """A generator per layer, independent of the other layers."""
    return Generator().manual_seed(zlib.crc32(f"{seed} {target}".encode()))


def share(sparsity: float, size: int) -> int:
    """Return how many of `size` things are pruned, rounded to the nearest.

    >>> share(0.5, 9), share(0.0, 9), share(1.0, 9)
    (4, 0, 9)
    """
    return round(sparsity * size)


def smallest(scores: Tensor, count: int) -> Tensor:
    """Mark exactly `count` of the smallest scores along the last dimension; ties go to the first.

    >>> smallest(torch.tensor([3, 1, 1, 1]), 2)
    tensor([False,  True,  True, False])
    """
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    if scores.dim() == 1:
        marks = _smallest_by_sample(scores, count)
        return _smallest_by_limit(scores, count) if marks is None else marks
    if scores.shape[-1] <= FEW:
        return _smallest_of_few(scores, count)
    limit = scores.kthvalue(count, dim=-1, keepdim=True).values
    below, equal = scores < limit, scores == limit
    missing = count - below.sum(-1, keepdim=True)
    return below | (equal & (equal.cumsum(-1) <= missing))


def smallest_in_size(numbers: Tensor, count: int) -> Tensor:
    """Mark `count` of the smallest absolute values, as `smallest` does, but without a copy.

    >>> smallest_in_size(torch.tensor([3, -1, 1, 1]), 2)
    tensor([False,  True,  True, False])
    """
    marks = _smallest_by_sample(numbers, count, np.abs) if count else None
    return smallest(numbers.abs(), count) if marks is None else marks


FEW = 16  # up to here, all pairs are compared
MANY = 1 << 15  # from here on, a sample predicts the threshold
SAMPLE = 1 << 13
IN_CACHE = 1 << 18  # so many are compared at a time
MARGIN = SAMPLE // 64  # about three standard deviations of a rank in the middle


def _smallest_by_limit(scores: Tensor, count: int) -> Tensor:
    limit = scores.kthvalue(count).values
    removed = scores < limit
    missing = count - int(torch.count_nonzero(removed))
    removed[(scores == limit).nonzero()[:missing]] = True
    return removed


def _smallest_by_sample(
    scores: Tensor, count: int, measure: np.ufunc = np.positive
) -> Tensor | None:
    """Compare with a threshold estimated from a sample; None if there are few or it is wrong.

    Uses numpy, which compares and counts several times faster than torch on a CPU; `measure` is
    applied in blocks, as touching new memory costs more than the arithmetic.
    """
    if len(scores) < MANY or not scores.is_cpu:
        return None
    wide = scores.float() if scores.dtype.itemsize < 4 else scores
    numbers = wide.numpy()
    sample = measure(numbers[:: len(numbers) // SAMPLE])
    place = count * len(sample) // len(numbers)
    ends = max(0, place - MARGIN), min(len(sample) - 1, place + MARGIN)
    sample.partition(ends)
    low, high = sample[list(ends)]
    removed = np.empty(len(numbers), dtype=bool)
    positions = []
    for start in range(0, len(numbers), IN_CACHE):
        part, below = measure(numbers[start : start + IN_CACHE]), removed[start : start + IN_CACHE]
        with np.errstate(invalid="ignore"):  # NaNs, which are neither below nor near the threshold
            np.less(part, low, out=below)
            positions.append(start + np.flatnonzero((part <= high) ^ below))
    near = np.concatenate(positions)
    missing = count - int(np.count_nonzero(removed))
    if not 0 < missing <= len(near):
        return None
    last = _smallest_by_limit(torch.from_numpy(measure(numbers[near])), missing)
    removed[near[last.numpy()]] = True
    return torch.from_numpy(removed)


def _smallest_of_few(scores: Tensor, count: int) -> Tensor:
    """Mark a score if fewer than `count` others precede it."""
    columns = scores.unbind(-1)
    marks = []
    for i, column in enumerate(columns):
        rank = torch.zeros_like(column, dtype=torch.uint8)
        for j, other in enumerate(columns):
            if i != j:
                rank += other <= column if j < i else other < column
        marks.append(rank < count)
    return torch.stack(marks, -1)
