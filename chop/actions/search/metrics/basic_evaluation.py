"""`basic_evaluation`: loss and metrics of the task on the first samples of a split."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from chop.actions.search.metrics.base import (
    Direction,
    Metrics,
    RunnerContext,
    Trial,
    register_runner,
)
from chop.actions.search.metrics.samples import (
    Batch,
    Loader,
    check_labels,
    first_of,
    on_device,
    split_of,
)
from chop.actions.search.metrics.state import isolated
from chop.actions.search.metrics.tasks import TASK_METRICS, TaskRunner
from chop.dataset.base import IGNORED
from chop.dataset.nested import Inputs, copied
from chop.options import PositiveInt
from chop.training.outputs import Predictor
from chop.training.tasks import CLASSIFICATION

PREFIXES = {"accuracy": "accuracy", "IoU": "iou"}  # of the metrics of each class


@register_runner("basic_evaluation", "software", **TASK_METRICS)
class BasicEvaluation(TaskRunner):
    """Loss and metrics on exactly the first `num_samples` of a split.

    The metrics are those of the task: accuracy, r2, mse and mae, or mean_iou and pixel_accuracy.
    `average = "macro"` gives every class the same weight in the accuracy. `per_class` adds a metric
    `accuracy_<class>`, or `iou_<class>`, for each class among the samples. `dataloader` is the
    older name of `data_loader`.
    """

    def __init__(
        self,
        context: RunnerContext,
        *,
        num_samples: PositiveInt,
        data_loader: Loader | None = None,
        dataloader: Loader | None = None,
        batch_size: PositiveInt | None = None,
        average: Literal["micro", "macro"] = "micro",
        per_class: bool = False,
        allow_untrained: bool = False,
    ) -> None:
        super().__init__(context)
        if data_loader and dataloader and data_loader != dataloader:
            raise ValueError(
                f"basic_evaluation has data_loader = {data_loader!r} and dataloader = "
                f"{dataloader!r}, which are the same option; omit one of them"
            )
        loader = data_loader or dataloader or "val_dataloader"
        self._split = first_of(split_of(context, loader, "basic_evaluation"), num_samples)
        check_labels(self._split, self.task)
        self._batch_size, self._macro, self._allow = batch_size, average == "macro", allow_untrained
        self._per_class = per_class
        self._check_options(average, per_class)
        if per_class:
            better: dict[str, Direction] = dict.fromkeys(self._class_metrics.values(), "maximize")
            self.metrics = {**self.metrics, **better}

    def _check_options(self, average: str, per_class: bool) -> None:
        """Refuse options that the task has no use for."""
        if per_class and self.task.by_class is None:
            raise ValueError(f"basic_evaluation: {self.task.name} has no classes; omit per_class")
        if average == "macro" and self.task is not CLASSIFICATION:
            raise ValueError(
                f"basic_evaluation: average = 'macro' is for the accuracy of classification, not "
                f"for {self.task.name}; omit it"
            )

    @classmethod
    def direction_of(cls, metric: str, options: Mapping[str, Any]) -> Direction | None:
        if options.get("per_class") and metric.startswith(("accuracy_", "iou_")):
            return "maximize"
        return super().direction_of(metric, options)

    @cached_property
    def _batches(self) -> list[Batch]:
        batches = on_device(self.context, self._split, self._batch_size)
        self.task.check_labels(batches[0][1])
        return batches

    @cached_property
    def _count(self) -> dict[int, int]:
        """The number of samples of each class that has any."""
        labels = torch.cat([y for _, y in self._batches])
        counts = labels[labels != IGNORED].bincount().tolist()
        return {number: samples for number, samples in enumerate(counts) if samples}

    @cached_property
    def _class_metrics(self) -> dict[int, str]:
        names = self.context.dataset_info.class_names
        prefix = PREFIXES[str(self.task.by_class)]
        return {n: f"{prefix}_{names[n] if n < len(names) else n}" for n in self._count}

    def __call__(self, trial: Trial) -> Metrics:
        refuse_untrained(trial, allowed=self._allow)
        batches = self._batches
        predict = Predictor(trial.model, scores=self.task.of_scores)
        with isolated(trial.model, self.context.device, trial.seed), torch.inference_mode():
            if self.task is not CLASSIFICATION:
                return self._tallied(predict)
            sums = torch.stack([self._sums(predict, x, y) for x, y in batches]).sum(0)
            loss, *correct = sums.tolist()  # the only wait for the device
        samples = len(self._split)
        metrics = {"accuracy": sum(correct) / samples, "loss": loss / samples}
        if self._macro or self._per_class:
            shares = {n: correct[n] / samples for n, samples in self._count.items()}
            if self._macro:
                metrics["accuracy"] = sum(shares.values()) / len(shares)
            if self._per_class:
                metrics |= {name: shares[n] for n, name in self._class_metrics.items()}
        return metrics

    def samples_by_metric(self) -> dict[str, int]:
        """Return the samples of each share; a mean of the classes' shares is not one."""
        if self.task is not CLASSIFICATION:
            return {}
        samples = {} if self._macro else {"accuracy": len(self._split)}
        if self._per_class:
            samples |= {name: self._count[n] for n, name in self._class_metrics.items()}
        return samples

    def _tallied(self, predict: Predictor) -> Metrics:
        """Return the metrics of a task other than classification."""
        tally = self.task.tally()
        for number, (x, y) in enumerate(self._batches):
            outputs = predict(copied(x))  # a model may work in place
            if number == 0:
                self.task.check_outputs(outputs, y, y)
            tally.add(outputs, y)
        score = tally.score(lambda sums: sums)
        if not self._per_class:
            return score.with_loss
        by_class = {name: score.by_class[n] or 0.0 for n, name in self._class_metrics.items()}
        return score.with_loss | by_class

    def _sums(self, predict: Predictor, x: Inputs, y: Tensor) -> Tensor:
        """Return loss and correct samples, in total or by class, in float64 on the device."""
        logits = predict(copied(x))  # a model may work in place
        if logits.shape[-1] <= (largest := max(self._count)):
            raise ValueError(
                f"the candidate has {logits.shape[-1]} outputs, but there are samples of class "
                f"{largest}; give it one output per class of the data set"
            )
        exact = logits if logits.dtype == torch.float64 else logits.float()
        # twice as fast as torch's cross entropy for few classes
        chosen = exact.gather(1, y.unsqueeze(1)).squeeze(1)
        loss = (exact.logsumexp(1) - chosen).sum(dtype=torch.float64)
        hit = logits.argmax(-1) == y
        if not (self._macro or self._per_class):
            return torch.stack([loss, hit.sum(dtype=torch.float64)])
        correct = loss.new_zeros(logits.shape[-1])
        return torch.cat([loss.view(1), correct.index_add_(0, y, hit.double())])


def refuse_untrained(trial: Trial, *, allowed: bool) -> None:
    """Refuse a candidate with untrained weights, of which metrics are meaningless."""
    if trial.fresh and not allowed:
        raise ValueError(
            f"the layers {', '.join(trial.fresh)} of this candidate are new and untrained; use "
            f"sw_runner.basic_train (or population_train) instead of basic_evaluation, or set "
            f"allow_untrained = true"
        )
