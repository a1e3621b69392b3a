"""`train_front`: a Pareto front of networks with learned bit widths from one run."""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.checkpoints import fill
from chop.dataset.data_module import MaseDataModule
from chop.devices import parse_accelerator
from chop.ir.graph.mase_graph import MaseGraph
from chop.training.check import check_fit
from chop.training.devices import Place, settle_kernels, threads_for
from chop.training.feed import Feed
from chop.training.interruption import Interrupted
from chop.training.learned.archive import Archive, LearnedDesign, spread
from chop.training.learned.batches import MemberBatches
from chop.training.learned.health import Health, is_alive
from chop.training.learned.members import Members, width_names
from chop.training.learned.options import FrontOptions
from chop.training.learned.phase import TrainingPhase
from chop.training.learned.prices import prices_of
from chop.training.learned.snapshots import Snapshots
from chop.training.learned.teacher import check_teacher
from chop.training.scores import Score
from chop.training.targets import start_at_targets
from chop.training.tasks import TrainingTask, task_named

logger = logging.getLogger(__name__)

RETRAIN_RATE = 0.2  # of the learning rate, at which designs are retrained
PER_DOUBLING = 8  # of the cost: designs that are kept for retraining
MIN_BITS = 2.0  # on average, of the smallest networks of a front
MAX_PRICED = 100.0  # times the lowest price: a cost that leaves nothing of the loss


@dataclass(frozen=True)
class Checkpoint:
    """How far a run has come when its networks have been scored."""

    step: int
    steps: int
    metric: str
    scores: tuple[float, ...]  # the main metric of each network
    costs: tuple[float, ...]
    designs: int
    alive: tuple[bool, ...]

    def __str__(self) -> str:
        living = [k for k, alive in enumerate(self.alive) if alive] or range(len(self.scores))
        scores, costs = ([each[k] for k in living] for each in (self.scores, self.costs))
        ends = [f"{f(scores):.4f} at {f(costs):,.0f}" for f in (min, max)]
        shown = " to ".join(dict.fromkeys(ends))
        return f"Step {self.step:,} of {self.steps:,}: {self.metric} {shown}, {self.designs} kept"


@dataclass(frozen=True)
class FrontReport:
    """What a user of a front must know besides its designs; lists have an entry per network."""

    steps: int
    seconds: float  # of this process
    restarts: list[int]  # times that a network died and continued from a neighbour
    dead: list[int]  # numbers of the networks that were dead at the end, which are not kept
    skipped_steps: list[int]  # steps without an update, as a gradient was not finite
    widths_at_bounds: list[int]
    missed_targets: list[float] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """Return what went wrong, one sentence each."""
        died = [k for k, times in enumerate(self.restarts) if times]
        skipped = [k for k, steps in enumerate(self.skipped_steps) if steps]
        bound = sum(self.widths_at_bounds)
        return [
            *([f"networks {died} died and were restarted from a neighbour"] if died else []),
            *([f"networks {self.dead} were dead at the end and left out"] if self.dead else []),
            *([f"networks {skipped} had gradients that are not finite"] if skipped else []),
            *([f"{bound:,} widths are at a bound; widen `bounds` to free them"] if bound else []),
            *(
                f"no network meets the target {target:g}; train for more steps or raise `target`"
                for target in self.missed_targets
            ),
        ]


@dataclass(frozen=True)
class LearnedFront:
    """The designs that nothing dominates, the cheapest first, and the report of the run."""

    designs: list[LearnedDesign]
    report: FrontReport
    cost: str  # the name of the cost
    metric: str  # the name of the main metric
    source: nn.Module | MaseGraph = field(repr=False)

    def network(self, design: LearnedDesign) -> Any:
        """Return a new model, or graph, with the weights and widths of a design."""
        made = self.source.clone() if isinstance(self.source, MaseGraph) else None
        model = copy.deepcopy(self.source) if made is None else made.model
        assert isinstance(model, nn.Module)
        fill(model, design.state, "the design")
        return made if made is not None else model

    def within(self, limit: float) -> LearnedDesign | None:
        """Return the best design that costs at most `limit`."""
        affordable = [design for design in self.designs if design.cost <= limit]
        return affordable[-1] if affordable else None


def train_front(
    model: nn.Module | MaseGraph,
    data: Any,
    options: FrontOptions | None = None,
    *,
    task: str = "cls",
    accelerator: str = "auto",
    teacher: nn.Module | None = None,
    folder: Path | str | None = None,
    on_checkpoint: Callable[[Checkpoint], object] = lambda checkpoint: None,
    interrupted: Callable[[], int | None] = lambda: None,
) -> LearnedFront:
    """Train layers that learn their bit widths, and return the front of score and cost.

    `data` is a data module, or training and validation splits with `options.batch_size`. The
    `teacher`, by default none, is what `distill` learns from. With `folder`, the run is saved at
    each checkpoint, and one that was cut continues from there with the same bits. A signal that
    `interrupted` returns stops the run after it was saved.
    """
    options = options or FrontOptions()
    run = _Run(model, data, options, task_named(task), accelerator, teacher, folder)
    settle_kernels(run.model, run.place.device)
    with _seeded(options.seed), threads_for(run.work, run.place.device):
        return run.front(on_checkpoint, interrupted)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch, and restore its random numbers at the end."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


class _Run:
    """One run: the network, its data on the device, and the phases of training."""

    def __init__(
        self,
        source: nn.Module | MaseGraph,
        data: Any,
        options: FrontOptions,
        task: TrainingTask,
        accelerator: str,
        teacher: nn.Module | None,
        folder: Path | str | None,
    ) -> None:
        self.source, self.options, self.task = source, options, task
        self.model = source.model if isinstance(source, MaseGraph) else source
        if not width_names(self.model):
            raise ValueError(
                "the network has no layer that learns its bit widths; apply learn_bits first, or "
                "use a model such as jsc-table"
            )
        if options.distill and teacher is None:
            raise ValueError("distill needs the float network as `teacher`; give it, or omit it")
        self.place = Place(parse_accelerator(accelerator))
        train, validation, size = _splits(data, options)
        self.feed = Feed(train, size, self.place, seed=options.seed)
        rows = options.num_val_samples
        self.scored = Feed(
            validation if rows is None else validation.rows(slice(rows)), size, self.place
        )
        self.teacher = teacher.to(self.place.device).eval() if options.distill and teacher else None
        check_fit(copy.deepcopy(self.model).to(self.place.device), self.feed, task, learning=False)
        if self.teacher is not None:
            check_teacher(self.teacher, self.model, self.scored)
        self.steps = options.num_steps(self.feed.samples, size)
        per_doubling = PER_DOUBLING if options.retrain and not options.targets else 0
        self.archive = Archive(task.main, task.metrics[task.main], per_doubling=per_doubling)
        self.health = Health(options.num_members)
        self.snapshots = Snapshots(Path(folder)) if folder is not None else None
        self.retrained: list[LearnedDesign] = []
        self.skipped: list[int] = []
        self.bounds: list[int] = []
        self.number = 0  # of the phase
        self.began = time.perf_counter()

    @property
    def work(self) -> int:
        """Batch times parameters of all networks, which decides the number of threads."""
        parameters = sum(p.numel() for p in self.model.parameters())
        return self.feed.batch_size * parameters * self.options.num_members

    @property
    def identity(self) -> str:
        """A digest of all that decides the bits of the result."""
        digest = hashlib.sha256(repr(sorted(asdict(self.options).items())).encode())
        digest.update(repr((self.task.name, self.feed.batch_size, self.place.device.type)).encode())
        for network in filter(None, (self.model, self.teacher)):
            digest.update(_structure(network).encode())
            for name, tensor in sorted(network.state_dict().items()):
                digest.update(name.encode())
                flat = tensor.detach().cpu().contiguous().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data)
        for feed in (self.feed, self.scored):
            digest.update(str(getattr(feed.split, "fingerprint", "")).encode())
        return digest.hexdigest()

    def front(
        self,
        on_checkpoint: Callable[[Checkpoint], object],
        interrupted: Callable[[], int | None],
    ) -> LearnedFront:
        saved = self._resumed()
        if self.number == 0:
            self._run(self._main(), saved, on_checkpoint, interrupted)
            self.number, saved = 1, None
        chosen = self._chosen()
        groups = self._groups(chosen)
        while self.options.retrain and self.number <= len(groups):
            phase = self._again(groups[self.number - 1])
            self._run(phase, saved, lambda checkpoint: None, interrupted)
            self.number, saved = self.number + 1, None
        if self.options.retrain:
            self.archive.replace([*chosen, *self.retrained])
        if not self.archive.designs:
            raise ValueError(self._nothing_learned())
        return LearnedFront(
            self._chosen(), self._report(), self.options.cost_name, self.task.main, self.source
        )

    def _nothing_learned(self) -> str:
        if self.skipped and min(self.skipped) >= self.steps:
            return (
                "no step had finite gradients; look for NaN or infinite numbers in the data and in "
                "the weights, or lower learning_rate"
            )
        return (
            "no network became better than a constant guess; lower `price`, train for more steps, "
            "or use another learning_rate"
        )

    # --- phases

    def _main(self) -> TrainingPhase:
        models = [self._started(member) for member in range(self.options.num_members)]
        phase = self._phase(
            models,
            steps=self.steps,
            prices=prices_of(self.options, self.place.device),
            rate=self.options.learning_rate,
        )
        self._warn_of_prices(float(phase.members.exact_costs().max()))
        self._warn_of_short_run(phase)
        return phase

    def _warn_of_short_run(self, phase: TrainingPhase) -> None:
        """Warn of widths that cannot become small in the steps of the run."""
        start, reach = float(phase.members.widths.clamp(min=0).mean()), phase.reach
        if reach >= start - MIN_BITS:
            return
        factor = (start - MIN_BITS) / max(reach, 1e-12)
        rate = self.options.width_factor * self.options.learning_rate
        logger.warning(
            "Widths start at %.1f bits on average, and in %s steps they can become only %.2g bits "
            "smaller, so the networks of the front will be nearly the same; set width_rate to %.2g "
            "or more, or take %s steps",
            *(
                start,
                f"{self.steps:,}",
                reach,
                factor * rate,
                f"{math.ceil(factor * self.steps):,}",
            ),
        )

    def _warn_of_prices(self, cost: float) -> None:
        """Warn of prices for networks of another size, at which all bits vanish."""
        priced = self.options.prices[0] * cost
        if priced > MAX_PRICED:
            logger.warning(
                "The lowest price times the %s of the network is %.3g, where a loss is about 1: "
                "all bits may vanish. A price from %.0e to %.0e suits this network",
                *(self.options.cost_name, priced, 0.03 / cost, 3 / cost),
            )

    def _started(self, member: int) -> nn.Module:
        """Return a network as it begins, with the range of the targets if it is new."""
        model = copy.deepcopy(self._start(member))
        start_at_targets(model, self.feed.split, self.task)
        return model

    def _start(self, member: int) -> nn.Module:
        """Return a network as it begins: as given, or with new random weights."""
        if not self.options.fresh or member == 0:
            return self.model
        model = copy.deepcopy(self.model)
        torch.manual_seed(self.options.seed + 7919 * member)
        for layer in model.modules():
            if next(layer.parameters(recurse=False), None) is None:
                continue
            reset = getattr(layer, "reset_parameters", None)
            if reset is None:
                raise ValueError(
                    f"{type(layer).__name__} has no `reset_parameters`, which draws new weights; "
                    f"add it, or omit `fresh`"
                )
            reset()
        return model

    def _groups(self, designs: Sequence[LearnedDesign]) -> list[Sequence[LearnedDesign]]:
        size = max(self.options.members, self.options.num_members)
        return [designs[i : i + size] for i in range(0, len(designs), size)]

    def _again(self, designs: Sequence[LearnedDesign]) -> TrainingPhase:
        """Return the phase in which designs are retrained, with their widths."""
        models = []
        for design in designs:
            model = copy.deepcopy(self.model)
            fill(model, design.state, "the design")
            models.append(model)
        rate = RETRAIN_RATE * self.options.learning_rate
        return self._phase(models, steps=self.options.retrain, prices=None, rate=rate)

    def _phase(self, models: Sequence[nn.Module], **how: Any) -> TrainingPhase:
        members = Members(models, self.options.weights, self.place.device, self.task)
        if self.options.compile:
            members.skeleton.learn_the_end(self.feed.few()[0])
        seed = self.options.seed + self.number
        batches = MemberBatches(self.feed, members.count, seed, self.teacher, self.task)
        return TrainingPhase(members, batches, self.options, self.task, **how)

    def _run(
        self,
        phase: TrainingPhase,
        saved: dict[str, Any] | None,
        on_checkpoint: Callable[[Checkpoint], object],
        interrupted: Callable[[], int | None],
    ) -> None:
        """Take the steps of a phase, and score its networks at each checkpoint."""
        if saved is not None:
            phase.load(saved["phase"])
        count = self.options.checkpoints if self.number == 0 else 1
        due = {math.ceil(phase.steps * k / count) for k in range(1, count + 1)}
        while not phase.is_done:
            phase.take()
            if phase.step in due:
                checkpoint = self._checkpoint(phase)
                self._save(phase)
                on_checkpoint(checkpoint)
            if (received := interrupted()) is not None and received:
                self._save(phase)
                raise Interrupted(received)
        self.skipped = self.skipped or [int(n) for n in phase.adam.skipped.flatten().tolist()]
        self.bounds = self.bounds or phase.at_bounds()

    # --- checkpoints

    def _checkpoint(self, phase: TrainingPhase) -> Checkpoint:
        scores = phase.members.scores(self.scored.every(), self.task)
        costs = phase.members.exact_costs().tolist()
        finite = phase.members.values.detach().isfinite().all(1).tolist()
        if self.number:
            self._keep_better(phase, scores, costs)
            alive = [True] * len(scores)
        else:
            dead = self.health.look(scores, self.task.main, finite)
            alive = list(self.health.alive)
            self._keep(phase, scores, costs)
            if not phase.is_done:
                self._restart(phase, dead)
        mains = tuple(score.metrics[self.task.main] for score in scores)
        facts = (phase.step, phase.steps, self.task.main, mains, tuple(costs))
        return Checkpoint(*facts, len(self.archive.designs), tuple(alive))

    def _keep(self, phase: TrainingPhase, scores: Sequence[Score], costs: Sequence[float]) -> None:
        """Keep the living networks that nothing dominates."""
        for k, (score, cost) in enumerate(zip(scores, costs, strict=True)):
            if self.health.alive[k] and self.archive.admits(score.metrics, cost):
                self.archive.add(self._design(phase, k, score, cost, float(phase.price[k])))

    def _design(
        self, phase: TrainingPhase, k: int, score: Score, cost: float, price: float
    ) -> LearnedDesign:
        state = phase.members.row(k)
        return LearnedDesign(k, phase.step, self.number, price, cost, score.with_loss, state)

    def _keep_better(
        self, phase: TrainingPhase, scores: Sequence[Score], costs: Sequence[float]
    ) -> None:
        """Keep retrained designs; the archive leaves out those that became worse."""
        designs = self._groups(self._chosen())[self.number - 1]
        for k, (design, score, cost) in enumerate(zip(designs, scores, costs, strict=True)):
            if is_alive(score, self.task.main):
                self.retrained.append(self._design(phase, k, score, cost, design.price))

    def _restart(self, phase: TrainingPhase, dead: Sequence[int]) -> None:
        for member in dead:
            donor = self.health.donor(member)
            if donor is None:
                continue
            phase.restart(donor, member)
            self.health.restarts[member] += 1
            logger.warning(
                "Network %d died at step %d and continues from network %d",
                *(member, phase.step, donor),
            )

    def _chosen(self) -> list[LearnedDesign]:
        """Return the designs of the front; for targets, those that meet the largest one."""
        designs = self.archive.designs
        if self.options.targets:
            limit = max(self.options.targets)
            designs = [design for design in designs if design.cost <= limit] or designs
        return spread(designs, self.options.max_designs)

    def _report(self) -> FrontReport:
        costs = [design.cost for design in self.archive.designs]
        missed = [t for t in self.options.targets if not any(cost <= t for cost in costs)]
        report = FrontReport(
            self.steps,
            time.perf_counter() - self.began,
            self.health.restarts,
            [k for k, alive in enumerate(self.health.alive) if not alive],
            self.skipped,
            self.bounds,
            missed,
        )
        for warning in report.warnings:
            logger.warning("The front: %s", warning)
        return report

    # --- snapshots

    def _save(self, phase: TrainingPhase) -> None:
        if self.snapshots is None:
            return
        random = {"cpu": torch.get_rng_state()}
        if self.place.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.place.device)
        state = {
            "number": self.number,
            "phase": phase.tensors,
            "health": self.health.facts,
            "retrained": [design.name for design in self.retrained],
            "skipped": self.skipped,
            "bounds": self.bounds,
            "random": random,
        }
        self.snapshots.write(self.identity, state, [*self.archive.designs, *self.retrained])

    def _resumed(self) -> dict[str, Any] | None:
        """Restore and return the state of an earlier process, or return None."""
        read = self.snapshots.read(self.identity) if self.snapshots is not None else None
        if read is None:
            return None
        saved, designs = read
        names = set(saved["retrained"])
        self.archive.designs = [design for design in designs if design.name not in names]
        self.retrained = [design for design in designs if design.name in names]
        self.health = Health(self.options.num_members, **saved["health"])
        self.number, self.skipped, self.bounds = (
            saved[name] for name in ("number", "skipped", "bounds")
        )
        torch.set_rng_state(saved["random"]["cpu"])
        if "cuda" in saved["random"] and self.place.device.type == "cuda":
            torch.cuda.set_rng_state(saved["random"]["cuda"], self.place.device)
        logger.info("Continued the front at step %d", saved["phase"]["step"])
        return saved


def _structure(network: nn.Module) -> str:
    """Return what a network computes besides its tensors: layers, their options and formats."""
    lines = [str(getattr(network, "code", ""))]
    for name, layer in network.named_modules():
        own = {n: v for n, v in vars(layer).items() if not n.startswith("_") and n != "training"}
        options = {n: v for n, v in own.items() if isinstance(v, bool | int | float | str | tuple)}
        formats = sorted(getattr(layer, "formats", {}).items())
        lines.append(f"{name} {type(layer).__qualname__} {sorted(options.items())} {formats}")
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(lines))  # addresses differ between processes


def _splits(data: Any, options: FrontOptions) -> tuple[Any, Any, int]:
    """Return the training split, the validation split and the batch size."""
    if isinstance(data, tuple) and len(data) == 2:
        (train, validation), usual = data, 1024
    elif not isinstance(data, MaseDataModule):
        raise TypeError(
            f"a front is trained on a data module, or on a pair of a training and a validation "
            f"split, not on {type(data).__name__}"
        )
    else:
        if data.train_dataset is None:
            data.prepare_data()
            data.setup("fit")
        train, validation, usual = data.train_dataset, data.val_dataset, data.batch_size
    if validation is None:
        raise ValueError(
            "a front needs a validation split, on which designs are compared; use a data set that "
            "has one"
        )
    size = min(options.batch_size or usual, len(train))
    return train, validation, size
