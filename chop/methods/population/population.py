"""A population: candidates that are trained step by step together, until each is done."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.dataset.tensors import TensorSplit, batches
from chop.methods.population.architecture import Family, LayerCall, family_of
from chop.methods.population.batches import Batches, every
from chop.methods.population.network import Network
from chop.methods.population.stacks import State, chosen_rows, gather, scatter
from chop.methods.population.updates import Updates
from chop.training.check import float_type
from chop.training.feed import Format
from chop.training.fields import TrainingProgress
from chop.training.options import TrainOptions
from chop.training.steps import Captured


@dataclass(frozen=True)
class Report:
    """A candidate at the end of an epoch, or of its training."""

    candidate: int  # its index among the models
    epochs: int  # whole epochs
    steps: int
    loss: float  # on the validation split; without one, on the last batch
    accuracy: float | None  # on the validation split


@dataclass(frozen=True)
class PopulationOutcome(Report):
    """The result of a candidate; its weights are in its model."""

    seconds: float  # from the start until it was done
    stopped: str  # why: "budget", "patience", "asked" or "diverged"
    best_loss: float
    best_epoch: int


@dataclass
class PopulationMember:
    """One network of a population, and its progress."""

    number: int  # its index among the caller's models
    options: TrainOptions
    seed: int
    progress: TrainingProgress = field(default_factory=TrainingProgress)
    loss: float = math.inf
    accuracy: float | None = None

    @property
    def report(self) -> Report:
        p = self.progress
        return Report(self.number, p.epoch, p.step, self.loss, self.accuracy)

    def mark(self, calls: Sequence[LayerCall]) -> str:
        """Return a hash of the candidate without its weights and budget."""
        layers = [(c.kind, c.name, c.shapes, sorted(c.formats.items())) for c in calls]
        text = f"{self.options.optimizer} {self.seed} {layers}"
        return hashlib.sha256(text.encode()).hexdigest()

    def stopped(self) -> str | None:
        """Return why this candidate is done, by its options; None if it is not."""
        p, options = self.progress, self.options
        if p.step > 0 and not math.isfinite(self.loss):
            return "diverged"
        if p.is_at_limit(options):
            return "budget"
        return "patience" if p.is_out_of_patience(options) else None

    def end_epoch(self, loss: float, accuracy: float | None, *, step: int, rest: int) -> bool:
        """Record a score, and return whether it is the best; `rest` is 0 after a whole epoch."""
        p, self.loss, self.accuracy = self.progress, loss, accuracy
        p.step, p.step_in_epoch = step, rest
        p.epoch += not rest
        if not loss < p.best_loss:
            return False
        p.best_loss, p.best_accuracy, p.best_epoch = loss, accuracy, p.epoch - (not rest)
        return True


class Population:
    """Candidates that are trained together: their parameters, data and progress."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        data: tuple[TensorSplit, TensorSplit | None],
        options: Sequence[TrainOptions],
        seeds: Sequence[int],
        *,
        batch_size: int,
        device: torch.device,
        family: Family | None = None,
        keep_best: bool = False,
    ) -> None:
        self.models = models
        # candidates with the same optimiser are adjacent
        numbers = sorted(range(len(models)), key=lambda number: options[number].optimizer)
        self.active = [PopulationMember(i, options[i], seeds[i]) for i in numbers]
        family = (family or family_of(models)).only(numbers)
        self.batch_size = batch_size
        marks = {
            c.number: c.mark(calls) for c, calls in zip(self.active, family.members, strict=True)
        }
        self.fingerprints = [marks[number] for number in range(len(models))]
        kind = Format(float_type(models[0]))
        self.train = kind.split(data[0]).to(device)
        self.val = None if data[1] is None else kind.split(data[1]).to(device)
        sample = next(batches(self.train, 1))[0][0]
        self.network = Network(family, maps=sample.dim() > 1, channels=sample.shape[0])
        self.state = gather(family, self.network.plan, device, float_type(models[0]))
        self.moments = torch.zeros(2, *self.state.values.shape).to(self.state.values)
        # the parameters of each candidate's best epoch
        self.best = self.state.copy() if keep_best else None
        self.epoch = self.step = self.step_in_epoch = 0
        self.finite = torch.ones(len(models), dtype=torch.bool, device=device)
        self.outcomes: dict[int, PopulationOutcome] = {}
        self.began = time.perf_counter()
        self._ready()

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.train) / self.batch_size)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def _ready(self) -> None:
        """Rebuild everything that depends on the active candidates."""
        options, seeds = [c.options for c in self.active], [c.seed for c in self.active]
        self.state.values.requires_grad_()
        self.updates = Updates(self.state.values, options, self.moments, self.step)
        self.batches = Batches(self.train, self.batch_size, seeds, maps=self.network.maps)
        self.losses = self.state.values.new_zeros(len(options))
        self._captured: Captured[None] | None = None
        if self.losses.is_cuda and self.train.augment is None:
            self._captured = Captured(self._whole, self.losses.device, before=lambda: None)

    def _learn(self, x: Tensor, y: Tensor) -> None:
        logits = self.network(self.state, x, training=True)
        losses = F.cross_entropy(logits, y, reduction="none").mean(1)
        (grad,) = torch.autograd.grad(losses.sum(), self.state.values)
        self.updates(grad)
        self.losses.copy_(losses.detach())
        self.finite &= self.losses.isfinite()

    def _whole(self) -> None:
        self._learn(*self.batches.next())

    def take(self) -> None:
        """Take one step on the next whole batch; on a GPU, replay it."""
        (self._captured or self._whole)()

    def take_last(self) -> None:
        """Take one step on the samples that remain after the whole batches of an epoch."""
        with self._captured.on_side_stream() if self._captured else contextlib.nullcontext():
            self._learn(*self.batches.last())

    @property
    def work(self) -> int:
        """Batch size times parameters."""
        return self.batch_size * self.state.values.numel()

    def advance(self, max_seconds: float | None = None) -> bool:
        """Train until an epoch, a candidate's steps or the time ends; return whether in time."""
        limits = [c.options.max_steps for c in self.active if c.options.max_steps]
        end = min([self.steps_per_epoch, *(self.step_in_epoch + n - self.step for n in limits)])
        whole = len(self.train) // self.batch_size
        self.batches.start(self.epoch, self.step_in_epoch)
        in_time = True
        while self.step_in_epoch < end and in_time:
            self.updates.set_rates(epoch=self.epoch, step=self.step)
            if self.step_in_epoch < whole:
                self.take()
            else:
                self.take_last()
            self.step += 1
            self.step_in_epoch += 1
            in_time = max_seconds is None or self.seconds < max_seconds
        return in_time

    def enter_scores(self, *, all_of_them: bool) -> list[int]:
        """Score the candidates at the end of their epoch or training, and return their rows."""
        over = self.step_in_epoch >= self.steps_per_epoch
        rest = 0 if over else self.step_in_epoch
        if over:
            self.epoch, self.step_in_epoch = self.epoch + 1, 0
        ending = [
            row
            for row, c in enumerate(self.active)
            if over or all_of_them or c.options.max_steps == self.step
        ]
        losses, accuracies = self._scores(ending)
        finite, better = self.finite.tolist(), []
        for row, loss, accuracy in zip(ending, losses, accuracies, strict=True):
            loss = loss if finite[row] else math.nan
            if self.active[row].end_epoch(loss, accuracy, step=self.step, rest=rest):
                better.append(row)
        if self.best is not None:
            self.best.take(self.state, better)
        return ending

    def score(self, rows: list[int]) -> None:
        """Score candidates without steps to train."""
        if rows and self.val is not None:
            for row, loss, accuracy in zip(rows, *self._scores(rows), strict=True):
                self.active[row].loss, self.active[row].accuracy = loss, accuracy

    def _scores(self, rows: list[int]) -> tuple[list[float], list[float | None]]:
        """Return loss and accuracy on the validation split, or else the loss of the last batch."""
        if self.val is None:
            return self.losses[rows].tolist(), [None] * len(rows)
        network, state = self.network, self.state
        if len(rows) < len(self.active):
            network = network.only(rows)
            state = state.only(rows, self.network.plan, network.plan)
        loss, hits = scores(network, state, self.val, self.batch_size)
        return loss.tolist(), hits.tolist()

    def finish(self, done: dict[int, str]) -> None:
        """Write the candidates at these rows back to their models, and remove them."""
        if not done:
            return
        self._write_back(list(done))
        for row, why in done.items():
            candidate = self.active[row]
            report, p = asdict(candidate.report), candidate.progress
            report |= {"best_loss": p.best_loss, "best_epoch": p.best_epoch, "stopped": why}
            self.outcomes[candidate.number] = PopulationOutcome(**report, seconds=self.seconds)
        self.keep([row for row in range(len(self.active)) if row not in done])

    def _write_back(self, rows: list[int]) -> None:
        """Write the parameters of the last or best epoch to the models of the candidates."""
        state, steps = self.state, [self.step] * len(rows)
        if self.best is not None:
            state = self.best
            progress = [self.active[row].progress for row in rows]
            steps = [min((p.best_epoch + 1) * self.steps_per_epoch, p.step) for p in progress]
        scatter(self.network.family, self.network.plan, state, rows, steps)

    def keep(self, rows: list[int]) -> None:
        """Remove all candidates except those at `rows`."""
        self.active = [self.active[row] for row in rows]
        if not rows:
            return
        old, self.network = self.network.plan, self.network.only(rows)
        new = self.network.plan
        self.state = self.state.only(rows, old, new)
        if self.best is not None:
            self.best = self.best.only(rows, old, new)
        self.moments = torch.stack([chosen_rows(m, rows, old, new) for m in self.moments])
        self.finite = self.finite[rows]
        self._ready()

    def go_on_from(self, state: State, best: State | None, moments: Tensor, finite: Tensor) -> None:
        """Continue with the parameters of a population of the same candidates."""
        device = self.state.values.device
        self.state, self.best = state.to(device), best.to(device) if best else None
        self.moments, self.finite = moments.to(device), finite.to(device)
        self._ready()


@torch.no_grad()
def scores(
    network: Network, state: State, split: TensorSplit, batch_size: int
) -> tuple[Tensor, Tensor]:
    """Return the mean loss and accuracy of every candidate over a split."""
    candidates = len(network.family)
    loss = torch.zeros(candidates, dtype=torch.float64, device=state.values.device)
    hits = torch.zeros_like(loss)
    for x, y in every(split, batch_size, candidates, maps=network.maps):
        logits = network(state, x, training=False)
        y = y.expand(candidates, -1)
        loss += F.cross_entropy(logits, y, reduction="none").sum(1, dtype=torch.float64)
        hits += (logits.argmax(1) == y).sum(1)
    return loss / len(split), hits / len(split)
