"""`basic_train`: loss and accuracy of a candidate after some training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import torch
from annotated_types import Ge, Interval
from torch import Tensor, nn

from chop.actions.search.metrics.base import Metrics, RunnerContext, Trial, register_runner
from chop.actions.search.metrics.rungs import Rungs, left_at
from chop.actions.search.metrics.samples import check_labels, first_of, split_of
from chop.actions.search.metrics.state import isolated
from chop.actions.search.metrics.tasks import TASK_METRICS, TaskRunner
from chop.dataset.nested import Inputs, copied
from chop.options import Option, Options, PositiveFloat, PositiveInt, Share
from chop.training.check import float_type
from chop.training.devices import Place
from chop.training.evaluate import evaluate
from chop.training.feed import Feed
from chop.training.loop import Training
from chop.training.options import CANDIDATE, TrainOptions, table_options
from chop.training.outputs import Predictor
from chop.training.scores import Score
from chop.training.steps import Forward, Mixed, Objective
from chop.training.tasks import CLASSIFICATION, TrainingTask

Budget = Annotated[int, Ge(-1)]
KeptShare = Annotated[float, Interval(gt=0, lt=1)]
UNLIMITED = 10**9  # epochs, if only the seconds are limited


@dataclass(frozen=True)
class Data:
    """The part of a data module that training reads."""

    train_dataset: Any
    val_dataset: Any
    batch_size: int
    num_workers: int
    collate_fn: Any


@register_runner("basic_train", "software", **TASK_METRICS)
class BasicTrain(TaskRunner):
    """Loss and metrics on the validation split after training; the weights stay trained.

    The metrics are those of the task: accuracy, r2, mse and mae, or mean_iou and pixel_accuracy.

    Training ends after `num_samples` (-1: no such limit), `max_steps`, `max_epochs` or
    `max_seconds`, whichever comes first. The learning rate follows `schedule` by the step, after
    `warmup_steps`. With `distill`, that share of the loss is the distance from the parent's scores
    at `temperature`. `num_val_samples` limits the samples that are scored. After each epoch of
    `rungs` a candidate continues only if it is among the best share `keep` (default: half) of
    the candidates so far, by the objectives of the search, then by the loss.
    """

    trains = True

    def __init__(
        self,
        context: RunnerContext,
        *,
        num_samples: Budget = -1,
        batch_size: PositiveInt | None = None,
        num_val_samples: PositiveInt | None = None,
        distill: Share = 0.0,
        temperature: PositiveFloat = 2.0,
        rungs: list[PositiveInt] | None = None,
        keep: KeptShare | None = None,
        **training: Any,
    ) -> None:
        super().__init__(context)
        known = table_options("basic_train", CANDIDATE)
        options = {name: option.default for name, option in known.items()}
        options |= Options("basic_train", known, "key", finite=True).check(training)
        self._data = _data(context, batch_size, num_val_samples)
        check_labels(self._data.train_dataset, self.task)
        self._distill, self._temperature = distill, temperature
        per_step = self._data.batch_size * options["accumulate_grad_batches"]
        per_epoch = math.ceil(len(self._data.train_dataset) / per_step)
        if num_samples == 0:
            raise ValueError("basic_train: num_samples is at least 1, or -1 for no such limit")
        by_samples = math.ceil(max(num_samples, 0) / per_step)
        by_epochs = (options["max_epochs"] or 0) * per_epoch
        total = min((n for n in (options["max_steps"], by_epochs, by_samples) if n), default=None)
        if total is None and options["max_seconds"] is None:
            raise ValueError(
                "basic_train has no budget; set num_samples, max_epochs, max_steps or max_seconds"
            )
        options["max_epochs"] = math.ceil(total / per_epoch) if total else UNLIMITED
        options["max_steps"] = total
        options["schedule"] = _schedule(options["schedule"], ends=total is not None)
        self._options = TrainOptions(**options, schedule_steps=total, progress=False)
        self._of_parent: Metrics | None = None
        self._rungs = Rungs.of(self.name, rungs, keep, self._options.max_epochs)

    @classmethod
    def options(cls) -> dict[str, Option]:
        return super().options() | table_options("basic_train", CANDIDATE)

    @classmethod
    def compares(cls, options: Mapping[str, Any]) -> bool:
        return bool(options.get("rungs"))

    def __call__(self, trial: Trial) -> Metrics:
        def watch(epoch: int, score: Score) -> None:
            whole = training.progress.step_in_epoch >= training.steps_per_epoch
            self._report(trial, epoch, score.with_loss, whole=whole)

        with isolated(trial.model, self.context.device, trial.seed, training=True):
            training = Training(
                trial.model,
                self._data,
                replace(self._options, seed=trial.seed),
                place=Place(self.context.device),
                task=self.task,
                objective=self._objective,
                watch=watch,
            )
            score = training.fit().validation
        assert score is not None, "there is a validation split"
        return score.with_loss

    def parent_metrics(self, trial: Trial) -> Metrics:
        """Return the metrics of the parent on the samples on which candidates are scored."""
        if self._of_parent is None:
            place, model = Place(self.context.device), trial.model
            facts = (self._data.batch_size, place, float_type(model))
            workers, collate = self._data.num_workers, self._data.collate_fn
            feed = Feed(self._data.val_dataset, *facts, num_workers=workers, collate=collate)
            mixed = Mixed(self._options.precision, place.device)
            with isolated(model, place.device, trial.seed):
                score = evaluate(model, feed.every(), mixed=mixed, task=self.task)
            self._of_parent = score.with_loss
        return self._of_parent

    def samples_by_metric(self) -> dict[str, int]:
        is_share = self.task is CLASSIFICATION
        return {"accuracy": len(self._data.val_dataset)} if is_share else {}

    def _report(self, trial: Trial, epoch: int, metrics: Metrics, *, whole: bool) -> None:
        """Report the metrics after an epoch; a trial that does not pass a rung is stopped."""
        at_rung = whole and epoch in self._rungs.epochs
        scores = trial.mark(epoch, metrics) if at_rung else None
        trial.report(epoch, metrics)
        if scores is not None and not self._rungs.goes_on(*scores):
            raise left_at(epoch)

    @cached_property
    def _objective(self) -> Objective | None:
        if not self._distill:
            return None
        teacher = self.context.graph.clone().model.to(self.context.device)
        teacher.eval().requires_grad_(False)
        return _distilled(teacher, self.task, self._distill, self._temperature)


def _data(context: RunnerContext, batch_size: int | None, num_val_samples: int | None) -> Data:
    module = context.data_module
    train = split_of(context, "train_dataloader", "basic_train")
    validation = split_of(context, "val_dataloader", "basic_train")
    return Data(
        train,
        first_of(validation, num_val_samples or len(validation)),
        batch_size or module.batch_size,
        getattr(module, "num_workers", 0),
        getattr(module, "collate_fn", None),
    )


def _schedule(name: str | None, *, ends: bool) -> str:
    """Return the schedule to use; all but a constant one need a known end."""
    name = name or ("linear" if ends else "constant")
    if name != "constant" and not ends:
        raise ValueError(
            f"basic_train: a {name} schedule needs its number of steps, which max_seconds does not "
            f"give; also set max_epochs or max_steps, or use schedule = 'constant'"
        )
    return name


def _distilled(
    teacher: nn.Module, task: TrainingTask, share: float, temperature: float
) -> Objective:
    """Return the loss of the task plus the distance from the teacher's outputs."""
    predict = Predictor(teacher, scores=task.of_scores)

    def objective(forward: Forward, x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():  # before the student, which may work in place
            target = predict(copied(x))
        outputs = forward(x)
        distance = task.distance(outputs, target, temperature)
        return (1 - share) * task.loss(outputs, y) + share * distance, outputs

    return objective
