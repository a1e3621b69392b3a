"""`ch search --apply`: save a design as a model that every other command can load."""

from __future__ import annotations

import contextlib
import logging

from chop.actions.config import ConfigError, RunConfig
from chop.actions.search.results.description import check_same, description_of
from chop.actions.search.results.files import Results
from chop.actions.search.results.networks import network_of, retrained_network
from chop.actions.search.run.worker import Worker
from chop.actions.search.spec.study_spec import StudySpec
from chop.actions.search.store.location import StudyLocation, latest
from chop.actions.search.store.study_store import StudyStore
from chop.actions.suggestion import command_to_test
from chop.dataset.data_module import facts_of
from chop.project_networks import note_design

logger = logging.getLogger(__name__)

SHOWN = 20  # numbers of trials


def apply(spec: StudySpec, location: StudyLocation, config: RunConfig) -> None:
    """Save the network of a trial: retrained if it was, else built and trained as in the trial."""
    location, objectives = latest(location), spec.settings.objectives
    store = StudyStore(
        location.url, location.study, objectives.directions, spec.space.choices, write=False
    )
    with contextlib.closing(store):
        advice = "use the configuration file and the weights that it was run with"
        check_same(store, description_of(spec), advice)
        results = Results(store, objectives, spec.space.config_of)
    number = _number(str(config.apply), results)
    outcome = results.outcomes[number]
    retrained = retrained_network(location, number)
    measured = ", which was retrained after the search measured it" if retrained else ""
    metrics = {**outcome.software, **outcome.hardware}
    logger.info("Applying trial %d%s: %s", number, measured, metrics)
    graph = network_of(Worker(spec), results, location, number)
    if retrained or any(runner.trains for runner in spec.runners):  # not on the parent's data
        graph.meta["trained_on"] = facts_of(spec.parent.data_module) or {}
    folder = graph.export(location.folder / f"trial_{number}")
    note_design(location.folder, folder, "applied")
    logger.info(
        "Saved the design to %s%s", folder, ", with its retrained weights" if retrained else ""
    )
    logger.info("Test it with: %s", command_to_test(config, folder, "mz"))


def _number(wanted: str, results: Results) -> int:
    if wanted == "best":
        if results.chosen is not None:
            return results.chosen.number
        why = results.nearest_miss() or "no trial of this search was completed"
        raise ConfigError(f"--apply best: {why[0].lower()}{why[1:]}")
    outcome = results.outcomes.get(int(wanted)) if wanted.isdecimal() else None
    why = "use best, or the number of a complete trial"
    if outcome is not None:
        if outcome.state == "COMPLETE":
            return outcome.number
        ended = "was stopped early" if outcome.state == "PRUNED" else "failed"
        why = f"that trial {ended}; use best, or a complete trial"
    complete = sorted(n for n, out in results.outcomes.items() if out.state == "COMPLETE")
    shown = ", ".join(map(str, complete[:SHOWN])) + (", …" if len(complete) > SHOWN else "")
    raise ConfigError(f"--apply {wanted}: {why} (complete trials: {shown or 'none'})")
