"""`Training`: the training loop."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from chop.dataset.data_module import facts_of
from chop.dataset.nested import Inputs
from chop.dataset.tensors import TensorSplit
from chop.training.check import check_fit, float_type
from chop.training.devices import Place, settle_kernels, take_place, threads_for
from chop.training.display import Bar, NoBar, progress_bar
from chop.training.evaluate import evaluate
from chop.training.feed import Feed
from chop.training.fields import START_FROM_WEIGHTS, TrainingProgress
from chop.training.interruption import Interruption
from chop.training.names import Names
from chop.training.optimisers import learning_rate, make_optimizer
from chop.training.options import TrainOptions
from chop.training.saving import checkpoint, read_run, restore, write_atomically
from chop.training.scalars import Visualizer
from chop.training.scores import Score
from chop.training.steps import (
    CapturedRun,
    EagerRun,
    EpochRun,
    Mixed,
    Objective,
    Reading,
    Step,
    StepOutcome,
)
from chop.training.targets import start_at_targets
from chop.training.tasks import CLASSIFICATION, TrainingTask, logged, task_named

logger = logging.getLogger(__name__)
# options that must not change when a run is resumed
FIXED = ("model", "dataset", "batch_size", "accumulate_grad_batches", "num_devices", "num_nodes")
# options that may change without a warning when a run is resumed; the task has its own check
IRRELEVANT = {
    "task",
    "resume",
    "project",
    "project_dir",
    "config",
    "no_progress",
    "log_level",
    "profile",
}

Watch = Callable[[int, Score], None]  # called after each epoch with its score; may raise to stop


@dataclass(frozen=True)
class Fitted:
    """The result of a run."""

    progress: TrainingProgress
    validation: Score | None
    steps: int  # since the run was started or resumed
    seconds: float
    samples_per_second: float
    precision: str
    place: Place = field(repr=False)
    task: TrainingTask = CLASSIFICATION


@dataclass
class _Sent:
    """A step that is logged once its metrics have arrived from the device."""

    step: int
    epoch: int
    rate: float
    outcome: StepOutcome
    reading: Reading = field(init=False)

    def __post_init__(self) -> None:
        self.reading = self.outcome.reading()


def _set_up(data_module: Any) -> None:
    """Load the data that a run reads, unless they are loaded."""
    if not hasattr(data_module, "train_dataset"):
        raise TypeError(
            f"data_module must be a MaseDataModule, such as MaseDataModule('jsc-sim'), "
            f"not an object of type {type(data_module).__name__}"
        )
    if data_module.train_dataset is None:
        data_module.prepare_data()
        data_module.setup("fit")


class Training:
    """One run: the model and data on their devices, and its progress.

    With `watch`, it does not log epochs or handle signals.
    """

    def __init__(
        self,
        model: nn.Module,
        data_module: Any,
        options: TrainOptions,
        *,
        names: Names | None = None,
        visualizers: Sequence[Visualizer] = (),
        hyper_parameters: dict[str, Any] | None = None,
        place: Place | None = None,
        task: TrainingTask = CLASSIFICATION,
        objective: Objective | None = None,
        watch: Watch | None = None,
    ) -> None:
        _set_up(data_module)
        self.options, self.names, self.watch, self.task = options, names, watch, task
        self.place = place or take_place(options)
        self.visualizers = list(visualizers) if self.place.leads else []
        self.hyper_parameters = hyper_parameters or {}
        self.trained_on = facts_of(data_module)
        self.mixed = Mixed(options.precision, self.place.device)
        start_at_targets(model, data_module.train_dataset, task)
        self.model = model.to(self.place.device)
        if options.precision == "64":
            self.model.double()
        self.train_feed = self._feed(data_module.train_dataset, data_module)
        self.val_feed = (
            self._feed(data_module.val_dataset, data_module) if data_module.val_dataset else None
        )
        if options.early_stopping is not None and self.val_feed is None:
            raise ValueError(
                "`early_stopping` needs a validation split, which this data set does not have"
            )
        check_fit(self.model, self.train_feed, task)
        captured = self._can_capture()
        self.optimizer = make_optimizer(self.model, options, capturable=captured)
        self._step = Step(
            self.model,
            self.place.wrapped(self.model),
            self.optimizer,
            options,
            self.mixed,
            task,
            objective,
        )
        self.run: EpochRun = self._captured(self._step) if captured else self._eager(self._step)
        self.progress = TrainingProgress()
        self.validation: Score | None = None
        self.samples_per_second = 0.0
        self._rate_at, self._rate_now = (-1, -1), 0.0
        self._sent: _Sent | None = None
        self._ends = math.inf

    def _feed(self, split: Any, data_module: Any) -> Feed:
        return Feed(
            split,
            data_module.batch_size,
            self.place,
            float_type(self.model),
            seed=self.options.seed,
            num_workers=data_module.num_workers,
            collate=getattr(data_module, "collate_fn", None),
        )

    def _can_capture(self) -> bool:
        """Whether all steps do the same work on one GPU, so that a CUDA graph can replay them."""
        split, options = self.train_feed.split, self.options
        return (
            self.place.device.type == "cuda"
            and self.place.world == 1
            and self.train_feed.resident
            and isinstance(split, TensorSplit)
            and split.augment is None
            and options.accumulate_grad_batches == 1
            and not options.compile
            and len(split) >= self.train_feed.batch_size
        )

    def _captured(self, step: Step) -> EpochRun:
        feed = self.train_feed
        assert isinstance(feed.split, TensorSplit)
        return CapturedRun(step, feed.split, feed.batch_size, feed.pass_of, self._rate)

    def _eager(self, step: Step) -> EpochRun:
        feed = self.train_feed
        return EagerRun(step, feed.train, self._rate, feed.batches_per_epoch)

    def _rate(self) -> float:
        """Return the learning rate of the next step, computed only when it may have changed."""
        by_step = self.options.schedule_steps is not None
        last_change = self.progress.step if by_step else self.options.warmup_steps
        at = (self.progress.epoch, min(self.progress.step, last_change))
        if self._rate_at != at:
            self._rate_at = at
            self._rate_now = learning_rate(
                self.options, epoch=self.progress.epoch, step=self.progress.step
            )
        return self._rate_now

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.train_feed.batches_per_epoch / self.options.accumulate_grad_batches)

    @property
    def total_steps(self) -> int:
        if self.options.fast_dev_run:
            return 1
        by_epochs = self.options.max_epochs * self.steps_per_epoch
        return min(by_epochs, self.options.max_steps or by_epochs)

    def resume(self, file: Path) -> None:
        """Resume from the checkpoint in `file`."""
        self.resume_from(read_run(file))
        logger.info("Resumed from %s at step %s", file, f"{self.progress.step:,}")

    def resume_from(self, saved: dict[str, Any]) -> None:
        """Resume from the content of a checkpoint; warn of options that have changed."""
        old = saved["hyper_parameters"]
        if task_named(old.get("task", self.task.name)) is not self.task:
            raise ValueError(
                f"the resumed run has task = {old['task']}, not {self.task.name}; use the same "
                f"value, or {START_FROM_WEIGHTS}"
            )
        for name in FIXED:
            if name in old and self.hyper_parameters.get(name, old[name]) != old[name]:
                raise ValueError(
                    f"the resumed run has {name} = {old[name]}, not "
                    f"{self.hyper_parameters[name]}; use the same value, or {START_FROM_WEIGHTS}"
                )
        self.progress = restore(saved, self.model, self.optimizer, self.mixed.scaler)
        for name, was in old.items():
            now = self.hyper_parameters.get(name, was)
            if now != was and name not in IRRELEVANT and self.place.leads:
                logger.warning("resuming with %s = %s; the run started with %s", name, now, was)

    def fit(self) -> Fitted:
        """Train until the limit of epochs, steps or time, or until early stopping."""
        self.model.train()
        began, first = time.perf_counter(), self.progress.step
        bar = progress_bar(self.total_steps, wanted=self.options.progress and self.place.leads)
        self._ends = began + (self.options.max_seconds or math.inf)
        interruption = Interruption(requeue=self.options.auto_requeue)
        # a caller that watches the run handles signals
        handling = interruption if self.watch is None else contextlib.nullcontext()
        work = self.train_feed.batch_size * sum(p.numel() for p in self.model.parameters())
        settle_kernels(self.model, self.place.device)
        with handling, threads_for(work, self.place.device), bar as shown:
            while not self._done():
                self._train_epoch(interruption, shown)
            if self.validation is None:  # a run that was complete when it was resumed
                self.validation = self._score()
        return Fitted(
            self.progress,
            self.validation,
            steps=self.progress.step - first,
            seconds=time.perf_counter() - began,
            samples_per_second=self.samples_per_second,
            precision=self.mixed.name,
            place=self.place,
            task=self.task,
        )

    def _done(self) -> bool:
        progress = self.progress
        if progress.is_at_limit(self.options) or (progress.step and self._out_of_time()):
            return True
        if progress.is_out_of_patience(self.options):
            logger.info(
                "Stopped early: no lower validation loss in %d epochs", progress.stale_epochs
            )
            return True
        return False

    def _out_of_time(self) -> bool:
        return self.options.max_seconds is not None and time.perf_counter() >= self._ends

    def _train_epoch(self, interruption: Interruption, bar: Bar | NoBar) -> None:
        began, first = time.perf_counter(), self.progress.step_in_epoch
        limit = 1 if self.options.fast_dev_run else self.options.max_steps or math.inf
        outcome = None  # stays None if the run was interrupted after the last step of the epoch
        for outcome in self._steps():
            if self.progress.step % self.options.log_every_n_steps == 0:
                self._measure_speed(first, time.perf_counter() - began)
                self._log_step(outcome, bar)
            if received := self._signal(interruption):
                self._write_step(bar)
                self._save("last")
                interruption.stop(received, leads=self.place.leads)
            every = self.options.checkpoint_every
            if every is not None and self.progress.step % every == 0:
                self._save("last")
            if self.progress.step >= limit or self._out_of_time():
                break
        self._write_step(bar)
        seconds = time.perf_counter() - began
        self._measure_speed(first, seconds)
        self._end_epoch(outcome, seconds)

    def _signal(self, interruption: Interruption) -> int:
        """Return a signal that any process has received, or 0; others are asked when logging."""
        received = interruption.received or 0
        if self.place.world == 1:
            return received
        asked = self.progress.step % self.options.log_every_n_steps == 0
        return self.place.largest(received) if asked else 0

    def _steps(self) -> Iterator[StepOutcome]:
        """Take the remaining steps of this epoch and count them."""
        progress, on_cpu = self.progress, self.place.device.type == "cpu"
        for outcome in self.run(progress.epoch, progress.step_in_epoch):
            progress.step += 1
            progress.step_in_epoch += 1
            if on_cpu and not math.isfinite(loss := outcome.loss.item()):
                self._refuse(loss, progress.step, outcome.inputs)
            yield outcome

    def _measure_speed(self, first: int, seconds: float) -> None:
        """Set the samples per second of all processes since step `first` of this epoch."""
        per_step = self.train_feed.batch_size * self.options.accumulate_grad_batches
        ends = (first, self.progress.step_in_epoch)
        start, stop = (min(step * per_step, self.train_feed.share) for step in ends)
        self.samples_per_second = (stop - start) * self.place.world / max(seconds, 1e-9)

    def _log_step(self, outcome: StepOutcome, bar: Bar | NoBar) -> None:
        """Start copying this step's metrics from the device, and log those that have arrived."""
        self._write_step(bar)
        self._sent = _Sent(self.progress.step, self.progress.epoch, self._rate_now, outcome)
        if self.place.device.type == "cpu":
            self._write_step(bar)

    def _write_step(self, bar: Bar | NoBar) -> None:
        if self._sent is None:
            return
        sent, self._sent = self._sent, None
        metric, *losses = sent.reading.values()
        self._check_losses(losses, sent.step)
        loss = losses[-1]
        watched = logged(self.task.watched)
        metrics = {"train_loss_step": loss, f"train_{watched}_step": metric, "lr": sent.rate}
        metrics |= {"samples_per_second": self.samples_per_second}
        self._log(metrics, epoch=sent.epoch, step=sent.step)
        note = f"epoch {sent.epoch + 1}  loss {loss:.4f}  {watched} {metric:.3f}"
        bar.show(sent.step, note, self.samples_per_second)

    def _log(self, metrics: dict[str, float], *, epoch: int, step: int) -> None:
        for visualizer in self.visualizers:
            visualizer.log_metrics(metrics | {"epoch": epoch}, step)

    def _check_losses(self, losses: list[float], step: int) -> None:
        """Raise an error at the first loss that is not finite; the last loss is that of `step`."""
        for later, loss in zip(range(len(losses) - 1, -1, -1), losses, strict=True):
            if not math.isfinite(loss):
                self._refuse(loss, step - later)

    def _refuse(self, loss: float, step: int, batch: Inputs | None = None) -> NoReturn:
        from chop.training.nonfinite import cause

        why = cause(self.model, batch, self.train_feed.stored)
        raise FloatingPointError(
            f"the loss is {loss} at step {step} (epoch {self.progress.epoch + 1}): {why}"
        )

    def _end_epoch(self, outcome: StepOutcome | None, seconds: float) -> None:
        loss = outcome.loss.item() if outcome else math.inf
        if outcome:
            self._check_losses(outcome.recent.tolist(), self.progress.step)
        progress = self.progress
        whole = progress.step_in_epoch >= self.steps_per_epoch
        self.validation = self._validate(seconds)
        if whole:
            progress.epoch += 1
            progress.step_in_epoch = 0
        loss = self.validation.loss if self.validation else loss
        if loss < progress.best_loss:
            progress.best_loss, progress.best_epoch = loss, progress.epoch - whole
            known = self.validation.metrics if self.validation else {}
            progress.best_accuracy = known.get("accuracy")
            self._save("best")
        self._save("last")

    def _score(self) -> Score | None:
        """Score the model, as it would be saved, on the validation split."""
        if self.val_feed is None:
            return None
        self.place.same_buffers(self.model)
        limit = 1 if self.options.fast_dev_run else None
        batches, reduce = self.val_feed.every(), self.place.total
        return evaluate(
            self.model, batches, mixed=self.mixed, task=self.task, reduce=reduce, limit=limit
        )

    def _validate(self, seconds: float) -> Score | None:
        score = self._score()
        if score is None:
            return None
        if not math.isfinite(score.loss):
            assert self.val_feed is not None
            from chop.training.nonfinite import cause

            why = cause(self.model, data=self.val_feed.stored)
            raise FloatingPointError(f"the validation loss is {score.loss}: {why}")
        metrics = {"val_loss_epoch": score.loss}
        metrics |= {f"val_{logged(name)}_epoch": value for name, value in score.metrics.items()}
        self._log(
            metrics | {"epoch_seconds": seconds}, epoch=self.progress.epoch, step=self.progress.step
        )
        if self.watch is not None:
            self.watch(self.progress.epoch + 1, score)
        elif self.place.leads:
            logger.info(
                "Epoch %d/%d  %s  %.3g s  %s samples/s",
                self.progress.epoch + 1,
                self.options.max_epochs,
                "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()),
                seconds,
                f"{self.samples_per_second:,.0f}",
            )
        return score

    def _save(self, stem: str) -> None:
        if self.names is None or self.options.fast_dev_run or not self.place.leads:
            return
        if self.place.device.type != "cpu":  # recent losses have not been checked yet
            self._check_losses(self._step.recent.tolist(), self.progress.step)
        content = checkpoint(
            self.model,
            self.optimizer,
            self.progress,
            self.hyper_parameters,
            self.mixed.scaler,
            self.trained_on,
        )
        write_atomically(content, self.names(stem, "ckpt"))
