"""Exact loss and accuracy over a whole split: every sample counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.numerics import at_rest
from chop.training.steps import Mixed


@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy over `samples` samples."""

    loss: float
    accuracy: float
    samples: int
    class_accuracy: tuple[float | None, ...] = ()  # None: no sample of that class


def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    mixed: Mixed,
    reduce: Callable[[Tensor], Tensor] = lambda sums: sums,
    limit: int | None = None,
) -> Score:
    """Score `model` in eval mode; `reduce` sums over all processes."""
    was_training = model.training
    model.eval()
    try:
        with at_rest(model):
            sums = reduce(_sums(model, batches, mixed, limit))
    finally:
        model.train(was_training)
    if len(sums) == 1:
        raise ValueError("the data set is empty; scoring needs at least one sample")
    loss, (correct, count) = sums[0].item(), sums[1:].view(2, -1)
    samples = int(count.sum().item())
    by_class = [c / n if n else None for c, n in zip(correct.tolist(), count.tolist(), strict=True)]
    return Score(loss / samples, correct.sum().item() / samples, samples, tuple(by_class))


def _sums(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], mixed: Mixed, limit: int | None
) -> Tensor:
    """Return the loss, then the correct and all samples of each class, in float64 for accuracy."""
    total: Tensor | None = None
    with torch.inference_mode(), mixed.autocast():
        for number, (x, y) in enumerate(batches):
            if number == limit:
                break
            logits = model(x)
            classes = logits.shape[-1]
            exact = logits if logits.dtype == torch.float64 else logits.float()
            loss = F.cross_entropy(exact, y, reduction="sum").double()
            hit = logits.argmax(-1) == y
            counts = [torch.bincount(labels, minlength=classes) for labels in (y[hit], y)]
            sums = torch.cat([loss.view(1), *counts])
            total = sums if total is None else total + sums
    return torch.zeros(1, dtype=torch.float64) if total is None else total
