"""The directory of a run, `<project_dir>/<project>`, with `software/` and `hardware/` in it."""

from __future__ import annotations

import datetime
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chop.actions.config import ConfigError, RunConfig, default_project_dir
from chop.actions.made_with import note_made_with
from chop.actions.search.store.running import FILE as RUNNING
from chop.system.files import is_onnx_file
from chop.training.interruption import is_requeued
from chop.training.names import Names

__all__ = ["Keeps", "Project", "check_study", "find_project_to_resume"]

logger = logging.getLogger(__name__)

Keeps = Literal["training", "search"]
SAVED = ("training_ckpts", "transform", "search_ckpts")  # directories in software/
LONGEST_NAME = 200  # bytes, leaving room for suffixes such as .populations


@dataclass(frozen=True)
class Project:
    """The directory of a run, which `create()` makes."""

    folder: Path

    @classmethod
    def of(
        cls,
        config: RunConfig,
        *,
        beside_checkpoint: bool = False,
        keeps: Keeps = "training",
        dir_is_set: bool | None = None,
    ) -> Project:
        """Return the project that the options name or imply; with `resume`, a resumable one.

        `dir_is_set` tells whether the user gave `project_dir` (default: if it is not the usual).
        """
        if keeps == "search":
            return cls._of_search(config)
        if config.resume and config.load_name and config.load_type != "mz":
            raise ConfigError("--resume uses the weights of the run itself; omit --load")
        if beside_checkpoint and config.project is None and (owner := owner_of(config.load_name)):
            if dir_is_set is None:
                dir_is_set = config.project_dir != default_project_dir()
            return cls._of_checkpoint(config, owner, dir_is_set)
        resumes = config.resume or (config.is_to_auto_requeue and is_requeued())
        earlier = find_project_to_resume(config) if resumes and config.project is None else None
        project = earlier or cls._named(config)
        if config.resume and not project.can_be_resumed:
            raise ConfigError(
                f"--resume: no training checkpoint in {project.training_ckpts}; "
                f"start the run without --resume, or give its directory with --project"
            )
        return project

    @classmethod
    def _of_checkpoint(cls, config: RunConfig, owner: Path, is_set: bool) -> Project:
        """Return the project of the checkpoint, unless another --project-dir is set."""
        if is_set and config.project_dir.resolve() not in owner.resolve().parents:
            return cls._named(config)
        _check_writable(owner)
        return cls(owner)

    @classmethod
    def _named(cls, config: RunConfig) -> Project:
        """Return the project with the name in the options, or the name derived from them."""
        derived = _stem(config) + datetime.date.today().isoformat()
        project = cls(config.project_dir / (config.project or derived))
        if config.project_dir.resolve() not in project.folder.resolve().parents:
            raise ConfigError(
                f"--project: {config.project!r} is outside --project-dir; give a plain name"
            )
        _check_length("--project", project.name)
        _check_writable(project.folder)
        return project

    @classmethod
    def _of_search(cls, config: RunConfig) -> Project:
        needs_search = config.resume or config.apply is not None
        is_found = needs_search and config.project is None
        earlier = find_project_to_resume(config, lambda p: p.has_search) if is_found else None
        project = earlier or cls._named(config)
        if needs_search and not project.has_search and config.storage is None:
            flag = "--resume" if config.resume else "--apply"
            raise ConfigError(
                f"{flag}: there is no search in {project.search_ckpts}; "
                f"give its directory with --project, or its study with --storage and --study"
            )
        return project

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def software(self) -> Path:
        return self.folder / "software"

    @property
    def hardware(self) -> Path:
        return self.folder / "hardware"

    @property
    def training_ckpts(self) -> Path:
        return self.software / "training_ckpts"

    @property
    def search_ckpts(self) -> Path:
        return self.software / "search_ckpts"

    @property
    def has_search(self) -> bool:
        """Whether the project has files of a search."""
        files = (self.search_ckpts / name for name in ("search.json", RUNNING))
        return any(self.search_ckpts.glob("*.journal")) or any(file.is_file() for file in files)

    @property
    def can_be_resumed(self) -> bool:
        """Whether the project has a training checkpoint."""
        return Names.latest(self.training_ckpts) is not None

    def create(self, made_with: RunConfig | None = None) -> Project:
        """Create the directories if they do not exist, and log where.

        A run that makes networks notes its options for the commands that take the project.
        """
        message = "Project is in %s" if self.folder.exists() else "Project will be created at %s"
        for folder in (self.software, self.hardware):
            folder.mkdir(parents=True, exist_ok=True)
        if made_with is not None:
            note_made_with(made_with, self.folder)
        logger.info(message, self.folder)
        return self


def check_study(name: str | None) -> None:
    """Refuse the name of a study that cannot be a file name."""
    if name is None:
        return
    if not name.isprintable() or name in ("", ".", "..") or set(name) & {"/", "\\"}:
        raise ConfigError(f"--study: {name!r} is not a file name; give a name without / and \\")
    _check_length("--study", name)


def _check_length(flag: str, name: str) -> None:
    """Refuse a name that is too long for file systems."""
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise ConfigError(
            f"{flag}: {name[:20]!r}… is longer than {LONGEST_NAME} bytes; shorten the name"
        )


def owner_of(checkpoint: str | Path | None) -> Path | None:
    """Return the project directory of the run that saved `checkpoint`."""
    path = Path(checkpoint or ".").absolute()
    for inside in path.parents if checkpoint else ():
        if inside.name in SAVED and inside.parent.name == "software":
            return inside.parents[1]
    return None


def find_project_to_resume(
    config: RunConfig, fits: Callable[[Project], bool] = lambda project: project.can_be_resumed
) -> Project | None:
    """Return the newest project of the same model, task and data set that `fits`."""
    if not config.project_dir.is_dir():
        return None
    dated = re.compile(re.escape(_stem(config)) + r"\d{4}-\d{2}-\d{2}")
    projects = [Project(p) for p in config.project_dir.iterdir() if dated.fullmatch(p.name)]
    return max(filter(fits, projects), key=lambda project: project.name, default=None)


def _stem(config: RunConfig) -> str:
    """Return the derived name without its date, such as `jsc-tiny_classification_jsc_`."""
    model = Path(str(config.model)).stem if is_onnx_file(config.model) else config.model
    model, dataset = (str(name).replace("/", "-") for name in (model, config.dataset))
    return f"{model}_{config.task_in_full}_{dataset}_"


def _check_writable(folder: Path) -> None:
    """Refuse, before a long run, a directory that cannot be written to."""
    path = next(path for path in (folder, *folder.parents) if path.exists())
    if not path.is_dir() or not os.access(path, os.W_OK):
        problem = "is not a directory" if not path.is_dir() else "cannot be written to"
        raise ConfigError(f"--project-dir: {path} {problem}; use a directory that you can write to")
