"""`search`: try designs of a model and keep the Pareto front."""

from __future__ import annotations

import copy
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
from chop.log import quieter
from chop.redaction import MARK
from chop.registry import unknown
from chop.tools.config_load import convert_str_na_to_none, load_config

if TYPE_CHECKING:  # torch is imported when there is work to do
    from torch import nn

    from chop.actions.search.results.files import Results
    from chop.actions.search.spec.problem import Problem
    from chop.actions.search.store.location import StudyLocation

logger = logging.getLogger(__name__)

SHOWN = 20  # rows of the table of the best


def parse_search_config(search_config: Mapping[str, Any] | str | Path) -> tuple[Any, Any]:
    """The tables `strategy` and `search_space` of a file, or of what was read from one."""
    config = _tables(search_config)
    return config["strategy"], config["search_space"]


def _tables(search_config: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    if not isinstance(search_config, Mapping):
        search_config = load_config(search_config)
    table = search_config.get("search", search_config)
    return dict(convert_str_na_to_none(table))


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
) -> Results:
    """Search as the labs call it: `search_config` is a TOML file, or its `[search]` table."""
    from chop.actions.search.compat.labs import conduct_by, own_strategy
    from chop.actions.search.run_study import run_study
    from chop.actions.search.spec.settings import check_tables, settings_of
    from chop.actions.search.store.location import STUDY, StudyLocation
    from chop.log import show_logs_unless_configured

    show_logs_unless_configured()
    _check_engine(engine)
    check_study(study)
    tables = _tables(search_config)
    check_tables(tables)
    own = own_strategy(tables)
    if own is None:
        settings_of(tables)
    problem = make_problem(
        model,
        model_info,
        task,
        data_module,
        tables,
        accelerator,
        load_name,
        load_type,
        seed,
        allow_nonfinite=allow_nonfinite,
    )
    location = StudyLocation(Path(save_path), storage, study or STUDY, workers, engine, resume)

    def go(problem: Problem) -> Results:
        return run_study(problem, location, {"model": type(model).__name__}, visualizer)

    return go(problem) if own is None else conduct_by(own, problem, location.folder, go, visualizer)


def _check_engine(engine: str) -> None:
    """What is not there is said before the parent is trained."""
    engines = OPTIONS["engine"].choices
    if engine not in engines:
        raise ValueError(unknown("engine", engine, engines))
    if engine == "ray":
        from chop.actions.search.run.engines.ray import import_ray

        import_ray()


def make_problem(
    model: nn.Module,
    model_info: Any,
    task: str,
    data_module: Any,
    tables: Mapping[str, Any],
    accelerator: str,
    load_name: str | None,
    load_type: str | None,
    seed: int,
    cf_args: Mapping[str, Any] | None = None,
    name: str = "",
    imports: tuple[Path, ...] = (),
    trained: bool = True,  # a notebook hands over a network that it has trained
    allow_nonfinite: bool = False,
) -> Problem:
    """Load the parent, and trace it."""
    from chop.actions.search.spec.problem import Problem
    from chop.actions.transform.source import Source
    from chop.checkpoints import refuse_nonfinite
    from chop.devices import parse_accelerator

    if data_module.train_dataset is None:
        data_module.prepare_data()
        data_module.setup("fit")
    device = parse_accelerator(accelerator)
    source = Source(model, model_info, name, data_module, task, load_name, load_type or "mz")
    graph = source.graph_on(device, dict(cf_args or {}))
    if not allow_nonfinite:
        refuse_nonfinite(graph.model, load_name)
    return Problem(
        graph, model_info, task, data_module, tables, accelerator, seed, imports, trained
    )


def check_search(config: RunConfig, project: Project, from_file: Collection[str]) -> None:
    """Refuse what is wrong whatever runners and spaces the files of --import may register."""
    from chop.actions.search.store.urls import check_url
    from chop.devices import parse_accelerator

    _check_engine(config.engine)
    check_study(config.study)
    if config.storage is not None:
        inside = (Path.cwd(), project.folder) if "storage" in from_file else ()
        check_url(config.storage, inside)
    _check_storage_given(config, project)
    try:
        parse_accelerator(config.accelerator)
    except RuntimeError as error:
        raise ConfigError(str(error)) from error


def run_search(config: RunConfig, project: Project) -> None:
    """`ch search`."""
    from chop.actions.search.compat.labs import conduct_by, own_strategy, searches_itself
    from chop.actions.search.run_study import check_study_exists, prepared
    from chop.actions.search.spec.parent import candidates_trained, parent_checkpoint, trains_parent
    from chop.actions.search.spec.settings import check_tables, settings_of

    check_tables(config.search, f"{config.config}: ")
    tables = candidates_trained(config)
    own = own_strategy(tables)
    if own is None:
        settings_of(tables, f"{config.config}: ")
    elif config.apply is not None and searches_itself(own):
        raise ConfigError(f"--apply: {own.__name__} runs its own search and stores its own results")
    _check_space(tables)
    model, info, data_module = model_and_data(config)

    def problem_of(model: nn.Module, load_name: str | None, load_type: str) -> Problem:
        return make_problem(
            model,
            info,
            config.task,
            data_module,
            tables,
            config.accelerator,
            load_name,
            load_type,
            config.seed,
            config.cf_args,
            str(config.model),
            config.imports,
            trained=load_name is not None or config.is_pretrained,
            allow_nonfinite=config.allow_nonfinite,
        )

    location = _location(config, project)
    is_trained = not trains_parent(config, project)
    if own is None and not is_trained:  # a file that is wrong costs no training
        if location.continues or config.apply is not None:
            check_study_exists(location)
        with quieter("chop", logging.ERROR):
            prepared(problem_of(copy.deepcopy(model), None, config.load_type))
    project.create()
    begins = not location.continues and config.apply is None and not (own and searches_itself(own))
    with nullcontext(True) if is_trained else _noted(location, begins) as alone:
        source = parent_checkpoint(config, project, model, data_module, alone=alone)
    problem = problem_of(model, *source)

    def go(problem: Problem) -> None:
        _apply_or_search(problem, location, config)

    if own is None:
        go(problem)
    else:
        conduct_by(own, problem, location.folder, go)


def _location(config: RunConfig, project: Project) -> StudyLocation:
    """Where the options have the search run."""
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
    )


@contextmanager
def _noted(location: StudyLocation, begins: bool) -> Iterator[bool]:
    """While a parent is trained: whether no other process does that in the same folder.

    By the note of a search that `begins` --resume finds it, although it has no study yet.
    """
    from chop.actions.search.store.running import Note, Running

    with Running(location.folder) as running:
        if begins:
            running.write(Note(command=location.command))
        yield running.is_first


def _check_storage_given(config: RunConfig, project: Project) -> None:
    """A search that was kept elsewhere is found again only with its URL and its password."""
    goes_on = config.resume or config.apply is not None
    if config.storage is not None or not goes_on or any(project.search_ckpts.glob("*.journal")):
        return
    study, storage = _noted_study(project.search_ckpts)
    if storage is None or storage.startswith(str(project.search_ckpts)):
        return
    password = " with its password, or with PGPASSWORD set" if MARK in storage else ""
    raise ConfigError(
        f"{'--resume' if config.resume else '--apply'}: the study {study!r} of this "
        f"search is stored in {storage}; give it with --storage and --study{password}"
    )


def _noted_study(folder: Path) -> tuple[str | None, str | None]:
    """The study of the search in a folder, and its storage without the password."""
    from chop.actions.search.results.page.record import read_record

    try:
        record = read_record(folder / "search.json")
    except (OSError, ValueError):  # the study itself may still be there
        return None, None
    return record.study, record.storage


def _check_space(tables: Mapping[str, Any]) -> None:
    """The name of the space can be wrong whatever the network is, which may have to be trained."""
    from chop.actions.search.space.registry import check_name
    from chop.actions.search.spec.problem import wrong_usage

    name = tables["search_space"].get("name")
    if isinstance(name, str):
        with wrong_usage():
            check_name(name)


def _apply_or_search(problem: Problem, location: StudyLocation, config: RunConfig) -> None:
    from chop.actions.search.results.apply import apply
    from chop.actions.search.run_study import run_study

    if config.apply is not None:
        apply(problem, location, config)
        return
    logger.info("Searching model '%s'...", config.model)
    run_study(
        problem,
        location,
        {"model": config.model},
        report=lambda results, location: _report(results, location, config),
    )
    logger.info("Searching is completed")


def _report(results: Results, location: StudyLocation, config: RunConfig) -> None:
    """What was found, and where it is."""
    from chop.actions.search.results.page.page import write_report

    if results.best:
        logger.info("Best trial(s):")
        logger.info("\n%s", results.table(SHOWN))
    elif miss := results.nearest_miss():
        logger.warning("%s", miss)
    if len(results.best) > SHOWN:
        more, file = len(results.best) - SHOWN, location.folder / "best.json"
        logger.info("… and %d more, in %s", more, file)
    page = write_report(location.folder / "search.json")
    logger.info("Saved the search to %s", location.folder)
    logger.info("Look at it: %s", page)
    if results.chosen is not None:
        logger.info("Build the best with: %s --apply best", _again(config, sys.argv[1:]))


def _again(config: RunConfig, words: list[str]) -> str:
    """The command that finds this search again: the one that was given, and its project's name."""
    kept = [word for word in words if word != "--resume"]
    if not any(word.split("=")[0] == "--project" for word in kept):
        kept += ["--project", str(config.project)]
    return command(*kept)
