"""Checks, before the first step, that a model can be trained on its data."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from chop.dataset.tensors import TensorSplit
from chop.memory import memory_for
from chop.training.feed import Feed


def float_type(model: nn.Module) -> torch.dtype:
    """Return the floating-point type of the model's parameters."""
    types = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(types, torch.float32)


def check_fit(model: nn.Module, feed: Feed, *, learning: bool = True) -> None:
    """Refuse samples that the model does not accept, and labels that it cannot predict."""
    x, y = feed.few()
    if y.is_floating_point() or y.dim() != 1:
        raise ValueError(
            f"labels must be class indices, one per sample, not "
            f"{str(y.dtype).removeprefix('torch.')} "
            f"of shape {tuple(y.shape[1:])}"
        )
    scores = _scores(model, x)
    labels = feed.split.y if isinstance(feed.split, TensorSplit) else y
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= scores.shape[1]:
        raise ValueError(
            f"the labels are {low} to {high}, but the model has {scores.shape[1]} classes, "
            f"0 to {scores.shape[1] - 1}"
        )
    if learning:
        _check_last_batch(model, feed)


def _scores(model: nn.Module, x: Tensor) -> Tensor:
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), memory_for(f"compute a batch of {len(x)}"):
            scores = model(x)
    except Exception as error:
        # unlike the code of a model, generated code of a graph has nothing to debug
        known = isinstance(error, RuntimeError | TypeError | ValueError)
        if not known and not isinstance(model, fx.GraphModule):
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"the model cannot process a batch of shape {tuple(x.shape)}: {reason}"
        ) from error
    finally:
        model.train(was_training)
    if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != len(x):
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(
            f"for {len(x)} samples the model must return scores of shape ({len(x)}, classes), "
            f"not {got}; return only the scores from forward"
        )
    return scores


def _check_last_batch(model: nn.Module, feed: Feed) -> None:
    """Refuse a last batch of one sample, on which batch norm cannot be trained."""
    size, share = feed.batch_size, feed.share
    if not any(isinstance(m, nn.BatchNorm1d) for m in model.modules()):
        return
    if size == 1 or share % size == 1:
        better = next((n for n in range(size + 1, share + 1) if share % n != 1), size + 1)
        raise ValueError(
            f"`batch_size={size}` leaves a batch with a single one of {share:,} samples, "
            f"which batch norm cannot train on; use `batch_size={better}`"
        )
