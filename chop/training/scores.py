"""Scores of a model over a whole split: exact sums over batches and processes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.dataset.base import IGNORED

Reduce = Callable[[Tensor], Tensor]  # sums over all processes

EMPTY = "the data set is empty; scoring needs at least one sample"


@dataclass(frozen=True)
class Score:
    """Mean loss and the metrics of a task over `samples` samples."""

    loss: float
    samples: int
    metrics: Mapping[str, float]
    # accuracy, or IoU, of each class; None: no sample of that class
    by_class: tuple[float | None, ...] = ()
    guess: float = math.nan  # the task's first metric of the best constant guess

    @property
    def accuracy(self) -> float:
        return self.metrics["accuracy"]

    @property
    def class_accuracy(self) -> tuple[float | None, ...]:
        return self.by_class

    @property
    def with_loss(self) -> dict[str, float]:
        """The metrics and the loss, by name."""
        return {**self.metrics, "loss": self.loss}


class Tally(ABC):
    """Sums over batches, from which the score of a whole split follows exactly."""

    @abstractmethod
    def add(self, outputs: Tensor, y: Tensor) -> None:
        """Add a batch."""

    @abstractmethod
    def score(self, reduce: Reduce) -> Score:
        """Return the score over all batches of all processes."""


def exact(outputs: Tensor) -> Tensor:
    """Return outputs in at least single precision."""
    return outputs if outputs.dtype == torch.float64 else outputs.float()


def alike(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs in the shape of the labels, both as floats."""
    outputs = exact(outputs).reshape(y.shape)
    return outputs, y.to(outputs.dtype)


class ClassTally(Tally):
    """The loss, then the correct and all samples of each class, in float64."""

    sums: Tensor | None = None

    def add(self, outputs: Tensor, y: Tensor) -> None:
        classes = outputs.shape[-1]
        loss = F.cross_entropy(exact(outputs), y, reduction="sum").double()
        hit = outputs.argmax(-1) == y
        counts = [torch.bincount(labels, minlength=classes) for labels in (y[hit], y)]
        sums = torch.cat([loss.view(1), *counts])
        self.sums = sums if self.sums is None else self.sums + sums

    def score(self, reduce: Reduce) -> Score:
        sums = reduce(torch.zeros(1, dtype=torch.float64) if self.sums is None else self.sums)
        if len(sums) == 1:
            raise ValueError(EMPTY)
        loss, (correct, count) = sums[0].item(), sums[1:].view(2, -1).tolist()
        samples = int(sum(count))
        by_class = tuple(c / n if n else None for c, n in zip(correct, count, strict=True))
        metrics = {"accuracy": sum(correct) / samples}
        return Score(loss / samples, samples, metrics, by_class, max(count) / samples)


class RegressionTally(Tally):
    """Squared and absolute errors, and the spread of each target, in float64.

    The spread is taken about the mean of the first batch, and moved to the mean of all labels at
    the end: sums of squares of large labels would lose their digits.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.pivot: Tensor | None = None
        self.absolute: Tensor
        self.sums: Tensor  # three rows: squared errors, and labels about the pivot, and squared

    def add(self, outputs: Tensor, y: Tensor) -> None:
        outputs, y = (part.double().reshape(len(y), -1) for part in alike(outputs, y))
        error = outputs - y
        if self.pivot is None:
            self.pivot = y.mean(0)
            self.absolute = y.new_zeros(())
            self.sums = y.new_zeros(3, y.shape[1])
        about = y - self.pivot
        self.samples += len(y)
        self.absolute = self.absolute + error.abs().sum()
        self.sums = self.sums + torch.stack([(t).sum(0) for t in (error**2, about, about**2)])

    def score(self, reduce: Reduce) -> Score:
        totals = reduce(self._labels())
        samples = int(totals[0].item())
        if not samples:
            raise ValueError(EMPTY)
        absolute, *parts = reduce(self._about(totals[1:] / samples)).tolist()
        errors, spreads = parts[::2], parts[1::2]
        numbers = samples * len(errors)
        mse = sum(errors) / numbers
        shares = [_explained(e, s, samples) for e, s in zip(errors, spreads, strict=True)]
        metrics = {"r2": sum(shares) / len(shares), "mse": mse, "mae": absolute / numbers}
        return Score(mse, samples, metrics, guess=0.0)

    def _labels(self) -> Tensor:
        """Return the number of samples, and the sum of each target."""
        if self.pivot is None:
            return torch.zeros(1, dtype=torch.float64)
        totals = self.sums[1] + self.samples * self.pivot
        return torch.cat([totals.new_full((1,), self.samples), totals])

    def _about(self, mean: Tensor) -> Tensor:
        """Return the absolute errors, then squared errors and spread about `mean` by target."""
        if self.pivot is None:
            return torch.zeros(1, dtype=torch.float64)
        squared, about, spread = self.sums
        shift = self.pivot - mean.to(self.pivot)
        spread = spread + 2 * shift * about + self.samples * shift**2
        return torch.cat([self.absolute.view(1), torch.stack([squared, spread], 1).flatten()])


def _explained(error: float, spread: float, samples: int) -> float:
    """Return R² of one target; a constant target gives 1 if it is predicted exactly, else 0."""
    if samples < 2:
        return math.nan
    if spread <= 0:
        return 1.0 if error == 0 else 0.0
    return 1 - error / spread


class DenseTally(Tally):
    """The loss and the number of samples; by class: correct, labelled and predicted pixels."""

    sums: Tensor | None = None

    def add(self, outputs: Tensor, y: Tensor) -> None:
        classes = outputs.shape[1]
        loss = F.cross_entropy(exact(outputs), y, ignore_index=IGNORED, reduction="sum").double()
        counted = y != IGNORED
        label, predicted = y[counted], outputs.argmax(1)[counted]
        kinds = (label[label == predicted], label, predicted)
        counts = torch.stack([torch.bincount(k, minlength=classes) for k in kinds], 1).double()
        sums = torch.cat([loss.view(1), loss.new_full((1,), len(y)), counts.flatten()])
        self.sums = sums if self.sums is None else self.sums + sums

    def score(self, reduce: Reduce) -> Score:
        sums = reduce(torch.zeros(2, dtype=torch.float64) if self.sums is None else self.sums)
        if len(sums) == 2:
            raise ValueError(EMPTY)
        loss, samples, *_ = sums.tolist()
        correct, labelled, predicted = sums[2:].view(-1, 3).T
        pixels = labelled.sum().item()
        if not pixels:
            raise ValueError(f"all pixels have the label {IGNORED}, which does not count")
        union = (labelled + predicted - correct).tolist()
        ious = tuple(c / u if u else None for c, u in zip(correct.tolist(), union, strict=True))
        present = [iou for iou in ious if iou is not None]
        accuracy = correct.sum().item() / pixels
        metrics = {"mean_iou": sum(present) / len(present), "pixel_accuracy": accuracy}
        guess = (labelled.max().item() / pixels) / len(labelled.nonzero())
        return Score(loss / pixels, int(samples), metrics, ious, guess)
