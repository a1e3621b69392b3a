"""Training steps: eager, compiled, or replayed from a captured CUDA graph."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from chop.dataset.nested import Inputs
from chop.dataset.tensors import EpochPass, TensorSplit, gathered
from chop.training.optimisers import set_rate
from chop.training.options import TrainOptions
from chop.training.outputs import Predictor
from chop.training.tasks import CLASSIFICATION, TrainingTask

logger = logging.getLogger(__name__)
WARM_UP = 3  # steps in which CUDA libraries initialise themselves before a capture


class Reading:
    """Numbers that are being copied from the device."""

    def __init__(self, numbers: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        if numbers.is_cuda:
            host = torch.empty(numbers.shape, pin_memory=True)
            numbers = host.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        self._numbers = numbers

    def values(self) -> list[float]:
        """Return the numbers, without waiting for work that was queued after them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[float] = self._numbers.tolist()
        return values


@dataclass
class StepOutcome:
    """Result of one optimiser step: tensors on the device, read only when they are logged."""

    loss: Tensor
    outputs: Tensor
    inputs: Inputs
    labels: Tensor
    recent: Tensor  # the losses of the last steps, ending with this one
    task: TrainingTask

    def reading(self) -> Reading:
        """Start copying the watched metric and the recent losses, without blocking a GPU."""
        metric = self.task.on_batch(self.outputs, self.labels).float()
        return Reading(torch.cat([metric.view(1), self.recent.float()]))


class Mixed:
    """Autocast and loss scaling for a precision on a device; does nothing for float32."""

    def __init__(self, precision: str, device: torch.device) -> None:
        if precision == "16-mixed" and device.type == "cpu":
            logger.debug("16-mixed needs a GPU; training in float32 on the CPU")
            precision = "32"
        self.name = precision
        half = {"16-mixed": torch.float16, "bf16": torch.bfloat16}.get(precision)
        self.device, self.half = device.type, half
        scaled = half is torch.float16
        self.scaler = torch.amp.GradScaler(device.type) if scaled else None

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        if self.half is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=self.half)


Forward = Callable[[Inputs], Tensor]
# model, samples, labels -> loss, outputs
Objective = Callable[[Forward, Inputs, Tensor], tuple[Tensor, Tensor]]


def objective_of(task: TrainingTask) -> Objective:
    """Return the loss of a task as an objective."""

    def objective(forward: Forward, x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        outputs = forward(x)
        return task.loss(outputs, y), outputs

    return objective


class Step:
    """Forward, backward, update; `forward` is the model, or wraps it for several devices."""

    def __init__(
        self,
        model: nn.Module,
        forward: nn.Module,
        optimizer: Optimizer,
        options: TrainOptions,
        mixed: Mixed,
        task: TrainingTask = CLASSIFICATION,
        objective: Objective | None = None,
    ) -> None:
        self.model, self.optimizer, self.options, self.mixed = model, optimizer, options, mixed
        self.task, self.objective = task, objective or objective_of(task)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.forward = Predictor(model, forward, scores=task.of_scores)
        self.loss_of = self._loss
        if options.compile:
            self.loss_of = torch.compile(self._loss, dynamic=False)
        self._size: int | None = None
        # losses on a GPU are read only when they are logged, so it stores those in between
        num_losses = options.log_every_n_steps if self.parameters[0].is_cuda else 1
        self.recent = torch.zeros(num_losses, device=self.parameters[0].device)

    def _loss(self, x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.objective(self.forward, x, y)

    def accumulate(self, x: Inputs, y: Tensor, parts: int) -> StepOutcome:
        """Add the gradient of one batch, weighted with `1 / parts`."""
        if self._size is None:
            self._size = len(y)
            if self.options.compile:
                self.forward.learn_the_end(x)
        # compiling again for the smaller last batch of an epoch costs more than it saves
        loss_of = self.loss_of if len(y) == self._size else self._loss
        if self.mixed.half is None:
            loss, outputs = loss_of(x, y)
        else:
            with self.mixed.autocast():
                loss, outputs = loss_of(x, y)
        total = loss if parts == 1 else loss / parts
        if self.mixed.scaler is not None:
            total = self.mixed.scaler.scale(total)
        torch.autograd.backward(total)
        loss = loss.detach()
        if loss.is_cuda:
            self.recent.copy_(torch.cat([self.recent[1:], loss.float().view(1)]))
        else:
            self.recent = loss.view(1)
        return StepOutcome(loss, outputs.detach(), x, y, self.recent, self.task)

    def update(self) -> None:
        """Apply the accumulated gradients."""
        scaler, clip = self.mixed.scaler, self.options.gradient_clip
        if clip is not None:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, clip)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.optimizer.zero_grad()


class EpochRun(Protocol):
    """Iterator over the optimiser steps of an epoch; each item is a step that was taken."""

    def __call__(self, epoch: int, first: int) -> Iterator[StepOutcome]: ...


class EagerRun:
    """Takes steps on batches from an iterator, `accumulate_grad_batches` of them per step."""

    def __init__(
        self,
        step: Step,
        feed: Callable[[int, int], Iterator[tuple[Inputs, Tensor]]],
        rate: Callable[[], float],
        batches_per_epoch: int,
    ) -> None:
        self.step, self.feed, self.rate = step, feed, rate
        self.batches_per_epoch = batches_per_epoch

    def __call__(self, epoch: int, first: int) -> Iterator[StepOutcome]:
        step, parts, rate = self.step, self.step.options.accumulate_grad_batches, None
        for number, (x, y) in enumerate(self.feed(epoch, first * parts), start=first * parts + 1):
            outcome = step.accumulate(x, y, parts)
            if number % parts and number < self.batches_per_epoch:
                continue
            if rate != (rate := self.rate()):
                set_rate(step.optimizer, rate)
            step.update()
            yield outcome


Result = TypeVar("Result")


class Captured(Generic[Result]):
    """Repeated work that is captured in a CUDA graph and replayed.

    The first calls run it directly, to warm up. Later calls return the same object, with tensors
    that change.
    """

    def __init__(
        self, work: Callable[[], Result], device: torch.device, before: Callable[[], object]
    ) -> None:
        """`before` is called once, before the capture."""
        self.work, self.before = work, before
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = 0
        self.stream = torch.cuda.Stream(device)
        self.result: Result

    def __call__(self) -> Result:
        if self.graph is not None:
            self.graph.replay()
            return self.result
        if self.warm < WARM_UP:
            self.warm += 1
            with self.on_side_stream():
                return self.work()
        self.before()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = self.work()
        self.graph.replay()
        return self.result

    @contextlib.contextmanager
    def on_side_stream(self) -> Iterator[None]:
        """Context that works on a side stream, as work that will be captured must."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream().wait_stream(self.stream)


class CapturedRun:
    """Replays the whole step, with the gathering of its batch, as one CUDA graph.

    The smaller last batch of an epoch is not captured.
    """

    def __init__(
        self,
        step: Step,
        split: TensorSplit,
        batch_size: int,
        pass_of: Callable[[int], EpochPass],
        rate: Callable[[], float],
    ) -> None:
        self.step, self.split, self.batch_size = step, split, batch_size
        self.pass_of, self.rate = pass_of, rate
        device = split.device
        self.order = torch.empty(len(split), dtype=torch.int64, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.ahead = torch.arange(batch_size, device=device)
        self.take = Captured(self._next, device, before=step.optimizer.zero_grad)

    def __call__(self, epoch: int, first: int) -> Iterator[StepOutcome]:
        self.order.copy_(self.pass_of(epoch).order(len(self.split)))
        self.cursor.fill_(first * self.batch_size)
        whole = len(self.split) // self.batch_size
        rate: float | None = None
        for _ in range(first, whole):
            if rate != (rate := self.rate()):
                set_rate(self.step.optimizer, rate)
            yield self.take()
        if len(self.split) % self.batch_size and first <= whole:
            set_rate(self.step.optimizer, self.rate())
            with self.take.on_side_stream():
                outcome = self._train(self.order[whole * self.batch_size :])
            yield outcome

    def _next(self) -> StepOutcome:
        index = self.order.index_select(0, self.cursor + self.ahead)
        outcome = self._train(index)
        self.cursor += self.batch_size
        return outcome

    def _train(self, index: Tensor) -> StepOutcome:
        x, y = gathered(self.split, index)
        outcome = self.step.accumulate(self.split.prepare(x) if self.split.prepare else x, y, 1)
        self.step.update()
        return outcome
