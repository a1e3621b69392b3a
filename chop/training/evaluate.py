"""Exact loss and metrics over a whole split: every sample counts once."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from chop.dataset.nested import Inputs
from chop.numerics import frozen_weights
from chop.training.outputs import Predictor
from chop.training.scores import Reduce, Score
from chop.training.steps import Mixed
from chop.training.tasks import CLASSIFICATION, TrainingTask


def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Inputs, Tensor]],
    *,
    mixed: Mixed,
    task: TrainingTask = CLASSIFICATION,
    reduce: Reduce = lambda sums: sums,
    limit: int | None = None,
) -> Score:
    """Return the score of `model` in eval mode; `reduce` sums over all processes."""
    was_training = model.training
    model.eval()
    tally, predict = task.tally(), Predictor(model, scores=task.of_scores)
    try:
        with frozen_weights(model), torch.inference_mode(), mixed.autocast():
            for number, (x, y) in enumerate(batches):
                if number == limit:
                    break
                tally.add(predict(x), y)
            return tally.score(reduce)
    finally:
        model.train(was_training)
