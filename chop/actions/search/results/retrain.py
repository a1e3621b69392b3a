"""After the search: train the chosen designs to the end, and test them once on unseen data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from chop.actions.config import ConfigError
from chop.actions.search.metrics.identity import identity
from chop.actions.search.results.files import Results, plain
from chop.actions.search.results.networks import RESULT
from chop.actions.search.run.worker import Worker
from chop.actions.search.space.base import Parent
from chop.actions.search.spec.settings import Retrain
from chop.actions.search.spec.study_spec import RETRAIN_SPLITS, StudySpec
from chop.actions.test import scored
from chop.actions.train import best_weights, fit, trained_graph
from chop.dataset.data_module import facts_of
from chop.files import read_json, write_whole
from chop.ir.graph.mase_graph import MaseGraph
from chop.registry import Registry
from chop.training.names import Names
from chop.training.options import RETRAIN, TrainOptions
from chop.training.saving import read_run
from chop.training.tasks import task_named

logger = logging.getLogger(__name__)

Scores = dict[str, dict[str, float]]  # split -> metric
# trains several designs at once, each to what it would become alone, and calls `finish`; returns
# the numbers of those that diverged, and leaves to others what it cannot train
Retrainer = Callable[[StudySpec, Path, Sequence["RetrainedDesign"]], list[int]]
RETRAINERS: Registry[Retrainer] = Registry("trainer of several designs", room="retraining")


def retrain(
    worker: Worker, how: Retrain, results: Results, folder: Path, *, bar: bool
) -> dict[str, Scores]:
    """Train the chosen designs, each in its own folder, and return the scores of all of them."""
    parent, numbers = worker.spec.parent, results.numbers(how.designs)
    owner = identity(parent.graph.model, parent.data_module, parent.seed)
    designs = [RetrainedDesign(worker, how, results, n, folder, owner, bar=bar) for n in numbers]
    begun = [design for design in designs if design.is_begun]
    scores: dict[str, Scores] = {}
    if parent.trained:
        scores["baseline"] = _baseline(parent, folder, owner)
    scores |= {str(design.number): design.result() for design in begun}
    rest = [design for design in designs if design not in begun]
    diverged = _train_together(worker.spec, folder, rest)
    scores |= {str(d.number): d.result() for d in rest if d.number not in diverged}
    if diverged:
        raise FloatingPointError(
            f"trial {diverged[0]} cannot be retrained: its loss is not a number; lower "
            f"learning_rate in search.retrain, remove {folder}, and continue with --resume"
        )
    return {key: scores[key] for key in ("baseline", *map(str, numbers)) if key in scores}


def _baseline(parent: Parent, folder: Path, owner: str) -> Scores:
    """Return the scores of the parent on both splits, which are measured once."""
    file = folder / "baseline.json"
    mark = hashlib.sha256(owner.encode()).hexdigest()
    if file.exists():
        return _read(file, mark)
    options = TrainOptions(accelerator=parent.accelerator)
    return _write(file, mark, _scores(parent.graph.clone().model, parent, options))


class RetrainedDesign:
    """One design that is trained to the end."""

    graph: MaseGraph  # while it is trained together with others

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
        self.worker, self.parent, self.number = worker, worker.spec.parent, number
        self.chosen = results.designs[number]
        self.folder = folder / f"trial_{number}"
        self.names, self.file = Names(self.folder), self.folder / RESULT
        self.options = dataclasses.replace(
            how.training,
            seed=worker.spec.sampler_context.seed_of(number),
            accelerator=self.parent.accelerator,
            progress=bar,
        )
        training = {name: getattr(how.training, name) for name in RETRAIN}
        facts = (owner, {"designs": None} | training, plain(results.config(number)))
        self.mark = hashlib.sha256(repr(facts).encode()).hexdigest()

    @property
    def model(self) -> nn.Module:
        return self.graph.model

    @property
    def is_begun(self) -> bool:
        """Whether it is done, or an earlier run began to train it alone."""
        return self.file.exists() or self.names.last.exists()

    def result(self) -> Scores:
        """Return the scores; a resumed search does not use the test split again."""
        if self.file.exists():
            return _read(self.file, self.mark)
        logger.info("Retraining trial %d...", self.number)
        return self.write(self._trained())

    def write(self, scores: Scores) -> Scores:
        """Store the scores, which marks the design as done."""
        _write(self.file, self.mark, scores)
        logger.info("Trial %d: %s", self.number, scores)
        return scores

    def untrained(self) -> MaseGraph:
        """Return its network before any training, which will be on the data of the search."""
        graph = self.worker.untrained(self.number, self.chosen)
        graph.meta["trained_on"] = facts_of(self.parent.data_module) or {}
        return graph

    def _trained(self) -> Scores:
        graph, names = self.untrained(), self.names
        self.folder.mkdir(parents=True, exist_ok=True)
        begun = read_run(names.last) if names.last.exists() else None
        data, task = self.parent.data_module, task_named(self.parent.task)
        fit(graph.model, data, self.options, names=names, resume=begun, graph=graph, task=task)
        with best_weights(graph.model, names):
            return _scores(graph.model, self.parent, self.options)


def finish(designs: Sequence[RetrainedDesign]) -> None:
    """Save the networks of designs that were trained together, and test each once."""
    for design in designs:
        design.folder.mkdir(parents=True, exist_ok=True)
        design.graph.export(trained_graph(design.names))
    # results are written last, so that none is measured twice
    scores = [_scores(design.model, design.parent, design.options) for design in designs]
    for design, score in zip(designs, scores, strict=True):
        design.write(score)


def _train_together(spec: StudySpec, folder: Path, designs: list[RetrainedDesign]) -> list[int]:
    """Train the designs that methods can train at once; return the numbers of those that diverged.

    Each becomes what it would become alone.
    """
    diverged: list[int] = []
    for train in RETRAINERS.values() if len(designs) > 1 else ():
        rest = [d for d in designs if d.number not in diverged and not d.file.exists()]
        if len(rest) > 1:
            diverged += train(spec, folder, rest)
    return diverged


def _write(file: Path, mark: str, scores: Scores) -> Scores:
    write_whole(file, json.dumps({"mark": mark, "scores": scores}) + "\n")
    return scores


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
        score = scored(model, parent.data_module, split, options, task_named(parent.task))
        scores[split] = score.with_loss
    return scores
