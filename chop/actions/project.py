"""The folder of a run: `<project_dir>/<project>` with `software/` and `hardware/` in it."""

from __future__ import annotations

import datetime
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from chop.actions.config import ConfigError, RunConfig

__all__ = ["Project", "find_project_to_resume"]

logger = logging.getLogger(__name__)

DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class Project:
    """Where a run keeps what it makes; nothing is on disk before `create()`."""

    folder: Path

    @classmethod
    def of(cls, config: RunConfig) -> Project:
        """The folder that the options name, or derive; with `resume`, one that can be resumed."""
        if config.project is None and config.resume:
            return find_project_to_resume(config) or _nothing_to_resume(config, _stem(config) + "*")
        project = cls(config.project_dir / (config.project or _derived_name(config)))
        if config.resume and not project.checkpoints():
            return _nothing_to_resume(config, project.name)
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

    def checkpoints(self) -> list[Path]:
        """The checkpoints that training has left here."""
        return sorted(self.training_ckpts.glob("*.ckpt"))

    def create(self) -> Project:
        """Make the folders, and say where; what is there already stays."""
        for folder in (self.software, self.hardware):
            folder.mkdir(parents=True, exist_ok=True)
        logger.info("Project will be created at %s", self.folder)
        return self


def find_project_to_resume(config: RunConfig) -> Project | None:
    """The newest folder of the same model, task and data set that holds a training checkpoint."""
    if not config.project_dir.is_dir():
        return None
    stem = _stem(config)
    folders = [path for path in config.project_dir.iterdir() if path.name.startswith(stem)]
    dated = [path for path in folders if DATE.fullmatch(path.name.removeprefix(stem))]
    newest_first = sorted(dated, key=lambda path: path.name, reverse=True)
    return next((p for p in map(Project, newest_first) if p.checkpoints()), None)


def _stem(config: RunConfig) -> str:
    """`jsc-tiny_classification_jsc_`, to which the date is added."""
    return f"{str(config.model).replace('/', '-')}_{config.task_in_full}_{config.dataset}_"


def _derived_name(config: RunConfig) -> str:
    return _stem(config) + datetime.date.today().isoformat()


def _nothing_to_resume(config: RunConfig, name: str) -> Project:
    raise ConfigError(
        f"--resume: no training checkpoint in {config.project_dir / name}; "
        f"start the run without --resume, or name its folder with --project"
    )
