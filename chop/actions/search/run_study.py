"""Set a search up, run it, and write its results."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import logging
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from chop.actions.options import ConfigError
from chop.actions.search.metrics.population_train import forget, forget_recorded
from chop.actions.search.results.description import NEW_NAME, check_same, described_search
from chop.actions.search.results.display import plan, progress_bar
from chop.actions.search.results.files import DEFAULT_QUANTIZATION_CONFIG, Results
from chop.actions.search.results.retrain import check_splits, retrain
from chop.actions.search.run.engines.base import Engine, Here
from chop.actions.search.run.engines.processes import Processes
from chop.actions.search.run.loop import SearchLoop, TrialFailed
from chop.actions.search.run.worker import Worker
from chop.actions.search.samplers.base import Strategy
from chop.actions.search.spec.problem import Problem, wrong_usage
from chop.actions.search.spec.settings import Settings
from chop.actions.search.store.errors import StudyInUse
from chop.actions.search.store.journal import is_being_written
from chop.actions.search.store.location import StudyLocation, latest, next_free
from chop.actions.search.store.running import Note, Running
from chop.actions.search.store.study_store import StudyStore, read_about
from chop.actions.search.store.urls import absolute_url, parse_url
from chop.devices import parse_accelerator
from chop.redaction import redacted
from chop.training.interruption import Interrupted, Interruption
from chop.training.report import device_name
from chop.version import __version__

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A search that may start: what is wrong with its file would have been said."""

    settings: Settings
    worker: Worker
    strategy: Strategy


def prepared(problem: Problem) -> Prepared:
    """Make what a search needs: space, runners, constraints and sampler are checked thereby."""
    _quiet_optuna()
    settings = problem.settings()
    worker = problem.worker()
    worker.check()
    if settings.retrain is not None:
        check_splits(problem.data_module)
    with wrong_usage():
        strategy = settings.strategy(worker.sampler_context, **settings.sampler_options)
    return Prepared(whole_groups(settings, worker.group), worker, strategy)


def run_study(
    problem: Problem,
    location: StudyLocation,
    about: Mapping[str, Any],
    visualizer: Any = None,
    report: Callable[[Results, StudyLocation], None] = lambda results, location: None,
) -> Results:
    """Search and write the results; `report` is called for interrupted searches as well."""
    began = _Clock()
    location = _chosen(location)
    problem = dataclasses.replace(problem, folder=location.snapshots)
    logger.info("Building search space...")
    ready = prepared(problem)
    settings, worker = ready.settings, ready.worker
    described = described_search(problem, settings, worker, about)
    workers = location.workers or settings.n_jobs
    store = _open_study(location, settings, worker, described)
    with contextlib.closing(store), Running(location.folder) as running:
        baseline, seconds = _baseline(worker, problem.trained)
        logger.info("\n%s", plan(worker.space, settings, workers, seconds))
        _warn_of_idle(workers, ready.strategy, settings, worker.group)
        logger.info("The study is '%s' in %s", location.study, redacted(location.url))
        running.write(_note(location, began))
        with _engine(problem, location, settings, worker, workers) as engine:
            stopped = _search(_loop(ready, engine, store, location, visualizer), location)
        results = Results(store, settings.objectives, worker.space.config_of)
        forget_recorded(location.snapshots, results.outcomes, worker.group, settings.n_trials)
        page = {**described, **_circumstances(location, began, problem.accelerator)}
        page |= {"workers": workers, "baseline": baseline}
        with _finishing():
            results.write(location.folder, page, _labs_keys(problem))
            running.remove()
        if settings.retrain is not None and stopped is None:
            folder = location.folder / f"{location.study}.retrained"
            page["test"] = retrain(
                problem, worker, settings.retrain, results, folder, bar=location.progress
            )
            results.write(location.folder, page, _labs_keys(problem))
        if baseline is not None:
            logger.info("Metrics of the parent: %s", _merged(baseline))
    with _finishing():
        report(results, location)
    if stopped is not None:
        raise stopped
    return results


def _chosen(location: StudyLocation) -> StudyLocation:
    """The study to resume, or a free one, unless one of this folder is being written."""
    current = latest(location)
    kind, path = parse_url(current.url)
    if kind == "journal" and path is not None and path.exists() and is_being_written(path):
        raise StudyInUse(current.url, current.study)
    return current if location.continues else next_free(location)


def check_study_exists(location: StudyLocation) -> None:
    """Refuse a study that does not exist, before anything takes time."""
    location = latest(location)
    read_about(location.url, location.study)


def _note(location: StudyLocation, began: _Clock) -> Note:
    """What other processes may know of this search while it runs."""
    url = absolute_url(location.url)
    storage = url if redacted(url) == url else None
    return Note(
        location.study, storage, location.command, began.started.isoformat(timespec="seconds")
    )


def _open_study(
    location: StudyLocation, settings: Settings, worker: Worker, described: Mapping[str, Any]
) -> StudyStore:
    """The study, which is new, or is resumed and about the same search."""
    directions, choices = settings.objectives.directions, worker.space.choices
    store = StudyStore(
        location.url, location.study, directions, choices, create=not location.continues
    )
    try:
        if not store.about:  # new, or its first process was killed at once
            store.set_attribute("about", dict(described))
        elif not location.resume:
            raise ConfigError(
                f"the study {store.study!r} in {store.shown} already exists; continue it "
                f"with --resume, or {NEW_NAME}"
            )
        check_same(store, described)
    except BaseException:
        store.close()
        raise
    return store


def _loop(
    ready: Prepared,
    engine: Engine,
    store: StudyStore,
    location: StudyLocation,
    visualizer: Any,
) -> SearchLoop:
    loop = SearchLoop(
        ready.strategy,
        engine,
        store,
        ready.settings,
        group_size=ready.worker.group,
        group_stored=functools.partial(forget, location.snapshots),
        visualizer=visualizer,
    )
    trials = store.read_trials()
    if trials:
        done = sum(trial.outcome is not None for trial in trials)
        logger.info("Resumed the study '%s': %d trials are done", store.study, done)
        loop.resume(trials)
    return loop


def _search(loop: SearchLoop, location: StudyLocation) -> BaseException | None:
    """Run the loop; the error or signal that stopped it, None if it ran to its end."""
    logger.info("Search started...")
    objectives = loop.settings.objectives
    try:
        with (
            Interruption() as interruption,
            progress_bar(objectives, wanted=location.progress, log=logger.info) as loop.show,
        ):
            loop.run(lambda: interruption.received)
    except TrialFailed as error:
        return error
    if interruption.received:
        return Interrupted(interruption.received)
    if loop.progress.completed == 0:
        failure = loop.first_failure
        error_lines = (failure.error or "").strip().splitlines() if failure else []
        last = error_lines[-1] if error_lines else "nothing was tried"
        return ValueError(f"no trial was completed; the first one failed with: {last}")
    return None


class _Clock:
    """When a search began, by the calendar and by a clock that only goes forward."""

    def __init__(self) -> None:
        self.started, self._began = datetime.datetime.now(), time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


@contextmanager
def _finishing() -> Iterator[None]:
    """A signal that comes while files are written waits until they are there."""
    with Interruption() as interruption:
        yield
    if interruption.received:
        raise Interrupted(interruption.received)


def _merged(baseline: Mapping[str, Any]) -> dict[str, float]:
    """All metrics of the parent; fractions in few digits."""
    metrics = {k: v for side in baseline.values() for k, v in side.items()}
    return {k: v if float(v).is_integer() else float(f"{v:.4g}") for k, v in metrics.items()}


def _labs_keys(problem: Problem) -> dict[str, Any]:
    """What the labs' files have in every design."""
    return {
        "default": DEFAULT_QUANTIZATION_CONFIG,
        "by": "name",
        "accelerator": problem.accelerator,
    }


def _circumstances(location: StudyLocation, began: _Clock, accelerator: str) -> dict[str, Any]:
    """When, where and with which versions a search was run."""
    finished = began.started + datetime.timedelta(seconds=began.seconds)
    return {
        "command": location.command,
        "started": began.started.isoformat(timespec="seconds"),
        "finished": finished.isoformat(timespec="seconds"),
        "seconds": began.seconds,
        "versions": _versions(),
        "machine": _machine(accelerator),
        "study": location.study,
        "storage": redacted(location.url),
        "test": None,
    }


def _machine(accelerator: str) -> dict[str, Any]:
    device = parse_accelerator(accelerator)
    found = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    return found | ({"gpu": device_name(device)} if device.type != "cpu" else {})


def _quiet_optuna() -> None:
    """Hide what Optuna says of studies in memory, but not its warnings."""
    import optuna

    if not logger.isEnabledFor(logging.DEBUG):
        optuna.logging.set_verbosity(optuna.logging.WARNING)


def _baseline(worker: Worker, trained: bool) -> tuple[dict[str, Any] | None, float | None]:
    """The parent by the same measures, and how long one design takes."""
    if not trained:
        return None, None
    try:
        worker.baseline()
        start = time.perf_counter()
        found = worker.baseline()
    except Exception as error:  # the trials say the same, or not
        logger.warning("The parent could not be measured: %s", error)
        return None, None
    return (
        {f"{side}_metrics": metrics for side, metrics in found.items()},
        time.perf_counter() - start,
    )


def whole_groups(settings: Settings, group: int) -> Settings:
    """Designs are asked for by the group."""
    return dataclasses.replace(settings, in_flight=math.ceil(settings.in_flight / group) * group)


def _warn_of_idle(workers: int, strategy: Strategy, settings: Settings, group: int = 1) -> None:
    """More workers than groups of trials that may run at once have nothing to do."""
    busy = settings.in_flight // group
    if (strategy.looks_back or settings.compares) and workers > busy:
        logger.warning(
            "Only %d of %d workers will be busy, as search.strategy.setup.in_flight = %d; "
            "raise it in a new study to use more",
            *(busy, workers, settings.in_flight),
        )


def _warn_of_nothing_to_take(strategy: Strategy, settings: Settings, group: int) -> None:
    """Who joins a study of which one population is trained at a time has nothing to do."""
    if strategy.looks_back and group > 1 and settings.in_flight <= group:
        logger.warning(
            "Only one population of %d trials is trained at a time, as "
            "search.strategy.setup.in_flight = %d; set it to %d in a new study to train two",
            *(group, settings.in_flight, 2 * group),
        )


def _versions() -> dict[str, str]:
    from importlib import metadata

    names = ("torch", "optuna", "numpy")
    found = {name: metadata.version(name) for name in names}
    return {"mase": __version__, "python": platform.python_version(), **found}


@contextmanager
def _engine(
    problem: Problem, location: StudyLocation, settings: Settings, worker: Worker, workers: int
) -> Iterator[Engine]:
    engine = _make_engine(problem, location, settings, worker, workers)
    try:
        yield engine
    finally:
        engine.close()


def _make_engine(
    problem: Problem, location: StudyLocation, settings: Settings, worker: Worker, workers: int
) -> Engine:
    if location.engine == "ray":
        return _ray_engine(problem, location, settings, worker, workers)
    if workers == 1 and settings.trial_timeout is None:
        return Here(worker)
    return Processes(problem.packed(), workers, settings.trial_timeout)


def _ray_engine(
    problem: Problem, location: StudyLocation, settings: Settings, worker: Worker, workers: int
) -> Engine:
    from chop.actions.search.run.engines.ray import RayEngine

    gpus = settings.gpus_per_trial
    if gpus is None:
        gpus = 1 if worker.context.device.type == "cuda" else 0
    problem = dataclasses.replace(problem, folder=None)  # which other machines do not have
    if problem.accelerator not in ("cpu", "mps"):
        # a worker sees the GPUs that Ray gives it, whatever their numbers are here
        problem = dataclasses.replace(problem, accelerator="cuda" if gpus else "cpu")
    return RayEngine(
        problem.packed(),
        workers,
        settings.trial_timeout,
        cpus=settings.cpus_per_trial,
        gpus=gpus,
        address=location.ray_address,
    )
