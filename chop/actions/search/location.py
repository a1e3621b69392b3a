"""Where a study is kept, and which study of a folder is meant."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

STUDY = "search"  # the name of a study, and of its journal
UNNAMED = re.compile(rf"{STUDY}(?:-(\d+))?")
FILES = ("best.json", "log.json", "search.json", "report.html", "study.pkl")  # of one search


@dataclass(frozen=True)
class StudyLocation:
    """Where a search runs, and where it keeps its results."""

    folder: Path
    storage: str | None = None
    study: str = STUDY
    workers: int | None = None
    engine: str = "local"
    resume: bool = False
    progress: bool = True
    command: str = ""
    ray_address: str | None = None

    @property
    def url(self) -> str:
        return self.storage or str(self.folder / f"{self.study}.journal")

    @property
    def snapshots(self) -> Path:
        """The folder of populations whose trials are not stored yet."""
        return self.folder / f"{self.study}.populations"


def latest(location: StudyLocation) -> StudyLocation:
    """The location of the latest study of the folder, unless the study was named."""
    journals = _journals(location)
    return dataclasses.replace(location, study=journals[-1].stem) if journals else location


def next_free(location: StudyLocation) -> StudyLocation:
    """The location for a new study; the files of the study before it are moved aside."""
    journals = _journals(location)
    if not journals:
        return location
    taken = {file.stem for file in journals}
    free = (f"{STUDY}-{i}" for i in itertools.count(1) if f"{STUDY}-{i}" not in taken)
    _move_aside(location.folder, journals[-1].stem)
    return dataclasses.replace(location, study=next(free))


def _journals(location: StudyLocation) -> list[Path]:
    """The journals of the folder's unnamed studies, in the order of their numbers."""
    if location.storage is not None or location.study != STUDY:
        return []
    files = location.folder.glob(f"{STUDY}*.journal")
    numbered = [(match, file) for file in files if (match := UNNAMED.fullmatch(file.stem))]
    return [file for match, file in sorted(numbered, key=lambda pair: int(pair[0][1] or 0))]


def _move_aside(folder: Path, study: str) -> None:
    """Move the results of an earlier search to a folder of their own; its journal stays."""
    named = (folder / name for name in FILES)
    files = [*(file for file in named if file.exists()), *folder.glob("trial_*")]
    if not files:
        return
    aside = folder / study
    aside.mkdir(exist_ok=True)
    for file in files:
        if (aside / file.name).is_dir():
            shutil.rmtree(aside / file.name)
        file.replace(aside / file.name)
    logger.info("Moved the results of the earlier search to %s", aside)
