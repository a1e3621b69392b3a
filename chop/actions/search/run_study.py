"""Run a study and write its results."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from chop.actions.options import ConfigError
from chop.actions.search.metrics.groups import forget, forget_recorded
from chop.actions.search.results.description import NEW_NAME, check_same, description_of
from chop.actions.search.results.display import plan, progress_bar
from chop.actions.search.results.files import DEFAULT_QUANTIZATION_CONFIG, Results, plain
from chop.actions.search.results.layers import DesignLayers
from chop.actions.search.run.engines.base import Engine, InProcessEngine
from chop.actions.search.run.loop import SearchLoop, TrialFailed
from chop.actions.search.run.worker import Worker
from chop.actions.search.samplers.base import Strategy
from chop.actions.search.space.operands import rounded_operands
from chop.actions.search.spec.settings import Settings
from chop.actions.search.spec.study_spec import StudySpec
from chop.actions.search.store.errors import StudyInUse
from chop.actions.search.store.journal import is_being_written
from chop.actions.search.store.location import (
    StudyLocation,
    latest,
    move_previous_results,
    next_free,
)
from chop.actions.search.store.running import Note, Running
from chop.actions.search.store.study_store import StudyStore
from chop.actions.search.store.urls import absolute_url, parse_url
from chop.devices import parse_accelerator
from chop.redaction import redacted
from chop.training.interruption import Interrupted, Interruption
from chop.version import __version__

logger = logging.getLogger(__name__)

STOPPING = "stopping, and writing the results and the report first; a second one stops at once"
Facts = Mapping[str, Any]  # of a search, as search.json has them besides the trials
Report = Callable[[Results, Facts, StudyLocation], None]


def run_study(
    spec: StudySpec, location: StudyLocation, visualizer: Any = None, report: Report | None = None
) -> Results:
    """Search and write the results; `report` is called for interrupted searches as well."""
    clock, settings, worker = _Clock(), spec.settings, Worker(spec)
    strategy = spec.strategy  # its options are checked before there is a study
    description = description_of(spec)
    workers = location.workers or settings.n_jobs
    if settings.gradient is not None and location.engine == "ray":
        raise ConfigError("gradient trains all designs in one process; omit --engine ray")
    store = _open_study(location, spec, description)
    with contextlib.closing(store), Running(location.folder) as running:
        move_previous_results(location)
        baseline = _baseline(worker)
        store.set_attribute("baseline", plain(baseline))
        if settings.gradient is None:
            logger.info("\n%s", plan(spec.space, settings, workers))
            warn_of_idle_workers(workers, strategy, settings, spec.group_size)
        logger.info("The study is '%s' in %s", location.study, redacted(location.url))
        running.write(_note(location, clock))
        spec = _learned(spec)
        with contextlib.closing(_make_engine(worker, location, workers)) as engine:
            stopped = _search(spec, engine, store, location, visualizer)
        layers = DesignLayers(spec.space)
        config_of, operands = spec.space.config_of, rounded_operands(spec.parent.graph)
        results = Results(store, settings.objectives, config_of, layers, operands)
        forget_recorded(location.snapshots, results.outcomes, spec.group_size, settings.n_trials)
        accelerator = spec.parent.accelerator
        facts = {**description, **_circumstances(location, clock, accelerator)}
        facts |= {"workers": workers, "baseline": baseline, "layers": layers.parent}
        # the labs' files have these keys in every design
        extra = {"default": DEFAULT_QUANTIZATION_CONFIG, "by": "name", "accelerator": accelerator}
        with _finishing():
            results.write(location.folder, facts, extra)
            running.remove()
        if settings.retrain is not None and stopped is None:
            from chop.actions.search.results.networks import note_retrained
            from chop.actions.search.results.retrain import retrain

            folder, bar = location.retrained, location.progress
            facts["test"] = retrain(worker, settings.retrain, results, folder, bar=bar)
            note_retrained(results, location)
            results.write(location.folder, facts, extra)
        if settings.gradient is not None and stopped is None:
            from chop.actions.search.results.tested import tested_front

            facts["test"] = tested_front(worker, results, location.designs)
            results.write(location.folder, facts, extra)
        if (settings.synthesize or settings.emit) and stopped is None:
            from chop.actions.search.results.circuits import build_circuits

            facts["circuits"] = build_circuits(worker, results, location)
            results.write(location.folder, facts, extra)
        if baseline is not None and report is None:  # a report shows the parent
            logger.info("Metrics of the parent: %s", _merged(baseline))
    if report is not None:
        with _finishing():
            report(results, facts, location)
    if stopped is not None:
        raise stopped
    return results


def choose_study(location: StudyLocation) -> StudyLocation:
    """Return the location of the study to resume, or of a new one.

    Refused while another process writes the latest study of the folder.
    """
    current = latest(location)
    kind, path = parse_url(current.url)
    if kind == "journal" and path is not None and path.exists() and is_being_written(path):
        raise StudyInUse(current.url, current.study)
    return current if location.continues else next_free(location)


def _note(location: StudyLocation, clock: _Clock) -> Note:
    """Return what other processes may know of this search while it runs."""
    url = absolute_url(location.url)
    storage = url if redacted(url) == url else None
    return Note(location.study, storage, location.command, clock.text())


def _open_study(location: StudyLocation, spec: StudySpec, description: Facts) -> StudyStore:
    """Open a new study, or one of the same search to resume it."""
    directions, choices = spec.settings.objectives.directions, spec.space.choices
    create = not location.continues
    store = StudyStore(location.url, location.study, directions, choices, create=create)
    try:
        if not store.about:  # new, or its first process was killed at once
            store.set_attribute("about", dict(description))
        elif not location.resume:
            raise ConfigError(
                f"the study {store.study!r} in {store.shown} already exists; continue it "
                f"with --resume, or {NEW_NAME}"
            )
        check_same(store, description)
    except BaseException:
        store.close()
        raise
    return store


def _learned(spec: StudySpec) -> StudySpec:
    """Return the spec after its front is trained, with a trial for each design."""
    if spec.settings.gradient is None:
        return spec
    from chop.actions.search.run.learning import learn_designs

    settings = spec.settings.model_copy(update={"n_trials": learn_designs(spec)})
    return dataclasses.replace(spec, settings=settings)


def _search(
    spec: StudySpec, engine: Engine, store: StudyStore, location: StudyLocation, visualizer: Any
) -> BaseException | None:
    """Run the loop; return the error or signal that stopped it, None if it ran to its end."""
    size, group_stored = spec.group_size, functools.partial(forget, location.snapshots)
    loop = SearchLoop(spec.strategy, engine, store, spec.settings, size, group_stored, visualizer)
    trials = store.read_trials()
    if trials:
        done = sum(trial.outcome is not None for trial in trials)
        trials_are = "trial is" if done == 1 else "trials are"
        logger.info("Resumed the study '%s': %d %s done", store.study, done, trials_are)
        loop.resume(trials)
    logger.info("Search started...")
    bar = progress_bar(loop.objectives, wanted=location.progress, log=logger.info)
    try:
        with Interruption(then=STOPPING) as interruption, bar as loop.show:
            loop.run(lambda: interruption.received)
    except TrialFailed as error:
        return error
    if interruption.received:
        return Interrupted(interruption.received)
    if loop.progress.completed == 0:
        cause = loop.first_failure.cause if loop.first_failure else "nothing was tried"
        return ValueError(f"no trial was completed; the first one failed with: {cause}")
    return None


class _Clock:
    """When a search began, by the calendar and by a clock that only goes forward."""

    def __init__(self) -> None:
        self.started, self._began = datetime.datetime.now(), time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def text(self, seconds: float = 0.0) -> str:
        """Return the moment so many seconds after the start."""
        moment = self.started + datetime.timedelta(seconds=seconds)
        return moment.isoformat(timespec="seconds")


@contextmanager
def _finishing() -> Iterator[None]:
    """Let a signal that comes while files are written wait until they are complete."""
    with Interruption(then="writing the results before stopping") as interruption:
        yield
    if interruption.received:
        raise Interrupted(interruption.received)


def _merged(baseline: Mapping[str, Any]) -> dict[str, float]:
    """Return all metrics of the parent; fractions in few digits."""
    metrics = {k: v for side in baseline.values() for k, v in side.items()}
    return {k: v if float(v).is_integer() else float(f"{v:.4g}") for k, v in metrics.items()}


def _circumstances(location: StudyLocation, clock: _Clock, accelerator: str) -> dict[str, Any]:
    """Return when, where and with which versions a search was run."""
    seconds, device = clock.seconds, parse_accelerator(accelerator)
    versions = {name: metadata.version(name) for name in ("torch", "optuna", "numpy")}
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    if device.type != "cpu":
        from chop.training.report import device_name

        machine["gpu"] = device_name(device)
    return {
        "command": location.command,
        "started": clock.text(),
        "finished": clock.text(seconds),
        "seconds": seconds,
        "versions": {"mase": __version__, "python": platform.python_version(), **versions},
        "machine": machine,
        "study": location.study,
        "storage": redacted(location.url),
        "test": None,
        "circuits": None,
    }


def _baseline(worker: Worker) -> dict[str, Any] | None:
    """Return the metrics of the parent, None if it has not been trained or cannot be measured."""
    if not worker.spec.parent.trained:
        return None
    try:
        metrics = worker.baseline()
    except Exception as error:  # the trials may well work
        logger.warning("The parent could not be measured: %s", error)
        return None
    tables = {
        side: {name: float(v) for name, v in table.items()} for side, table in metrics.items()
    }
    return {f"{side}_metrics": table for side, table in tables.items()}


def warn_of_idle_workers(
    workers: int, strategy: Strategy, settings: Settings, group_size: int = 1
) -> None:
    """Warn if there are more workers than groups of trials that may run at once."""
    busy = settings.in_flight // group_size
    if (strategy.looks_back or settings.compares) and workers > busy:
        logger.warning(
            "Only %d of %d workers will be busy, as search.strategy.setup.in_flight = %d; "
            "raise it in a new study to use more",
            *(busy, workers, settings.in_flight),
        )


def _make_engine(worker: Worker, location: StudyLocation, workers: int) -> Engine:
    spec, accelerator = worker.spec, worker.spec.parent.accelerator
    settings, timeout = spec.settings, spec.settings.trial_timeout
    if location.engine != "ray":
        if workers == 1 and timeout is None:
            return InProcessEngine(worker)
        from chop.actions.search.run.engines.processes import ProcessEngine

        return ProcessEngine(spec.packed(accelerator, spec.context.folder), workers, timeout)
    from chop.actions.search.run.engines.ray import RayEngine

    gpus = settings.gpus_per_trial
    if gpus is None:
        gpus = 1 if spec.context.device.type == "cuda" else 0
    if accelerator not in ("cpu", "mps"):
        # a worker sees the GPUs that Ray gives it, whatever their numbers are here
        accelerator = "cuda" if gpus else "cpu"
    packed = spec.packed(accelerator, folder=None)  # other machines do not have the folder
    cpus, address = settings.cpus_per_trial, location.ray_address
    return RayEngine(packed, workers, timeout, cpus=cpus, gpus=gpus, address=address)
