"""Set a search up, run it or join it, and write down what came out."""

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
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from chop.actions.config import ConfigError
from chop.actions.search.company import Guest, Lead, is_led
from chop.actions.search.coordinator import Coordinator, Failed
from chop.actions.search.display import plan, progress_bar
from chop.actions.search.engines.base import Engine, Here
from chop.actions.search.engines.processes import Processes
from chop.actions.search.feasible import refuse_hopeless
from chop.actions.search.identity import fingerprints_of, weights_of
from chop.actions.search.place import Place, free_place
from chop.actions.search.problem import Problem, wrong_usage
from chop.actions.search.record import Record, StorageError, located
from chop.actions.search.results import DEFAULT_QUANTIZATION_CONFIG, Results, plain
from chop.actions.search.retrain import check_splits, retrain
from chop.actions.search.runners.population_train import forget, forget_recorded
from chop.actions.search.running import Note, Running
from chop.actions.search.search_space.choices import shown_size
from chop.actions.search.settings import Settings
from chop.actions.search.strategies.base import Strategy
from chop.actions.search.worker import Worker
from chop.devices import parse_accelerator
from chop.redaction import redacted
from chop.training.interruption import Interrupted, Interruption
from chop.training.report import device_name
from chop.version import __version__

logger = logging.getLogger(__name__)

NEW_NAME = "give the new search a name of its own by --study"
LONGEST = 10**300  # a number that every reader of JSON takes
# what a study cannot be resumed without
FIXED = (
    "model",
    "weights",
    "dataset",
    "fingerprints",
    "batch_size",
    "space",
    "runners",
    "objectives",
    "constraints",
    "summed",
    "honour_directions",
    "early_stopping",
    "sampler",
    "sampler_options",
    "seed",
    "in_flight",
    "population",
    "threads",
)


@dataclass(frozen=True)
class Prepared:
    """A search that may start: what is wrong with its file would have been said."""

    settings: Settings
    worker: Worker
    strategy: Strategy


def prepared(problem: Problem) -> Prepared:
    """Make what a search needs: space, runners, constraints and sampler are checked thereby."""
    settings = problem.settings()
    worker = problem.worker()
    worker.check()
    refuse_hopeless(worker)
    if settings.retrain is not None:
        check_splits(problem.data_module)
    with wrong_usage():
        strategy = settings.strategy(worker.quest, **settings.sampler_options)
    return Prepared(whole_groups(settings, worker.group), worker, strategy)


def conduct(
    problem: Problem,
    place: Place,
    about: Mapping[str, Any],
    visualizer: Any = None,
    tell: Callable[[Results, Place], None] = lambda results, place: None,
) -> Results:
    """Set everything up, search, and write the files; `tell` hears of cut searches as well."""
    clock = Clock()
    _quiet_optuna()
    place = free_place(place, problem.settings().heartbeat)
    problem = dataclasses.replace(problem, folder=place.unfinished)
    logger.info("Building search space...")
    ready = prepared(problem)
    settings, worker, strategy = ready.settings, ready.worker, ready.strategy
    workers = place.workers or settings.n_jobs
    baseline, seconds = _baseline(worker, problem.trained)
    logger.info("\n%s", plan(worker.space, settings, workers, seconds))
    _warn_of_idle(workers, strategy, settings, worker.group)
    logger.info("The study is '%s' in %s", place.study, redacted(place.url))
    described = described_search(problem, settings, worker, about)
    ways, choices = settings.goals.directions, worker.space.choices
    record = Record(place.url, place.study, ways, choices, create=not place.continues, writes=True)
    running = Running(place.folder)
    with contextlib.closing(record), running, ExitStack() as stack:
        led = None if record.existed else _found(record, settings, described)
        if led is not None:
            stack.enter_context(led)
        engine = stack.enter_context(_engine(problem, place, settings, worker, workers))
        if led is None:
            led = _take_part(record, engine, place, settings, described, strategy)
            stack.enter_context(led or nullcontext())
        cut = None
        if led is not None:
            coordinator = _coordinator(strategy, engine, record, settings, worker, led)
            running.write(_note(place, clock))
            coordinator.recorded = functools.partial(forget, place.unfinished)
            cut = _search(coordinator, settings, place, led, visualizer)
        stack.close()
        results = Results(record, settings.goals, worker.space.config_of)
        forget_recorded(place.unfinished, results.outcomes, worker.group, settings.n_trials)
        if led is not None:
            page = {**described, **_circumstances(place, clock, problem.accelerator)}
            page |= {"workers": workers, "baseline": baseline}
            with _finishing():
                results.write(place.folder, page, _labs_keys(problem))
                running.remove()
            if settings.retrain is not None and cut is None:
                folder = place.folder / f"{place.study}.retrained"
                page["test"] = retrain(
                    problem, worker, settings.retrain, results, folder, bar=place.progress
                )
                results.write(place.folder, page, _labs_keys(problem))
            if baseline is not None:
                logger.info("The parent itself: %s", _merged(baseline))
    with _finishing():
        tell(results, place)
    if cut is not None:
        raise cut
    return results


def _note(place: Place, clock: Clock) -> Note:
    """What others may know of this search while it runs."""
    shown = located(place.url)
    storage = shown if redacted(shown) == shown else None
    return Note(place.study, storage, place.command, clock.started)


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


class Clock:
    """When a search began, and how long it has run, whatever is done to the machine's clock."""

    def __init__(self) -> None:
        self._began, self._start = datetime.datetime.now(), time.monotonic()

    @property
    def started(self) -> str:
        return self._began.isoformat(timespec="seconds")

    def read(self) -> dict[str, Any]:
        """As search.json has it."""
        seconds = time.monotonic() - self._start
        ended = self._began + datetime.timedelta(seconds=seconds)
        finished = ended.isoformat(timespec="seconds")
        return {"started": self.started, "finished": finished, "seconds": seconds}


def _circumstances(place: Place, clock: Clock, accelerator: str) -> dict[str, Any]:
    """When, where and by what a search was run."""
    return {
        "command": place.command,
        **clock.read(),
        "versions": _versions(),
        "machine": _machine(accelerator),
        "study": place.study,
        "storage": redacted(place.url),
        "test": None,
    }


def _machine(accelerator: str) -> dict[str, Any]:
    device = parse_accelerator(accelerator)
    found = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    return found | ({"gpu": device_name(device)} if device.type != "cpu" else {})


def _quiet_optuna() -> None:
    """Its studies in memory are nobody's business; warnings are."""
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
        logger.warning("The parent itself could not be measured: %s", error)
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
            "%d of %d workers will have work, for search.strategy.setup.in_flight = %d; "
            "a new study may have more",
            *(busy, workers, settings.in_flight),
        )


def _warn_of_nothing_to_take(strategy: Strategy, settings: Settings, group: int) -> None:
    """Who joins a study of which one population is trained at a time has nothing to do."""
    if strategy.looks_back and group > 1 and settings.in_flight <= group:
        logger.warning(
            "One population of %d trials is trained at a time, by the process that leads, for "
            "search.strategy.setup.in_flight = %d; a new study with %d has work for two",
            *(group, settings.in_flight, 2 * group),
        )


def described_search(
    problem: Problem, settings: Settings, worker: Worker, about: Mapping[str, Any]
) -> dict[str, Any]:
    """What the search is about; a resumed one has to be about the same."""
    data = problem.data_module
    info, stopping = data.dataset_info, settings.early_stopping
    fixed = getattr(worker.space, "fixed", {})
    found: dict[str, Any] = plain(
        {
            "model": about.get("model"),
            "weights": weights_of(problem.graph.model),
            "dataset": data.name,
            "dataset_title": getattr(info, "title", data.name),
            "simulated": bool(getattr(info, "simulated", False)),
            "fingerprints": fingerprints_of(data),
            "batch_size": data.batch_size,
            "seed": problem.seed,
            "sampler": settings.sampler,
            "sampler_options": settings.sampler_options,
            "in_flight": settings.in_flight,
            "population": worker.group,
            "threads": settings.threads,
            "space": {
                "name": worker.space.name,
                "size": _written_size(worker.space.choices.size),
                "choices": {p.key: p.choice.plain() for p in worker.space.choices.open},
                **({"options": fixed} if fixed else {}),
            },
            "runners": {cls.name: dict(options) for cls, options in settings.runners},
            "early_stopping": stopping and dataclasses.asdict(stopping),
            "honour_directions": settings.goals.honour_directions,
            "objectives": [dataclasses.asdict(goal) for goal in settings.goals.goals],
            "summed": settings.goals.summed,
            "constraints": [str(c) for c in settings.goals.constraints],
        }
    )
    return found


def _written_size(size: int | None) -> int | str | None:
    """A size as a file can hold it."""
    return size if size is None or size < LONGEST else shown_size(size)


def _versions() -> dict[str, str]:
    from importlib import metadata

    names = ("torch", "optuna", "numpy")
    found = {name: metadata.version(name) for name in names}
    return {"mase": __version__, "python": platform.python_version(), **found}


@contextmanager
def _engine(
    problem: Problem, place: Place, settings: Settings, worker: Worker, workers: int
) -> Iterator[Engine]:
    engine = _make_engine(problem, place, settings, worker, workers)
    try:
        yield engine
    finally:
        engine.close()


def _make_engine(
    problem: Problem, place: Place, settings: Settings, worker: Worker, workers: int
) -> Engine:
    if place.engine == "ray":
        return _ray_engine(problem, settings, worker, workers)
    if workers == 1 and settings.trial_timeout is None:
        return Here(worker)
    return Processes(problem.packed(), workers, settings.trial_timeout)


def _ray_engine(problem: Problem, settings: Settings, worker: Worker, workers: int) -> Engine:
    from chop.actions.search.engines.ray import RayEngine

    gpus = settings.gpus_per_trial
    if gpus is None:
        gpus = 1 if worker.scene.device.type == "cuda" else 0
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
    )


def _found(record: Record, settings: Settings, about: Mapping[str, Any]) -> Lead | None:
    """Lead a study of our own before anything that takes time, so that others can join at once."""
    record.note("about", dict(about))
    return Lead.taken(record, settings.heartbeat)


def _take_part(
    record: Record,
    engine: Engine,
    place: Place,
    settings: Settings,
    about: Mapping[str, Any],
    strategy: Strategy,
) -> Lead | None:
    """Lead the study, or help whoever does until it is over; None if there is nothing to lead."""
    beat = settings.heartbeat
    if record.existed:
        check_same(record, about)
    took_over = False
    while True:
        while record.existed and is_led(record, beat):
            check_same(record, about)  # which may be younger than our first look
            logger.info("Joined the study '%s' in %s", record.study, record.shown)
            _warn_of_nothing_to_take(strategy, settings, about["population"])
            guest = Guest(
                record,
                engine,
                beat,
                settings.retries,
                group=about["population"],
                recorded=functools.partial(forget, place.unfinished),
            )
            if guest.run():
                return None
            logger.warning("The process that led the search is gone; going on in its place")
            took_over = True
        if record.existed and not (place.resume or took_over):
            raise ConfigError(
                f"the study {record.study!r} in {record.shown} exists; go on with it by --resume, "
                f"or {NEW_NAME}"
            )
        lead = Lead.taken(record, beat)
        if lead is not None:
            if not record.about():  # who made the study was killed at once
                record.note("about", dict(about))
            return lead


def check_same(record: Record, about: Mapping[str, Any], fix: str = NEW_NAME) -> None:
    """Refuse to mix two searches."""
    before = record.about()
    differ = [key for key in FIXED if key in before and before[key] != about[key]]
    if differ:
        key, theirs, ours = _difference(differ[0], before[differ[0]], about[differ[0]])
        raise ConfigError(
            f"the study {record.study!r} in {record.shown} is about another search: there {key} is "
            f"{_shown(theirs)}, and here {_shown(ours)}; {fix}"
        )


def _difference(path: str, theirs: Any, ours: Any) -> tuple[str, Any, Any]:
    """The first place in which two values differ, and what is there."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in [*theirs, *ours]:
            one, other = (table.get(key, "nothing") for table in (theirs, ours))
            if one != other:
                return _difference(f"{path}.{key}", one, other)
    return path, theirs, ours


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:99] + "…"


def _coordinator(
    strategy: Strategy,
    engine: Engine,
    record: Record,
    settings: Settings,
    worker: Worker,
    led: Lead,
) -> Coordinator:
    coordinator = Coordinator(
        strategy,
        engine,
        record,
        settings,
        worker_name=led.me.id,
        others=led.guests,
        group=worker.group,
    )
    stored = record.trials()
    if stored:
        done = sum(trial.outcome is not None for trial in stored)
        logger.info("Resumed the study '%s': %d trials are done", record.study, done)
        coordinator.resume(stored)
    return coordinator


def _search(
    coordinator: Coordinator, settings: Settings, place: Place, led: Lead, visualizer: Any
) -> BaseException | None:
    """Search; what cut it short, once what there is has been written."""
    logger.info("Search started...")
    shown = progress_bar(settings.goals, wanted=place.progress, log=logger.info)
    try:
        with Interruption() as interruption, shown as show:
            coordinator.show = show
            coordinator.visualizer = visualizer
            coordinator.run(lambda: interruption.received or led.deposed)
    except Failed as error:
        return error
    if led.deposed:
        record = coordinator.record
        raise StorageError(
            f"this process was away for long, and another leads the study {record.study!r} in "
            f"{record.shown} now; the same command joins it"
        )
    if interruption.received:
        return Interrupted(interruption.received)
    if coordinator.progress.completed == 0:
        failed = coordinator.first_failure
        error_lines = (failed.error or "").strip().splitlines() if failed else []
        last = error_lines[-1] if error_lines else "nothing was tried"
        return ValueError(f"no trial was completed; the first failed with: {last}")
    return None
