"""Check, set up and run an action."""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chop.actions.base import Action
from chop.actions.config import ConfigError, RunConfig
from chop.actions.flags import with_flags
from chop.actions.project import Project
from chop.actions.resolve import resolve
from chop.log import show_logs
from chop.processes import is_first_process
from chop.progress import hidden_progress

__all__ = ["Run", "import_files", "prepare"]

logger = logging.getLogger(__name__)

# loggers of libraries that follow --log-level, except that "info" sets them to "warning"
LIBRARIES = ("transformers", "datasets", "optuna")
PROFILE_LINES = 60


@dataclass(frozen=True)
class Run:
    """An action that is ready to run: its options are checked."""

    action: Action
    config: RunConfig
    project: Project
    table: str
    checked: Any = None  # what the check of the action returned

    def __call__(self) -> None:
        """Seed and run the action, with the profiler or debugger if requested."""
        config = self.config
        seed_everything(config.seed)
        if config.no_warnings:
            warnings.simplefilter("ignore")
        profiled = _profiled() if config.profile else contextlib.nullcontext()
        bars = hidden_progress(config.no_progress)
        with _debugged(config.to_debug), profiled, bars:
            self.action.run(config, self.project, self.checked)


def prepare(action: Action, flags: Mapping[str, Any]) -> Run:
    """Resolve and check the options of `action` before any slow work starts."""
    resolved = resolve(action.complete(flags), needs_names=action.needs_names, without=action.makes)
    config = resolved.config
    if action.beside_checkpoint and "resume" in resolved.from_file:
        config = replace(config, resume=False)  # one file serves training and testing
    set_up_logging(config)
    for note in resolved.notes:
        logger.info("%s", note)
    is_named = action.needs_names or None not in (config.model, config.dataset)
    if is_named and not config.imports:
        _check_names(config)
    for require in action.requirements:
        require(config)
    project = Project.of(
        config,
        beside_checkpoint=action.beside_checkpoint,
        keeps=action.keeps,
        dir_is_set="project_dir" in resolved.written,
    )
    checked = action.check(config, project, resolved.from_file)
    if config.imports:  # run after all else is checked; they may register the names
        import_files(config.imports)
        if is_named:
            _check_names(config)
    named = replace(config, project=config.project or project.name)
    return Run(action, named, project, resolved.table(), checked)


def import_files(files: Sequence[Path]) -> None:
    """Run the user's files, which register models, data sets and passes."""
    from chop.user_code import UserCodeError, UserCodeExited, import_user_file

    try:
        for file in files:
            import_user_file(file)
    except UserCodeError as error:
        kind = ImportError if isinstance(error, UserCodeExited) else ConfigError
        raise kind(f"--import: {error}") from error


def _check_names(config: RunConfig) -> None:
    from chop.dataset.base import DATASETS
    from chop.models.base import MODELS, get_model_info

    is_right = config.model in MODELS and config.dataset in DATASETS
    if not is_right and config.model in DATASETS and config.dataset in MODELS:
        raise ConfigError(
            f"{config.model!r} is a data set and {config.dataset!r} is a model; "
            f"swap the two arguments"
        )
    get_model_info(str(config.model))
    _ = DATASETS[str(config.dataset)]


def set_up_logging(config: RunConfig) -> None:
    """Show messages of the chosen level; processes other than the first only show warnings."""
    level = "debug" if config.to_debug else config.log_level
    show_logs(level if is_first_process() else "warning", with_flags)
    for library in LIBRARIES:
        quieter = "warning" if level == "info" else level
        logging.getLogger(library).setLevel(quieter.upper())
    if config.to_debug:
        logger.debug("Enabled debug mode.")


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextlib.contextmanager
def _profiled() -> Iterator[None]:
    """Context that prints the functions with the longest cumulative time at its end."""
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    try:
        with profiler:
            yield
    finally:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(PROFILE_LINES)


@contextlib.contextmanager
def _debugged(is_enabled: bool) -> Iterator[None]:
    """Context that opens a debugger at an error, if stdin is a terminal."""
    try:
        yield
    except FileNotFoundError:
        raise  # its message is sufficient
    except Exception:
        if is_enabled and sys.stdin.isatty():
            import pdb
            import traceback

            traceback.print_exc()
            pdb.post_mortem()
        raise
