"""What a model is trained for: classification, regression or dense prediction.

A task has a loss, exact metrics over a whole split, and rules for labels and outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from chop.dataset.base import IGNORED
from chop.options import did_you_mean
from chop.training.scores import (
    ClassTally,
    DenseTally,
    RegressionTally,
    Tally,
    alike,
    exact,
)

Direction = Literal["maximize", "minimize"]
# parts of names in logs and files, where they are shorter than the metric
LOGGED = {"accuracy": "acc", "pixel_accuracy": "pixel_acc"}


def logged(metric: str) -> str:
    """Return the name of a metric in logs and files: `acc` in `val_acc_epoch`."""
    return LOGGED.get(metric, metric)


class TrainingTask(ABC):
    """A loss, metrics, and rules for labels and outputs."""

    name: ClassVar[str]
    short: ClassVar[str]
    # what is measured besides the loss, and which direction is better; the first is the main one
    metrics: ClassVar[Mapping[str, Direction]]
    watched: ClassVar[str]  # the metric of single batches
    by_class: ClassVar[str | None] = None  # the metric of each class
    of_scores: ClassVar[bool] = True  # whether its loss applies softmax to the outputs itself
    guess: ClassVar[str]  # a description of the best constant guess

    @abstractmethod
    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""

    @abstractmethod
    def on_batch(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the watched metric of a batch."""

    @abstractmethod
    def tally(self) -> Tally:
        """Return sums without any batch yet."""

    @abstractmethod
    def distance(self, outputs: Tensor, target: Tensor, temperature: float) -> Tensor:
        """Return how far outputs are from those of a teacher, for distillation."""

    @abstractmethod
    def check_labels(self, y: Tensor) -> None:
        """Refuse labels of the wrong kind."""

    @abstractmethod
    def check_outputs(self, outputs: Tensor, y: Tensor, labels: Tensor) -> None:
        """Refuse outputs that do not fit the labels `y`; `labels` are all labels that are known."""

    @property
    def main(self) -> str:
        return next(iter(self.metrics))

    @property
    def directions(self) -> dict[str, Direction]:
        """The directions of all metrics, and of the loss."""
        return {**self.metrics, "loss": "minimize"}


def _kind(y: Tensor) -> str:
    return f"{str(y.dtype).removeprefix('torch.')} of shape {tuple(y.shape[1:])}"


class Classification(TrainingTask):
    """One class for each sample: cross entropy, accuracy."""

    name, short = "classification", "cls"
    metrics: ClassVar[Mapping[str, Direction]] = {"accuracy": "maximize"}
    watched = by_class = "accuracy"
    guess = "always guessing the most frequent class"

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y)

    def on_batch(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.argmax(-1) == y).float().mean()

    def tally(self) -> Tally:
        return ClassTally()

    def distance(self, outputs: Tensor, target: Tensor, temperature: float) -> Tensor:
        return _divergence(outputs, target, temperature)

    def check_labels(self, y: Tensor) -> None:
        if not y.is_floating_point() and y.dim() == 1:
            return
        fix = "use `task='reg'` for real numbers"
        if not y.is_floating_point():
            is_map = y.dim() > 2
            fix = (
                "use `task='dense'` for a class per pixel" if is_map else "convert them to classes"
            )
        raise ValueError(f"labels must be class indices, one per sample, not {_kind(y)}; {fix}")

    def check_outputs(self, outputs: Tensor, y: Tensor, labels: Tensor) -> None:
        if outputs.dim() != 2 or len(outputs) != len(y):
            raise ValueError(
                f"for {len(y)} samples the model must return scores of shape ({len(y)}, classes), "
                f"not {tuple(outputs.shape)}; return only the scores from forward"
            )
        _check_range(labels, outputs.shape[1])


class Regression(TrainingTask):
    """Real numbers for each sample: mean squared error, mean absolute error, R²."""

    name, short = "regression", "reg"
    metrics: ClassVar[Mapping[str, Direction]] = {
        "r2": "maximize",
        "mse": "minimize",
        "mae": "minimize",
    }
    watched = "mae"
    of_scores = False
    guess = "always guessing the mean"

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        outputs, y = alike(outputs, y)
        return F.mse_loss(outputs, y)

    def on_batch(self, outputs: Tensor, y: Tensor) -> Tensor:
        outputs, y = alike(outputs, y)
        return (outputs - y).abs().mean()

    def tally(self) -> Tally:
        return RegressionTally()

    def distance(self, outputs: Tensor, target: Tensor, temperature: float) -> Tensor:
        return F.mse_loss(exact(outputs), exact(target))

    def check_labels(self, y: Tensor) -> None:
        if y.is_complex() or not y.numel():
            raise ValueError(f"labels of a regression must be real numbers, not {_kind(y)}")

    def check_outputs(self, outputs: Tensor, y: Tensor, labels: Tensor) -> None:
        if _bare(outputs) != _bare(y):
            raise ValueError(
                f"the model's output must have the shape of the labels, {tuple(y.shape)}, not "
                f"{tuple(outputs.shape)}; give it one output per target"
            )
        if not labels.isfinite().all():
            raise ValueError("the labels hold values that are not finite; clean the data")


class DensePrediction(TrainingTask):
    """One class for each pixel: cross entropy per pixel, pixel accuracy, mean IoU."""

    name = short = "dense"
    metrics: ClassVar[Mapping[str, Direction]] = {
        "mean_iou": "maximize",
        "pixel_accuracy": "maximize",
    }
    watched, by_class = "pixel_accuracy", "IoU"
    guess = "always guessing the most frequent class"

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        total = F.cross_entropy(outputs, y, ignore_index=IGNORED, reduction="sum")
        return total / (y != IGNORED).sum().clamp(min=1)

    def on_batch(self, outputs: Tensor, y: Tensor) -> Tensor:
        counted = (y != IGNORED).sum().clamp(min=1)
        return (outputs.argmax(1) == y).sum() / counted

    def tally(self) -> Tally:
        return DenseTally()

    def distance(self, outputs: Tensor, target: Tensor, temperature: float) -> Tensor:
        return _divergence(_by_pixel(outputs), _by_pixel(target), temperature)

    def check_labels(self, y: Tensor) -> None:
        if y.is_floating_point() or y.dim() < 2:
            fix = "use `task='reg'`" if y.is_floating_point() else "use `task='cls'`"
            raise ValueError(
                f"labels of a dense prediction must be one class index per pixel, not {_kind(y)}; "
                f"{fix}"
            )

    def check_outputs(self, outputs: Tensor, y: Tensor, labels: Tensor) -> None:
        wanted = (len(y), "classes", *y.shape[1:])
        if outputs.dim() != y.dim() + 1 or (len(outputs), *outputs.shape[2:]) != tuple(y.shape):
            shape = ", ".join(map(str, wanted))
            raise ValueError(
                f"for labels of shape {tuple(y.shape)} the model must return scores of shape "
                f"({shape}), not {tuple(outputs.shape)}; interpolate them to the size of the labels"
            )
        _check_range(labels[labels != IGNORED], outputs.shape[1])


CLASSIFICATION, REGRESSION, DENSE = Classification(), Regression(), DensePrediction()
TASKS: tuple[TrainingTask, ...] = (CLASSIFICATION, REGRESSION, DENSE)


def task_named(name: str) -> TrainingTask:
    """Return the task `name`, in full or abbreviated."""
    for task in TASKS:
        if name in (task.name, task.short):
            return task
    known = [task.short for task in TASKS]
    hint = did_you_mean(name, [*known, *(task.name for task in TASKS)], "")
    raise ValueError(
        f"training and testing support the tasks {', '.join(known)}, not {name!r}{hint}"
    )


def _check_range(labels: Tensor, classes: int) -> None:
    """Refuse labels that are not among the model's classes."""
    if not labels.numel():
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"the labels are {low} to {high}, but the model has {classes} classes, "
            f"0 to {classes - 1}"
        )


def _divergence(outputs: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Return the divergence from softened scores (Hinton et al. 2015)."""
    softened = (outputs / temperature).log_softmax(1)
    wanted = (target / temperature).log_softmax(1)
    distance = F.kl_div(softened, wanted, reduction="batchmean", log_target=True)
    return temperature**2 * distance


def _by_pixel(scores: Tensor) -> Tensor:
    """Return scores (N, classes, …) as one row for each pixel."""
    return scores.movedim(1, -1).flatten(0, -2)


def _bare(tensor: Tensor) -> list[int]:
    """Return a shape without a last dimension of one."""
    shape = list(tensor.shape)
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape
