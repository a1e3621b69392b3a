"""`train_population`: what `Training` does for one network, for many at once."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.dataset.tensors import TensorSplit, batches
from chop.devices import parse_accelerator
from chop.training.check import check_fit, float_type
from chop.training.devices import Place, threads_for
from chop.training.feed import Feed, Format
from chop.training.options import TrainOptions
from chop.training.population.batches import Batches, every
from chop.training.population.family import Unfit, family_of, reason_against
from chop.training.population.network import Network
from chop.training.population.stacks import State, gather, plan_of, scatter
from chop.training.population.updates import UPDATES, Updates
from chop.training.saving import Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """A candidate at the end of an epoch, or of its training."""

    candidate: int  # its number among the models
    epochs: int  # whole ones
    steps: int
    loss: float  # on the validation split; without one, that of the last batch
    accuracy: float | None  # on the validation split


@dataclass(frozen=True)
class Outcome(Report):
    """What became of a candidate; its weights are in its model."""

    seconds: float  # from the beginning until it was done
    stopped: str  # why: "budget", "patience", "asked" or "diverged"
    best_loss: float
    best_epoch: int


OnEpoch = Callable[[Sequence[Report]], None]
ShouldStop = Callable[[Report], bool]


@dataclass
class Candidate:
    """One network of a population, and its books."""

    number: int  # among the caller's models
    model: nn.Module
    options: TrainOptions
    seed: int
    progress: Progress = field(default_factory=Progress)
    loss: float = math.inf
    accuracy: float | None = None

    @property
    def report(self) -> Report:
        p = self.progress
        return Report(self.number, p.epoch, p.step, self.loss, self.accuracy)

    def stopped(self) -> str | None:
        """Why this candidate is done, by its own options; None if it is not."""
        p, options = self.progress, self.options
        if p.step > 0 and not math.isfinite(self.loss):
            return "diverged"
        if p.epoch >= options.max_epochs or (options.max_steps and p.step >= options.max_steps):
            return "budget"
        patience = options.early_stopping
        if patience is not None and p.best_epoch >= 0 and p.stale_epochs >= patience:
            return "patience"
        return None

    def end_epoch(self, loss: float, accuracy: float | None, *, step: int, rest: int) -> None:
        """Enter a score; `rest` are the steps of an epoch that is not over, else 0."""
        p, self.loss, self.accuracy = self.progress, loss, accuracy
        p.step, p.step_in_epoch = step, rest
        p.epoch += not rest
        if loss < p.best_loss:
            p.best_loss, p.best_accuracy, p.best_epoch = loss, accuracy, p.epoch - (not rest)


class Population:
    """Candidates that learn in step: their numbers, their data, and how far they are."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        data: tuple[TensorSplit, TensorSplit | None],
        options: Sequence[TrainOptions],
        seeds: Sequence[int],
        *,
        batch_size: int,
        device: torch.device,
    ) -> None:
        # candidates of one optimiser lie side by side
        numbers = sorted(range(len(models)), key=lambda number: options[number].optimizer)
        self.active = [Candidate(i, models[i], options[i], seeds[i]) for i in numbers]
        family = family_of([candidate.model for candidate in self.active])
        self.batch_size, self.plan = batch_size, plan_of(family)
        kind = Format(float_type(models[0]))
        self.train = kind.split(data[0]).to(device)
        self.val = None if data[1] is None else kind.split(data[1]).to(device)
        sample = next(batches(self.train, 1))[0][0]
        maps, channels = sample.dim() > 1, sample.shape[0]
        self.network = Network(family, self.plan, maps=maps, channels=channels)
        self.state = gather(family, self.plan, device, float_type(models[0]))
        self.moments = torch.zeros(2, *self.state.values.shape).to(self.state.values)
        self.epoch = self.step = self.step_in_epoch = 0
        self.outcomes: dict[int, Outcome] = {}
        self.began = time.perf_counter()
        self._ready()

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.train) / self.batch_size)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def _ready(self) -> None:
        """Make what follows from who is in the population."""
        options, seeds = [c.options for c in self.active], [c.seed for c in self.active]
        self.state.values.requires_grad_()
        self.updates = Updates(self.state.values, options, self.moments, self.step)
        maps = self.network.maps
        self.batches = Batches(self.train, self.batch_size, seeds, maps=maps)
        self.losses = self.state.values.new_zeros(len(options))
        self.finite = torch.ones_like(self.losses, dtype=torch.bool)

    def _learn(self, x: Tensor, y: Tensor) -> None:
        logits = self.network(self.state, x, training=True)
        losses = F.cross_entropy(logits, y, reduction="none").mean(1)
        (grad,) = torch.autograd.grad(losses.sum(), self.state.values)
        self.updates(grad)
        self.losses.copy_(losses.detach())
        self.finite &= self.losses.isfinite()

    def take(self) -> None:
        """One step on the coming whole batch."""
        self._learn(*self.batches.next())

    @property
    def work(self) -> int:
        """Products of batch and parameters in a step."""
        return self.batch_size * self.state.values.numel()

    def advance(self, max_seconds: float | None = None) -> bool:
        """Train until the epoch, the steps of a candidate or the time end; whether time is left."""
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
                self._learn(*self.batches.last())
            self.step += 1
            self.step_in_epoch += 1
            in_time = max_seconds is None or self.seconds < max_seconds
        return in_time

    def enter_scores(self, *, all_of_them: bool) -> list[int]:
        """Score the candidates whose epoch or training ends here; their rows."""
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
        finite = self.finite.tolist()
        for row, loss, accuracy in zip(ending, losses, accuracies, strict=True):
            loss = loss if finite[row] else math.nan
            self.active[row].end_epoch(loss, accuracy, step=self.step, rest=rest)
        return ending

    def _scores(self, rows: list[int]) -> tuple[list[float], list[float | None]]:
        """Loss and accuracy on the validation split; without one, the loss of the last batch."""
        if self.val is None:
            return self.losses[rows].tolist(), [None] * len(rows)
        network, state = self.network, self.state
        if len(rows) < len(self.active):
            network = network.only(rows)
            state = state.only(torch.tensor(rows, device=state.values.device))
        loss, hits = scores(network, state, self.val, self.batch_size)
        return loss.tolist(), hits.tolist()

    def finish(self, done: dict[int, str]) -> None:
        """Write the candidates at these rows back into their models, and close ranks."""
        if not done:
            return
        counts = [self.step] * len(done)
        scatter(self.network.family, self.plan, self.state, list(done), counts)
        for row, why in done.items():
            candidate = self.active[row]
            report, p = candidate.report, candidate.progress
            self.outcomes[candidate.number] = Outcome(
                **vars(report),
                seconds=self.seconds,
                stopped=why,
                best_loss=p.best_loss,
                best_epoch=p.best_epoch,
            )
        rows = [row for row in range(len(self.active)) if row not in done]
        self.active = [self.active[row] for row in rows]
        if rows:
            self._compact(rows)

    def _compact(self, rows: list[int]) -> None:
        kept = torch.tensor(rows, device=self.state.values.device)
        self.network, self.state = self.network.only(rows), self.state.only(kept)
        self.moments = self.moments.index_select(1, kept)
        self._ready()


@torch.no_grad()
def scores(
    network: Network, state: State, split: TensorSplit, batch_size: int
) -> tuple[Tensor, Tensor]:
    """Mean loss and accuracy of every candidate over a split."""
    candidates = len(network.family)
    loss = torch.zeros(candidates, dtype=torch.float64, device=state.values.device)
    hits = torch.zeros_like(loss)
    for x, y in every(split, batch_size, candidates, maps=network.maps):
        logits = network(state, x, training=False)
        y = y.expand(candidates, -1)
        loss += F.cross_entropy(logits, y, reduction="none").sum(1, dtype=torch.float64)
        hits += (logits.argmax(1) == y).sum(1)
    return loss / len(split), hits / len(split)


def train_population(
    models: Sequence[nn.Module],
    data: tuple[TensorSplit, TensorSplit | None],
    options: TrainOptions | Sequence[TrainOptions],
    *,
    batch_size: int,
    seeds: Sequence[int] | None = None,
    shared_order: bool = False,
    device: str = "cpu",
    max_seconds: float | None = None,
    on_epoch: OnEpoch | None = None,
    should_stop: ShouldStop | None = None,
) -> list[Outcome]:
    """Train all `models` at once on (training, validation) data, each as `Training` would alone.

    `options` are for all, or one a model; `seeds`, by default those of the options, decide each
    candidate's order of the samples, and `shared_order` gives all that of the first. A candidate
    ends by its own epochs, steps or patience, or when `should_stop` says so at the end of one of
    its epochs; `max_seconds` end them all.
    """
    chosen = [options] * len(models) if isinstance(options, TrainOptions) else list(options)
    orders = [each.seed for each in chosen] if seeds is None else list(seeds)
    _check(models, data, chosen, orders)
    if shared_order:
        orders = [orders[0]] * len(orders)
    if chosen[0].precision == "64":
        for model in models:
            model.double()
    place = parse_accelerator(device)
    for model in models:  # padding would hide a layer that does not fit
        home = Place(next(model.parameters()).device)
        check_fit(model, Feed(data[0], batch_size, home, float_type(model)))
    population = Population(models, data, chosen, orders, batch_size=batch_size, device=place)
    with threads_for(population.work, place):
        _run(population, max_seconds, on_epoch, should_stop)
    return [population.outcomes[number] for number in range(len(models))]


def _run(
    population: Population,
    max_seconds: float | None,
    on_epoch: OnEpoch | None,
    should_stop: ShouldStop | None,
) -> None:
    at_once = [row for row, c in enumerate(population.active) if c.stopped()]
    population.finish(dict.fromkeys(at_once, "budget"))
    while population.active:
        in_time = population.advance(max_seconds)
        ending = population.enter_scores(all_of_them=not in_time)
        reports = [population.active[row].report for row in ending]
        if on_epoch is not None:
            on_epoch(reports)
        done: dict[int, str] = {}
        for row, report in zip(ending, reports, strict=True):
            why = population.active[row].stopped() or ("budget" if not in_time else None)
            if why is None and should_stop is not None and should_stop(report):
                why = "asked"
            done |= {row: why} if why else {}
        population.finish(done)


def _check(
    models: Sequence[nn.Module],
    data: tuple[TensorSplit, TensorSplit | None],
    options: Sequence[TrainOptions],
    seeds: Sequence[int],
) -> None:
    """Refuse what cannot be trained, before anything is."""
    for what, given in (("options", options), ("seeds", seeds)):
        if len(given) != len(models):
            raise ValueError(f"{len(models)} models need as many {what}, not {len(given)}")
    reason = reason_against(models) or reason_against_options(options)
    if reason:
        raise Unfit(f"{reason}; train these networks one by one")
    if data[1] is None and any(each.early_stopping is not None for each in options):
        raise ValueError("early_stopping needs a validation split")


def reason_against_options(options: Sequence[TrainOptions]) -> str | None:
    """Why runs with these options cannot be one population; None if they can."""
    first = options[0]
    for each in options:
        if each.precision not in ("32", "64") or each.precision != first.precision:
            return f"a population computes in precision 32 or in 64, not in {each.precision}"
        if each.accumulate_grad_batches != 1 or each.fast_dev_run or each.devices > 1:
            return "a population takes whole batches on one device"
        if each.optimizer not in UPDATES:
            return f"{each.optimizer} has no form for populations; those are {', '.join(UPDATES)}"
    return None
