"""`ch search --apply`: a design that was found, as a model that every other command can load."""

from __future__ import annotations

import contextlib
import logging

from chop.actions.config import ConfigError, RunConfig
from chop.actions.invocation import command
from chop.actions.search.results.description import check_same, described_search
from chop.actions.search.results.files import Results
from chop.actions.search.run_study import whole_groups
from chop.actions.search.spec.problem import Problem
from chop.actions.search.store.location import StudyLocation, latest
from chop.actions.search.store.study_store import StudyStore

logger = logging.getLogger(__name__)

SHOWN = 20  # numbers of trials


def apply(problem: Problem, location: StudyLocation, config: RunConfig) -> None:
    """Build the design of a trial from the parent, train it as its trial did, and save it."""
    worker = problem.worker()
    location = latest(location)
    settings = whole_groups(problem.settings(), worker.group)
    ways, choices = settings.objectives.directions, worker.space.choices
    about = described_search(problem, settings, worker, {"model": config.model})
    store = StudyStore(location.url, location.study, ways, choices, write=False)
    with contextlib.closing(store):
        check_same(store, about, "apply its designs with the file and the weights that it had")
        results = Results(store, settings.objectives, worker.space.config_of)
    number = _number(str(config.apply), results)
    out = results.outcomes[number]
    logger.info("Applying trial %d: %s", number, {**out.software, **out.hardware})
    graph = worker.rebuilt(number, results.designs[number])
    folder = graph.export(location.folder / f"trial_{number}")
    logger.info("Saved mase graph to %s", folder)
    words = ("test", config.model, config.dataset, "--load", folder, "--load-type", "mz")
    logger.info("Test it with: %s", command(*words))


def _number(wanted: str, results: Results) -> int:
    if wanted == "best":
        if results.chosen is not None:
            return results.chosen.number
        why = results.nearest_miss() or "no trial of this search was completed"
        raise ConfigError(f"--apply best: {why[0].lower()}{why[1:]}")
    complete = sorted(n for n, out in results.outcomes.items() if out.state == "COMPLETE")
    if wanted.isdecimal() and int(wanted) in complete:
        return int(wanted)
    there = results.outcomes.get(int(wanted)) if wanted.isdecimal() else None
    why = "it is best, or the number of a complete trial"
    if there is not None:
        ended = "was stopped early" if there.state == "PRUNED" else "failed"
        why = f"that trial {ended}; take best, or a complete one"
    shown = ", ".join(map(str, complete[:SHOWN])) + (", …" if len(complete) > SHOWN else "")
    raise ConfigError(f"--apply {wanted}: {why} (complete trials: {shown or 'none'})")
