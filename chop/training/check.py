"""Checks, before the first step, that a model can be trained on its data."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, fx, nn

from chop.dataset.nested import Inputs, num_samples, rows_of, shapes_of
from chop.dataset.tensors import TensorSplit
from chop.ir.probabilities import KeepsScores
from chop.system.memory import memory_for
from chop.training.feed import Feed
from chop.training.outputs import Predictor, prediction_of
from chop.training.tasks import CLASSIFICATION, TrainingTask

logger = logging.getLogger(__name__)


def float_type(model: nn.Module) -> torch.dtype:
    """Return the floating-point type of the model's parameters."""
    types = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(types, torch.float32)


def check_fit(
    model: nn.Module, feed: Feed, task: TrainingTask = CLASSIFICATION, *, learning: bool = True
) -> None:
    """Refuse samples that the model does not accept, and labels that it cannot predict."""
    x, y = feed.few()
    task.check_labels(y)
    labels = feed.split.y if isinstance(feed.split, TensorSplit) else y
    prediction, scores = _prediction(model, x)
    task.check_outputs(prediction, y, labels)
    if scores is not None and task.of_scores:
        logger.info("The network ends in softmax or sigmoid: losses are taken of what enters it")
    if learning:
        _check_last_batch(model, feed, x)


def _prediction(model: nn.Module, x: Inputs) -> tuple[Tensor, Tensor | None]:
    """Return the prediction, and the scores of which it is the softmax."""
    was_training = model.training
    predict = Predictor(model)
    predict.call.signature.match(x)
    model.eval()
    try:
        what = f"compute a batch of {num_samples(x)}"
        with torch.no_grad(), memory_for(what), KeepsScores() as kept:
            output = predict.call(x)
    except Exception as error:
        # unlike the code of a model, generated code of a graph has nothing to debug
        known = isinstance(error, RuntimeError | TypeError | ValueError)
        if not known and not isinstance(model, fx.GraphModule):
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        fix = (
            "" if "; " in reason else "; build the model for such samples, or change its forward()"
        )
        raise ValueError(
            f"the model cannot process a batch of shape {shapes_of(x)}: {reason}{fix}"
        ) from error
    finally:
        model.train(was_training)
    prediction = prediction_of(output)
    return prediction, kept.origin(prediction)[0]


def _check_last_batch(model: nn.Module, feed: Feed, x: Inputs) -> None:
    """Refuse a last batch of one sample if batch norm, or a graph, cannot be trained on it."""
    size, share = feed.batch_size, feed.share
    if size != 1 and share % size != 1:
        return
    reason = _refusal_of_one(model, x)
    if reason is None:
        return
    better = next((n for n in range(size + 1, share + 1) if share % n != 1), size + 1)
    raise ValueError(
        f"`batch_size={size}` leaves a batch with a single one of {share:,} samples, "
        f"which {reason}; use `batch_size={better}`"
    )


def _refusal_of_one(model: nn.Module, x: Inputs) -> str | None:
    """Return why the model cannot be trained on one sample, or None."""
    if any(isinstance(module, nn.BatchNorm1d) for module in model.modules()):
        return "batch norm cannot train on"
    if not isinstance(model, fx.GraphModule):
        return None
    try:
        _prediction(model, rows_of(x, slice(0, 1)))
    except ValueError as error:
        cause = str(error.__cause__ or error).partition("; ")[0]  # without the advice
        return f"the graph refuses: {cause}"
    return None
