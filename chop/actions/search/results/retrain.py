"""After the search: the chosen designs are trained to the end, and tested once on unseen data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError
from chop.actions.search.metrics.identity import identity
from chop.actions.search.metrics.stackable import POPULATION, StackableGroups
from chop.actions.search.results.files import Results, plain
from chop.actions.search.spec.settings import Retrain
from chop.files import read_json, write_whole
from chop.training.options import RETRAIN, TrainOptions

if TYPE_CHECKING:
    from torch import nn

    from chop.actions.search.run.worker import Worker
    from chop.actions.search.spec.problem import Problem
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.training.names import Names
    from chop.training.population import Report

logger = logging.getLogger(__name__)

RESULT = "result.json"
SPLITS = ("validation", "test")
Scores = dict[str, dict[str, float]]  # split -> metric
Tested = dict[str, Scores]  # by design


def check_splits(data_module: Any) -> None:
    """What `search.retrain` needs is said before the search."""
    missing = [s for s in SPLITS if s not in data_module.dataset_info.available_splits]
    if missing:
        raise ConfigError(
            f"search.retrain needs the {missing[0]} split, which the data set "
            f"{data_module.name!r} does not have; omit the table, or use another data set"
        )


def retrain(
    problem: Problem, worker: Worker, how: Retrain, results: Results, folder: Path, *, bar: bool
) -> Tested:
    """Train the chosen designs, each in a folder of its own; those that are done are left alone."""
    numbers = _chosen(how, results)
    whose = identity(problem.graph.model, problem.data_module, problem.seed)
    designs = [_Design(problem, worker, how, results, n, folder, whose, bar=bar) for n in numbers]
    begun = [design for design in designs if design.is_begun]
    found: Tested = {}
    if problem.trained:
        found["baseline"] = _baseline(problem, folder, whose)
    for design in begun:
        found[str(design.number)] = design.result()
    rest = [design for design in designs if design not in begun]
    diverged = _Populations(problem, worker, folder).train(rest)
    for design in rest:
        if design.number not in diverged:
            found[str(design.number)] = design.result()
    if diverged:
        raise FloatingPointError(
            f"trial {diverged[0]} cannot be retrained: its loss is not a number; lower "
            f"learning_rate in search.retrain, remove {folder}, and continue with --resume"
        )
    return {key: found[key] for key in ("baseline", *map(str, numbers)) if key in found}


def _chosen(how: Retrain, results: Results) -> list[int]:
    ranked = [out.number for out in results.ranked]
    if how.designs == "front":
        return sorted(ranked)
    return ranked[: 1 if how.designs == "best" else int(how.designs)]


def _baseline(problem: Problem, folder: Path, whose: str) -> Scores:
    """The parent on both splits, once."""
    file = folder / "baseline.json"
    mark = hashlib.sha256(whose.encode()).hexdigest()
    if file.exists():
        return _read(file, mark)

    options = TrainOptions(accelerator=problem.accelerator)
    scores = _scores(problem.graph.clone().model, problem, options)
    write_whole(file, json.dumps({"mark": mark, "scores": scores}) + "\n")
    return scores


class _Design:
    """One design that is trained to the end."""

    def __init__(
        self,
        problem: Problem,
        worker: Worker,
        how: Retrain,
        results: Results,
        number: int,
        folder: Path,
        whose: str,  # which parent and data
        *,
        bar: bool,
    ) -> None:
        self.problem, self.worker, self.how, self.number = problem, worker, how, number
        self.bar = bar
        self.chosen = results.designs[number]
        self.folder = folder / f"trial_{number}"
        self.file = self.folder / RESULT
        training = {name: getattr(how.training, name) for name in RETRAIN}
        facts = (whose, {"designs": None} | training, plain(results.config(number)))
        self.mark = hashlib.sha256(repr(facts).encode()).hexdigest()

    @property
    def names(self) -> Names:
        from chop.training.names import Names

        return Names(self.folder)

    @property
    def is_begun(self) -> bool:
        """Whether it is done, or an earlier run has begun to train it alone."""
        return self.file.exists() or self.names.last.exists()

    def result(self) -> Scores:
        """Its scores; a test split is looked at once, also by a search that is resumed."""
        if self.file.exists():
            return _read(self.file, self.mark)
        logger.info("Retraining trial %d...", self.number)
        scores = self._trained()
        self.write(scores)
        return scores

    def write(self, scores: Scores) -> None:
        """Keep the scores, which makes the design a done one."""
        write_whole(self.file, json.dumps({"mark": self.mark, "scores": scores}) + "\n")
        logger.info("Trial %d: %s", self.number, scores)

    def untrained(self) -> MaseGraph:
        """Its network, as it is before any training."""
        return self.worker.untrained(self.number, self.chosen)

    def _trained(self) -> Scores:
        from chop.actions.train import best_weights, fit
        from chop.training.saving import read_run

        graph, names = self.untrained(), self.names
        self.folder.mkdir(parents=True, exist_ok=True)
        begun = read_run(names.last) if names.last.exists() else None
        data, options = self.problem.data_module, self.options()
        fit(graph.model, data, options, names=names, resume=begun, graph=graph)
        with best_weights(graph.model, names):
            return _scores(graph.model, self.problem, options)

    def options(self) -> TrainOptions:
        return dataclasses.replace(
            self.how.training,
            seed=self.worker.sampler_context.seed_of(self.number),
            accelerator=self.problem.accelerator,
            progress=self.bar,
        )


@dataclass(frozen=True)
class _Member:
    """A design that is trained with others, and its network."""

    design: _Design
    graph: MaseGraph

    @property
    def number(self) -> int:
        return self.design.number

    @property
    def model(self) -> nn.Module:
        return self.graph.model

    def save(self) -> None:
        """Leave the network where one that is trained alone leaves its own."""
        from chop.actions.train import trained_graph

        self.design.folder.mkdir(parents=True, exist_ok=True)
        self.graph.export(trained_graph(self.design.names))


class _Populations:
    """Designs of one family, trained at once; each becomes what it would become alone."""

    def __init__(self, problem: Problem, worker: Worker, folder: Path) -> None:
        self.problem, self.folder = problem, folder
        usual = POPULATION.get(worker.context.device.type, POPULATION["cpu"])
        self.size = worker.group if worker.group > 1 else usual

    def train(self, designs: Sequence[_Design]) -> list[int]:
        """Write the results of those that can be trained so; the numbers of those that diverged."""
        if len(designs) < 2:
            return []
        members = [_Member(design, design.untrained()) for design in designs]
        data = self.problem.data_module
        families: StackableGroups[_Member] = StackableGroups(
            "search.retrain", designs[0].options(), data.train_dataset
        )
        bunches = [members[i : i + self.size] for i in range(0, len(members), self.size)]
        ended: dict[int, str] = {}
        for bunch in bunches:
            ended |= families.trained(bunch, lambda _, family: self._trained(family))
        return [number for number, why in ended.items() if why == "diverged"]

    def _trained(self, family: Sequence[_Member]) -> dict[int, str]:
        """Why the training of each ended."""
        from chop.training.population import train_population

        numbers = ", ".join(str(member.number) for member in family)
        logger.info("Retraining trials %s as one population...", numbers)
        data, snapshot = self.problem.data_module, self._snapshot(family)
        options = [member.design.options() for member in family]
        outcomes = train_population(
            [member.model for member in family],
            (data.train_dataset, data.val_dataset),
            options,
            batch_size=data.batch_size,
            device=self.problem.accelerator,
            on_epoch=_say,
            snapshot=snapshot,
            resume=True,
            keep_best=True,
        )
        ended = {m.number: out.stopped for m, out in zip(family, outcomes, strict=True)}
        self._conclude([member for member in family if ended[member.number] != "diverged"])
        snapshot.unlink(missing_ok=True)
        return ended

    def _conclude(self, members: Sequence[_Member]) -> None:
        """Save and test all; no result is written before all are there, so none is made twice."""
        for member in members:
            member.save()
        options = [member.design.options() for member in members]
        scores = [
            _scores(member.model, self.problem, own)
            for member, own in zip(members, options, strict=True)
        ]
        for member, own in zip(members, scores, strict=True):
            member.design.write(own)

    def _snapshot(self, family: Sequence[_Member]) -> Path:
        """A file that only the same designs with the same options find again."""
        marks = repr([(member.number, member.design.mark) for member in family])
        digest = hashlib.sha256(marks.encode()).hexdigest()[:12]
        return self.folder / f"population-{digest}.pt"


def _say(reports: Sequence[Report]) -> None:
    """One line an epoch."""
    losses = [report.loss for report in reports if math.isfinite(report.loss)]
    if losses:
        logger.info(
            "Epoch %d  %d designs  val_loss_epoch %.4f to %.4f",
            *(reports[0].epochs, len(reports), min(losses), max(losses)),
        )


def _read(file: Path, mark: str) -> Scores:
    """Scores that were written before."""
    advice = "delete it, and --resume measures it again"
    content = read_json(file, advice=advice)
    scores: Scores = content.get("scores", {})
    if not all(_is_score(scores, split) for split in SPLITS) or "mark" not in content:
        raise ValueError(f"{file} does not hold the test metrics of a design; {advice}")
    if content["mark"] != mark:
        raise ConfigError(
            f"{file.parent} belongs to another design, parent or data set, or was trained "
            f"with other options; the test split is used once: remove the directory to train again"
        )
    return scores


def _is_score(scores: Any, split: str) -> bool:
    metrics = scores.get(split) if isinstance(scores, dict) else None
    numbers = metrics.values() if isinstance(metrics, dict) else (None,)
    return all(isinstance(number, int | float) for number in numbers)


def _scores(model: nn.Module, problem: Problem, options: TrainOptions) -> Scores:
    from chop.actions.test import scored

    found = {}
    for split in SPLITS:
        score = scored(model, problem.data_module, split, options)
        found[split] = {"accuracy": score.accuracy, "loss": score.loss}
    return found
