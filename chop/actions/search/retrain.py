"""After the search: the chosen designs are trained to the end, and tested once on unseen data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError
from chop.actions.search.results import Results, plain
from chop.actions.search.settings import Retrain
from chop.files import write_text

if TYPE_CHECKING:
    from torch import nn

    from chop.actions.search.problem import Problem
    from chop.actions.search.worker import Worker
    from chop.training.options import TrainOptions

logger = logging.getLogger(__name__)

RESULT = "result.json"
SPLITS = ("validation", "test")
Tested = dict[str, dict[str, dict[str, float]]]  # design -> split -> metric


def check_splits(data_module: Any) -> None:
    """What `search.retrain` needs is said before the search."""
    missing = [s for s in SPLITS if s not in data_module.dataset_info.available_splits]
    if missing:
        raise ConfigError(
            f"search.retrain scores on the {missing[0]} split, which the data set "
            f"{data_module.name!r} lacks; leave the table out, or take another data set"
        )


def retrain(
    problem: Problem, worker: Worker, how: Retrain, results: Results, folder: Path, *, bar: bool
) -> Tested:
    """Train the chosen designs, each in a folder of its own; those that are done are left alone."""
    numbers = _chosen(how, results)
    found: Tested = {}
    if problem.trained:
        found["baseline"] = _baseline(problem, folder)
    for number in numbers:
        found[str(number)] = _Design(problem, worker, how, results, number, folder).result(bar=bar)
    return found


def _chosen(how: Retrain, results: Results) -> list[int]:
    ranked = [out.number for out in results.ranked]
    if how.designs == "front":
        return sorted(ranked)
    return ranked[: 1 if how.designs == "best" else int(how.designs)]


def _baseline(problem: Problem, folder: Path) -> dict[str, dict[str, float]]:
    """The parent on both splits, once."""
    file = folder / "baseline.json"
    if file.exists():
        return _read(file, "")
    from chop.training.options import TrainOptions

    options = TrainOptions(accelerator=problem.accelerator)
    scores = _scores(problem.graph.clone().model, problem, options)
    write_text(file, json.dumps({"scores": scores}) + "\n")
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
    ) -> None:
        self.problem, self.worker, self.how, self.number = problem, worker, how, number
        self.chosen = results.designs[number]
        self.folder = folder / f"trial_{number}"
        facts = (dataclasses.asdict(how) | {"designs": None}, plain(results.config(number)))
        self.mark = hashlib.sha256(repr(facts).encode()).hexdigest()

    def result(self, *, bar: bool) -> dict[str, dict[str, float]]:
        """Its scores; a test split is looked at once, also by a search that is resumed."""
        file = self.folder / RESULT
        if file.exists():
            return _read(file, self.mark)
        logger.info("Training trial %d to the end...", self.number)
        scores = self._trained(bar=bar)
        write_text(file, json.dumps({"mark": self.mark, "scores": scores}) + "\n")
        logger.info("Trial %d: %s", self.number, scores)
        return scores

    def _trained(self, *, bar: bool) -> dict[str, dict[str, float]]:
        from chop.actions.train import best_weights, fit
        from chop.training.names import Names
        from chop.training.saving import read_run

        graph, names = self.worker.untrained(self.number, self.chosen), Names(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        options = self._options(bar=bar)
        begun = read_run(names.last) if names.last.exists() else None
        fit(graph.model, self.problem.data_module, options, names=names, resume=begun, graph=graph)
        with best_weights(graph.model, names):
            return _scores(graph.model, self.problem, options)

    def _options(self, *, bar: bool) -> TrainOptions:
        from chop.training.options import TrainOptions

        chosen = {k: v for k, v in dataclasses.asdict(self.how).items() if k != "designs"}
        return TrainOptions(
            **chosen,
            seed=self.worker.quest.seed_of(self.number),
            accelerator=self.problem.accelerator,
            progress=bar,
        )


def _read(file: Path, mark: str) -> dict[str, dict[str, float]]:
    """Scores that were written before."""
    content = json.loads(file.read_text(encoding="utf-8"))
    if content.get("mark", "") != mark:
        raise ConfigError(
            f"{file.parent} was trained with other options or is another design; its test split "
            f"is looked at once, so remove the folder if you want to train it again"
        )
    scores: dict[str, dict[str, float]] = content["scores"]
    return scores


def _scores(
    model: nn.Module, problem: Problem, options: TrainOptions
) -> dict[str, dict[str, float]]:
    from chop.actions.test import scored

    found = {}
    for split in SPLITS:
        score = scored(model, problem.data_module, split, options)
        found[split] = {"accuracy": score.accuracy, "loss": score.loss}
    return found
