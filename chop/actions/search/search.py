"""`search`: try designs of a model and keep the Pareto front."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import OPTIONS, ConfigError, RunConfig
from chop.actions.invocation import command
from chop.actions.prepare import model_and_data
from chop.actions.project import Project, check_study
from chop.actions.transform.source import Source
from chop.registry import unknown
from chop.system.log import quieter
from chop.system.redaction import MARK
from chop.tools.config_load import convert_str_na_to_none, load_config

if TYPE_CHECKING:  # torch is imported when there is work to do
    from torch import nn

    from chop.actions.search.results.files import Results
    from chop.actions.search.space.base import Parent
    from chop.actions.search.spec.settings import Settings
    from chop.actions.search.store.location import StudyLocation

logger = logging.getLogger(__name__)

SHOWN = 20  # rows of the table of the best


def parse_search_config(search_config: Mapping[str, Any] | str | Path) -> tuple[Any, Any]:
    """Return the tables `strategy` and `search_space` of a file or of its content."""
    config = _tables(search_config)
    return config["strategy"], config["search_space"]


def _tables(search_config: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    if not isinstance(search_config, Mapping):
        search_config = load_config(search_config)
    return dict(convert_str_na_to_none(search_config.get("search", search_config)))


def search(
    model: nn.Module,
    model_info: Any,
    task: str,
    dataset_info: Any,
    data_module: Any,
    search_config: Mapping[str, Any] | str | Path,
    save_path: str | Path,
    accelerator: str = "auto",
    load_name: str | None = None,
    load_type: str | None = None,
    visualizer: Any = None,
    *,
    seed: int = 0,
    workers: int | None = None,
    storage: str | None = None,
    study: str | None = None,
    resume: bool = False,
    engine: str = "local",
    allow_nonfinite: bool = False,
    front_end: str = "auto",
) -> Results:
    """Search as the labs call it: `search_config` is a TOML file, or its `[search]` table."""
    from chop.actions.search.compat import labs
    from chop.actions.search.run.feasible import check_feasible
    from chop.actions.search.run_study import choose_study, run_study
    from chop.actions.search.space.untraced import is_module_style
    from chop.actions.search.spec.parent import make_parent
    from chop.actions.search.spec.settings import check_tables, settings_of
    from chop.actions.search.spec.study_spec import build_spec
    from chop.actions.search.store.location import STUDY, StudyLocation
    from chop.system.log import show_logs_unless_configured

    show_logs_unless_configured()
    _check_engine(engine)
    check_study(study)
    tables = _tables(search_config)
    where = "" if isinstance(search_config, Mapping) else f"{search_config}: "
    check_tables(tables, where)
    strategy_class = labs.strategy_class_of(tables)
    settings = settings_of(tables, where) if strategy_class is None else None
    checkpoint = load_name, load_type or "mz"
    source = Source(model, model_info, "", data_module, task, *checkpoint, front_end)
    is_traced = not is_module_style(tables["search_space"])
    parent = make_parent(
        source, accelerator, seed, allow_nonfinite=allow_nonfinite, is_traced=is_traced
    )
    location = StudyLocation(Path(save_path), storage, study or STUDY, workers, engine, resume)

    def run(tables: Mapping[str, Any], settings: Settings) -> Results:
        chosen = choose_study(location)
        logger.info("Building search space...")
        name, folder = type(model).__name__, chosen.snapshots
        spec = build_spec(parent, tables, settings, model_name=name, folder=folder, where=where)
        if not chosen.continues:
            check_feasible(spec)
        return run_study(spec, chosen, visualizer)

    if strategy_class is None:
        assert settings is not None
        return run(tables, settings)
    folder = location.folder
    results: Results = labs.search_with(strategy_class, parent, tables, folder, run, visualizer)
    return results


def _check_engine(engine: str) -> None:
    """Refuse an unknown engine, and Ray if it is not installed."""
    engines = OPTIONS["engine"].choices
    if engine not in engines:
        raise ValueError(unknown("engine", engine, engines))
    if engine == "ray":
        from chop.actions.search.run.engines.ray import import_ray

        import_ray()


def check_search(config: RunConfig, project: Project, from_file: Collection[str]) -> None:
    """Refuse options that are wrong whatever the files of --import register."""
    from chop.actions.search.store.urls import check_url
    from chop.devices import parse_accelerator

    _check_engine(config.engine)
    check_study(config.study)
    if config.storage is not None:
        inside = (Path.cwd(), project.folder) if "storage" in from_file else ()
        check_url(config.storage, inside)
    _check_storage(config, project)
    try:
        parse_accelerator(config.accelerator)
    except RuntimeError as error:
        raise ConfigError(str(error)) from error


def run_search(config: RunConfig, project: Project) -> None:
    """`ch search`."""
    from chop.actions.search.compat import labs
    from chop.actions.search.space.registry import check_name
    from chop.actions.search.space.untraced import is_module_style
    from chop.actions.search.spec import parent as parents
    from chop.actions.search.spec.settings import check_tables, settings_of
    from chop.actions.search.spec.study_spec import config_errors

    check_tables(config.search, f"{config.config}: ")
    tables = _with_trials(parents.candidates_trained(config), config.n_trials)
    strategy_class = labs.strategy_class_of(tables)
    settings, searches_itself = None, labs.searches_itself(strategy_class)
    if strategy_class is None:
        settings = settings_of(tables, f"{config.config}: ")
    elif config.apply is not None and searches_itself:
        strategy = strategy_class.__name__
        raise ConfigError(f"--apply: {strategy} runs its own search and stores its own results")
    if isinstance(name := tables["search_space"].get("name"), str):
        with config_errors(f"{config.config}: "):
            check_name(name)  # before the network is loaded
    with config_errors():
        is_traced = not is_module_style(tables["search_space"])
    model, info, data_module = model_and_data(config)

    def parent_of(model: nn.Module, load_name: str | None, load_type: str) -> Parent:
        name, task = str(config.model), config.task
        return parents.make_parent(
            Source(model, info, name, data_module, task, load_name, load_type, front_end),
            config.accelerator,
            config.seed,
            cf_args=config.cf_args,
            trained=load_name is not None or config.has_weights,
            allow_nonfinite=config.allow_nonfinite,
            is_traced=is_traced,
        )

    location = _location(config, project)
    front_end = _front_end(config, location)
    is_trained = not parents.trains_parent(config, project)
    if settings is not None and not is_trained:
        untrained = parent_of(copy.deepcopy(model), None, config.load_type)
        later = dataclasses.replace(untrained, trained=True)  # as it is when the study begins
        _check_before_training(config, location, later, tables, settings)
    project.create(config)
    begins = not (location.continues or config.apply is not None or searches_itself)
    with nullcontext(True) if is_trained else _training_note(location, begins) as alone:
        source = parents.parent_checkpoint(config, project, model, data_module, alone=alone)
    parent = parent_of(model, *source)
    run = functools.partial(_apply_or_search, config, location, parent, is_checked=not is_trained)
    if strategy_class is None:
        assert settings is not None
        run(tables, settings)
    else:
        labs.search_with(strategy_class, parent, tables, location.folder, run)


def _with_trials(tables: dict[str, Any], n_trials: int | None) -> dict[str, Any]:
    """Return the tables with the number of trials of the command line, if it has one."""
    setup = tables["strategy"].get("setup", {})
    if n_trials is None or not isinstance(setup, Mapping):
        return tables
    strategy = {**tables["strategy"], "setup": {**setup, "n_trials": n_trials}}
    return {**tables, "strategy": strategy}


def _check_before_training(
    config: RunConfig,
    location: StudyLocation,
    parent: Parent,
    tables: Mapping[str, Any],
    settings: Settings,
) -> None:
    """Refuse a study that cannot run before its parent is trained.

    Of what is built here only the settings are used again: space and runners hold the weights of
    the parent, and the sampler holds the space.
    """
    from chop.actions.search.run.feasible import check_feasible
    from chop.actions.search.spec.study_spec import build_spec
    from chop.actions.search.store.location import latest
    from chop.actions.search.store.study_store import read_about

    if location.continues or config.apply is not None:
        current = latest(location)
        read_about(current.url, current.study)
    with quieter("chop", logging.ERROR):
        spec = build_spec(parent, tables, settings, where=f"{config.config}: ")
        _ = spec.strategy
    check_feasible(spec)


def _location(config: RunConfig, project: Project) -> StudyLocation:
    """Return where the search runs and stores its study."""
    from chop.actions.search.store.location import STUDY, StudyLocation
    from chop.actions.search.store.running import read_note

    note = read_note(project.search_ckpts) if config.resume else None
    return StudyLocation(
        project.search_ckpts,
        config.storage,
        config.study or STUDY,
        config.workers,
        config.engine,
        config.resume,
        not config.no_progress,
        command(*sys.argv[1:]),
        config.ray_address,
        begins=note is not None and note.study is None,
        hardware=project.hardware,
    )


def _front_end(config: RunConfig, location: StudyLocation) -> str:
    """Return the front end of the study that is continued or applied, unless another is given."""
    from chop.actions.search.store.location import latest
    from chop.actions.search.store.study_store import read_about

    if config.front_end != "auto" or not (location.continues or config.apply is not None):
        return config.front_end
    try:
        current = latest(location)
        stored = read_about(current.url, current.study).get("front_end")
    except (ValueError, OSError):  # what is wrong is said where it is opened
        return "auto"
    return stored if stored in OPTIONS["front_end"].choices else "auto"


@contextmanager
def _training_note(location: StudyLocation, begins: bool) -> Iterator[bool]:
    """Yield whether no other process works in the folder while the parent is trained.

    The note of a search that `begins` lets --resume find it before it has a study.
    """
    from chop.actions.search.store.running import Note, Running

    with Running(location.folder) as running:
        if begins:
            running.write(Note(command=location.command))
        yield running.is_first


def _check_storage(config: RunConfig, project: Project) -> None:
    """Refuse to continue a study in a database without its URL."""
    folder, continues = project.search_ckpts, config.resume or config.apply is not None
    if config.storage is not None or not continues or any(folder.glob("*.journal")):
        return
    from chop.actions.search.results.page import read_record

    try:
        record = read_record(folder / "search.json")
    except (OSError, ValueError):  # the study itself may still exist
        return
    storage = record.storage  # without its password
    if storage is None or storage.startswith(str(folder)):
        return
    password = " with its password, or with PGPASSWORD set" if MARK in storage else ""
    raise ConfigError(
        f"{'--resume' if config.resume else '--apply'}: the study {record.study!r} of this "
        f"search is stored in {storage}; give it with --storage and --study{password}"
    )


def _apply_or_search(
    config: RunConfig,
    location: StudyLocation,
    parent: Parent,
    tables: Mapping[str, Any],
    settings: Settings,
    *,
    is_checked: bool,
) -> None:
    from chop.actions.search.run.feasible import check_feasible
    from chop.actions.search.run_study import choose_study, run_study
    from chop.actions.search.space import calibration
    from chop.actions.search.spec.study_spec import build_spec
    from chop.actions.search.store.location import latest

    build = functools.partial(
        build_spec,
        parent,
        tables,
        settings,
        model_name=config.model,
        imports=config.imports,
        where=f"{config.config}: ",
    )
    if config.apply is not None:
        from chop.actions.search.results.apply import apply

        with quieter(calibration.__name__, logging.WARNING):  # the search has said it
            spec = build(folder=latest(location).snapshots)
        apply(spec, location, config)
        return
    logger.info("Searching model '%s'...", config.model)
    location = choose_study(location)
    logger.info("Building search space...")
    spec = build(folder=location.snapshots)
    if not (is_checked or location.continues):
        check_feasible(spec)
    run_study(spec, location, report=functools.partial(_report, config))
    logger.info("Searching is completed")


def _report(
    config: RunConfig, results: Results, facts: Mapping[str, Any], location: StudyLocation
) -> None:
    """Log the best designs, and write the page of the search."""
    from chop.actions.search.results.page.page import write_page
    from chop.actions.search.results.page.record import record_of

    if results.best:
        logger.info("Best trial(s):")
        logger.info("\n%s", results.table(SHOWN, facts["baseline"]))
    elif miss := results.nearest_miss():
        logger.warning("%s", miss)
    if (more := len(results.best) - SHOWN) > 0:
        logger.info("… and %d more, in %s", more, location.folder / "best.json")
    page = write_page(record_of(results, facts), location.folder / "search.json")
    logger.info("Saved the search to %s", location.folder)
    logger.info("Report: %s", page)
    if results.chosen is not None:
        words = [word for word in sys.argv[1:] if word != "--resume"]
        if not any(word.split("=")[0] == "--project" for word in words):
            words += ["--project", str(config.project)]
        logger.info("Build the best with: %s --apply best", command(*words))
