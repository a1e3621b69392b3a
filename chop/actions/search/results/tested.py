"""Score the designs of a trained front on the test split, each once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chop.actions.search.results.files import Results, plain
from chop.actions.search.results.overflows import count_overflows
from chop.actions.search.run.worker import Worker
from chop.actions.search.spec.study_spec import RETRAIN_SPLITS
from chop.actions.test import scored
from chop.system.files import read_json, write_whole
from chop.training.options import TrainOptions
from chop.training.tasks import task_named

Scores = dict[str, dict[str, float]]
ADVICE = "delete it, and --resume measures it again"


def tested_front(worker: Worker, results: Results, folder: Path) -> dict[str, Scores] | None:
    """Return the scores of the designs on the front, None for a data set without a test split."""
    parent = worker.spec.parent
    splits = parent.data_module.dataset_info.available_splits
    if any(split not in splits for split in RETRAIN_SPLITS):
        return None
    return {str(n): _scores(worker, results, n, folder) for n in results.numbers("front")}


def _scores(worker: Worker, results: Results, number: int, folder: Path) -> Scores:
    design = results.config(number)["design"]
    file = folder / f"design_{design}.test.json"
    if file.exists():
        scores: Scores = read_json(file, advice=ADVICE)
        return scores
    parent = worker.spec.parent
    graph: Any = worker.untrained(number, results.designs[number])
    options = TrainOptions(accelerator=parent.accelerator)
    found: Scores = {}
    for split in RETRAIN_SPLITS:
        score = scored(graph.model, parent.data_module, split, options, task_named(parent.task))
        found[split] = dict(score.with_loss)
    found["test"] |= count_overflows(graph.model, parent)
    write_whole(file, json.dumps(plain(found)) + "\n")
    return found
