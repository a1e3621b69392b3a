"""Samples to compare implementations of a network on, and the score of what they give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.dataset.matching import named_inputs
from chop.dataset.nested import copied, joined, pair_of, split_up
from chop.numerics import frozen_weights
from chop.training.outputs import Predictor
from chop.training.tasks import TrainingTask

__all__ = ["model_outputs", "samples_to_test", "score_of", "split_to_test"]


def split_to_test(data_module: Any) -> str:
    """Return the split to test on: `val` for data without a test split."""
    return "test" if "test" in data_module.dataset_info.available_splits else "val"


def samples_to_test(
    data_module: Any, model: nn.Module, most: int | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the inputs of `model` by name and the labels, of `most` samples of the test split."""
    split = split_to_test(data_module)
    if getattr(data_module, f"{split}_dataset") is None:
        data_module.prepare_data()
        data_module.setup({"test": "test", "val": "validate"}[split])
    batches, count = [], 0
    for batch in getattr(data_module, f"{split}_dataloader")():
        batches.append(pair_of(batch))
        count += len(batches[-1][1])
        if most is not None and count >= most:
            break
    inputs = named_inputs(model, joined([x for x, _ in batches]))
    labels = torch.cat([y for _, y in batches])
    return {name: x[:most] for name, x in inputs.items()}, labels[:most]


@torch.inference_mode()
def model_outputs(model: nn.Module, inputs: Mapping[str, Tensor], batch_size: int) -> Tensor:
    """Return the predictions of a model."""
    predict = Predictor(model)
    with frozen_weights(model):
        # layers that work in place must not change the samples
        return torch.cat([predict(copied(part)) for part in split_up(dict(inputs), batch_size)])


def score_of(task: TrainingTask, outputs: Tensor, labels: Tensor) -> float:
    """Return the main metric of a task."""
    tally = task.tally()
    tally.add(outputs, labels)
    return tally.score(lambda sums: sums).metrics[task.main]
