"""One training step: eager, compiled, or replayed from a captured CUDA graph."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from chop.dataset.tensors import EpochPass, TensorSplit
from chop.training.optimisers import set_rate
from chop.training.options import TrainOptions

logger = logging.getLogger(__name__)
WARM_UP = 3  # steps that CUDA libraries need to settle before a capture


class Reading:
    """Numbers on their way from the device."""

    def __init__(self, numbers: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        if numbers.is_cuda:
            there = torch.empty(numbers.shape, pin_memory=True)
            numbers = there.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        self._numbers = numbers

    def values(self) -> list[float]:
        """Wait for these numbers, not for the work that was queued behind them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[float] = self._numbers.tolist()
        return values


@dataclass
class StepOutcome:
    """What is left of one optimiser step: tensors on the device, read only when they are logged."""

    loss: Tensor
    logits: Tensor
    inputs: Tensor
    labels: Tensor
    recent: Tensor  # the losses of the last steps, this one's at the end

    def reading(self) -> Reading:
        """Accuracy and recent losses as they are now; a GPU goes on while they travel."""
        accuracy = (self.logits.argmax(-1) == self.labels).float().mean()
        return Reading(torch.cat([accuracy.view(1), self.recent.float()]))


class Mixed:
    """Autocast and loss scaling for a precision on a device; nothing at all for float32."""

    def __init__(self, precision: str, device: torch.device) -> None:
        if precision == "16-mixed" and device.type == "cpu":
            logger.debug("16-mixed is for GPUs: this CPU computes in float32")
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


Forward = Callable[[Tensor], Tensor]
# the model, samples and labels -> what is to be made small, and what the model says
Objective = Callable[[Forward, Tensor, Tensor], tuple[Tensor, Tensor]]


def cross_entropy(forward: Forward, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The objective of classification."""
    logits = forward(x)
    return F.cross_entropy(logits, y), logits


class Step:
    """Forward, backward, update; `forward` is the model, or wraps it for many devices."""

    def __init__(
        self,
        model: nn.Module,
        forward: Forward,
        optimizer: Optimizer,
        options: TrainOptions,
        mixed: Mixed,
        objective: Objective = cross_entropy,
    ) -> None:
        self.model, self.optimizer, self.options, self.mixed = model, optimizer, options, mixed
        self.objective = objective
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.forward = forward
        self.loss_of = self._loss
        if options.compile:
            self.loss_of = torch.compile(self._loss, dynamic=False)
        self._size: int | None = None
        # a GPU is asked for its losses now and then: it keeps those in between
        kept = options.log_every_n_steps if self.parameters[0].is_cuda else 1
        self.recent = torch.zeros(kept, device=self.parameters[0].device)

    def _loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.objective(self.forward, x, y)

    def accumulate(self, x: Tensor, y: Tensor, parts: int) -> StepOutcome:
        """Add the gradient of one batch, the share `1 / parts` of a step."""
        if self._size is None:
            self._size = len(x)
        # the last batch of an epoch is smaller: compiling it anew costs more than it saves
        loss_of = self.loss_of if len(x) == self._size else self._loss
        if self.mixed.half is None:
            loss, logits = loss_of(x, y)
        else:
            with self.mixed.autocast():
                loss, logits = loss_of(x, y)
        total = loss if parts == 1 else loss / parts
        if self.mixed.scaler is not None:
            total = self.mixed.scaler.scale(total)
        torch.autograd.backward(total)
        loss = loss.detach()
        if loss.is_cuda:
            self.recent.copy_(torch.cat([self.recent[1:], loss.float().view(1)]))
        else:
            self.recent = loss.view(1)
        return StepOutcome(loss, logits.detach(), x, y, self.recent)

    def update(self) -> None:
        """Step the optimiser on what was accumulated."""
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
    """An epoch, step by step; each item is one optimiser step that has been taken."""

    def __call__(self, epoch: int, first: int) -> Iterator[StepOutcome]: ...


class EagerRun:
    """Batches come from an iterator; every `accumulate_grad_batches` of them make a step."""

    def __init__(
        self,
        step: Step,
        feed: Callable[[int, int], Iterator[tuple[Tensor, Tensor]]],
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
    """Work that is the same each time, captured in a CUDA graph and replayed.

    The first times it is done as it is, since the libraries settle in them. What it returns is then
    always the same object, whose tensors change.
    """

    def __init__(
        self, work: Callable[[], Result], device: torch.device, before: Callable[[], object]
    ) -> None:
        """`before` is called once, ahead of the capture."""
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
            with self.aside():
                return self.work()
        self.before()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = self.work()
        self.graph.replay()
        return self.result

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Work on a stream of its own, as work to be captured needs."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream().wait_stream(self.stream)


class CapturedRun:
    """The whole step in one CUDA graph: it gathers its batch, trains on it, and moves on.

    A batch that is smaller than the others is taken by itself.
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
        device = split.x.device
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
            with self.take.aside():
                outcome = self._train(self.order[whole * self.batch_size :])
            yield outcome

    def _next(self) -> StepOutcome:
        index = self.order.index_select(0, self.cursor + self.ahead)
        outcome = self._train(index)
        self.cursor += self.batch_size
        return outcome

    def _train(self, index: Tensor) -> StepOutcome:
        x, y = self.split.x.index_select(0, index), self.split.y.index_select(0, index)
        outcome = self.step.accumulate(self.split.prepare(x) if self.split.prepare else x, y, 1)
        self.step.update()
        return outcome
