"""`ch search --apply`: a design that was found, as a model that every other command can load."""

from __future__ import annotations

import contextlib
import logging

from chop.actions.config import ConfigError, RunConfig
from chop.actions.invocation import command
from chop.actions.search.conduct import (
    Place,
    check_same,
    described_search,
    latest,
    whole_groups,
)
from chop.actions.search.problem import Problem
from chop.actions.search.record import Record
from chop.actions.search.results import Results

logger = logging.getLogger(__name__)


def apply(problem: Problem, place: Place, config: RunConfig) -> None:
    """Build the design of a trial from the parent, train it as its trial did, and save it."""
    worker = problem.worker()
    place = latest(place)
    settings = whole_groups(problem.settings(), worker.group)
    ways, choices = settings.goals.directions, worker.space.choices
    about = described_search(problem, settings, worker, {"model": config.model})
    record = Record(place.url, place.study, ways, choices, create=False)
    with contextlib.closing(record):
        check_same(record, about, "apply its designs with the file and the weights that it had")
        results = Results(record, settings.goals, worker.space.config_of)
    number = _number(str(config.apply), results)
    out = results.outcomes[number]
    logger.info("Applying trial %d: %s", number, {**out.software, **out.hardware})
    graph = worker.rebuilt(number, results.designs[number])
    folder = graph.export(place.folder / f"trial_{number}")
    logger.info("Saved mase graph to %s", folder)
    words = ("test", config.model, config.dataset, "--load", folder, "--load-type", "mz")
    logger.info("Test it with: %s", command(*words))


def _number(wanted: str, results: Results) -> int:
    if wanted == "best":
        if results.chosen is None:
            raise ConfigError("--apply best: no trial of this search was completed")
        return results.chosen.number
    known = [n for n, out in results.outcomes.items() if out.state == "COMPLETE"]
    if not wanted.isdecimal() or int(wanted) not in known:
        shown = f"{min(known)} to {max(known)}" if known else "none"
        raise ConfigError(
            f"--apply {wanted}: it is best, or the number of a complete trial (there are {shown})"
        )
    return int(wanted)
