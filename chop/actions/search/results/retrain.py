"""After the search: train the chosen designs to the end, and test them once on unseen data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from chop.actions.config import ConfigError
from chop.actions.search.metrics.identity import identity
from chop.actions.search.metrics.stackable import POPULATION, StackableGroups
from chop.actions.search.results.files import Results, plain
from chop.actions.search.run.worker import Worker
from chop.actions.search.space.base import Parent
from chop.actions.search.spec.settings import Retrain
from chop.actions.search.spec.study_spec import RETRAIN_SPLITS, StudySpec
from chop.actions.test import scored
from chop.actions.train import best_weights, fit, trained_graph
from chop.files import read_json, write_whole
from chop.ir.graph.mase_graph import MaseGraph
from chop.training.names import Names
from chop.training.options import RETRAIN, TrainOptions
from chop.training.population import Report, train_population
from chop.training.saving import read_run

logger = logging.getLogger(__name__)

RESULT = "result.json"
Scores = dict[str, dict[str, float]]  # split -> metric


def retrain(
    worker: Worker, how: Retrain, results: Results, folder: Path, *, bar: bool
) -> dict[str, Scores]:
    """Train the chosen designs, each in its own folder, and return the scores of all of them."""
    parent, numbers = worker.spec.parent, _chosen(how, results)
    owner = identity(parent.graph.model, parent.data_module, parent.seed)
    designs = [_Design(worker, how, results, n, folder, owner, bar=bar) for n in numbers]
    begun = [design for design in designs if design.is_begun]
    scores: dict[str, Scores] = {}
    if parent.trained:
        scores["baseline"] = _baseline(parent, folder, owner)
    for design in begun:
        scores[str(design.number)] = design.result()
    rest = [design for design in designs if design not in begun]
    diverged = _Populations(worker.spec, folder).train(rest)
    for design in rest:
        if design.number not in diverged:
            scores[str(design.number)] = design.result()
    if diverged:
        raise FloatingPointError(
            f"trial {diverged[0]} cannot be retrained: its loss is not a number; lower "
            f"learning_rate in search.retrain, remove {folder}, and continue with --resume"
        )
    return {key: scores[key] for key in ("baseline", *map(str, numbers)) if key in scores}


def _chosen(how: Retrain, results: Results) -> list[int]:
    ranked = [out.number for out in results.ranked]
    if how.designs == "front":
        return sorted(ranked)
    return ranked[: 1 if how.designs == "best" else int(how.designs)]


def _baseline(parent: Parent, folder: Path, owner: str) -> Scores:
    """Return the scores of the parent on both splits, which are measured once."""
    file = folder / "baseline.json"
    mark = hashlib.sha256(owner.encode()).hexdigest()
    if file.exists():
        return _read(file, mark)
    options = TrainOptions(accelerator=parent.accelerator)
    scores = _scores(parent.graph.clone().model, parent, options)
    write_whole(file, json.dumps({"mark": mark, "scores": scores}) + "\n")
    return scores


class _Design:
    """One design that is trained to the end."""

    def __init__(
        self,
        worker: Worker,
        how: Retrain,
        results: Results,
        number: int,
        folder: Path,
        owner: str,  # identifies the parent and its data
        *,
        bar: bool,
    ) -> None:
        self.worker, self.parent, self.how = worker, worker.spec.parent, how
        self.number, self.bar = number, bar
        self.chosen = results.designs[number]
        self.folder = folder / f"trial_{number}"
        self.file = self.folder / RESULT
        training = {name: getattr(how.training, name) for name in RETRAIN}
        facts = (owner, {"designs": None} | training, plain(results.config(number)))
        self.mark = hashlib.sha256(repr(facts).encode()).hexdigest()

    @property
    def names(self) -> Names:
        return Names(self.folder)

    @property
    def is_begun(self) -> bool:
        """Whether it is done, or an earlier run began to train it alone."""
        return self.file.exists() or self.names.last.exists()

    def result(self) -> Scores:
        """Return the scores; a resumed search does not use the test split again."""
        if self.file.exists():
            return _read(self.file, self.mark)
        logger.info("Retraining trial %d...", self.number)
        scores = self._trained()
        self.write(scores)
        return scores

    def write(self, scores: Scores) -> None:
        """Store the scores, which marks the design as done."""
        write_whole(self.file, json.dumps({"mark": self.mark, "scores": scores}) + "\n")
        logger.info("Trial %d: %s", self.number, scores)

    def untrained(self) -> MaseGraph:
        """Return its network before any training."""
        return self.worker.untrained(self.number, self.chosen)

    def _trained(self) -> Scores:
        graph, names = self.untrained(), self.names
        self.folder.mkdir(parents=True, exist_ok=True)
        begun = read_run(names.last) if names.last.exists() else None
        data, options = self.parent.data_module, self.options()
        fit(graph.model, data, options, names=names, resume=begun, graph=graph)
        with best_weights(graph.model, names):
            return _scores(graph.model, self.parent, options)

    def options(self) -> TrainOptions:
        return dataclasses.replace(
            self.how.training,
            seed=self.worker.spec.sampler_context.seed_of(self.number),
            accelerator=self.parent.accelerator,
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
        """Save the network where one that is trained alone is saved."""
        self.design.folder.mkdir(parents=True, exist_ok=True)
        self.graph.export(trained_graph(self.design.names))


class _Populations:
    """Trains designs that can be stacked at once; each becomes what it would become alone."""

    def __init__(self, spec: StudySpec, folder: Path) -> None:
        self.parent, self.folder = spec.parent, folder
        usual = POPULATION.get(spec.context.device.type, POPULATION["cpu"])
        self.size = spec.group_size if spec.group_size > 1 else usual

    def train(self, designs: Sequence[_Design]) -> list[int]:
        """Train the designs that can be stacked; return the numbers of those that diverged."""
        if len(designs) < 2:
            return []
        members = [_Member(design, design.untrained()) for design in designs]
        data = self.parent.data_module
        families: StackableGroups[_Member] = StackableGroups(
            "search.retrain", designs[0].options(), data.train_dataset
        )
        ended: dict[int, str] = {}
        for i in range(0, len(members), self.size):
            population = members[i : i + self.size]
            ended |= families.trained(population, lambda _, family: self._trained(family))
        return [number for number, why in ended.items() if why == "diverged"]

    def _trained(self, family: Sequence[_Member]) -> dict[int, str]:
        """Return why the training of each design ended."""
        numbers = ", ".join(str(member.number) for member in family)
        logger.info("Retraining trials %s as one population...", numbers)
        data, snapshot = self.parent.data_module, self._snapshot(family)
        options = [member.design.options() for member in family]
        outcomes = train_population(
            [member.model for member in family],
            (data.train_dataset, data.val_dataset),
            options,
            batch_size=data.batch_size,
            device=self.parent.accelerator,
            on_epoch=_log_epoch,
            snapshot=snapshot,
            resume=True,
            keep_best=True,
        )
        ended = {m.number: out.stopped for m, out in zip(family, outcomes, strict=True)}
        self._conclude([member for member in family if ended[member.number] != "diverged"])
        snapshot.unlink(missing_ok=True)
        return ended

    def _conclude(self, members: Sequence[_Member]) -> None:
        """Save and test all; results are written last, so that none is measured twice."""
        for member in members:
            member.save()
        scores = [_scores(m.model, self.parent, m.design.options()) for m in members]
        for member, score in zip(members, scores, strict=True):
            member.design.write(score)

    def _snapshot(self, family: Sequence[_Member]) -> Path:
        """Return a file name that is the same only for the same designs and options."""
        marks = repr([(member.number, member.design.mark) for member in family])
        digest = hashlib.sha256(marks.encode()).hexdigest()[:12]
        return self.folder / f"population-{digest}.pt"


def _log_epoch(reports: Sequence[Report]) -> None:
    """Log one line for each epoch."""
    losses = [report.loss for report in reports if math.isfinite(report.loss)]
    if losses:
        logger.info(
            "Epoch %d  %d designs  val_loss_epoch %.4f to %.4f",
            *(reports[0].epochs, len(reports), min(losses), max(losses)),
        )


def _read(file: Path, mark: str) -> Scores:
    """Return the scores in a file of an earlier run."""
    advice = "delete it, and --resume measures it again"
    content = read_json(file, advice=advice)
    scores: Scores = content.get("scores", {})
    if not all(_is_score(scores, split) for split in RETRAIN_SPLITS) or "mark" not in content:
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


def _scores(model: nn.Module, parent: Parent, options: TrainOptions) -> Scores:
    scores = {}
    for split in RETRAIN_SPLITS:
        score = scored(model, parent.data_module, split, options)
        scores[split] = {"accuracy": score.accuracy, "loss": score.loss}
    return scores
