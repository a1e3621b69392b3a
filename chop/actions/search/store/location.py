"""Where a study is kept, and which study of a folder is meant."""

from __future__ import annotations

import dataclasses
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

STUDY = "search"  # the name of a study, and of its journal
UNNAMED = re.compile(rf"{STUDY}(?:-([1-9]\d*))?")
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
    begins: bool = False  # whether the run that is resumed was cut before it had a study

    @property
    def url(self) -> str:
        return self.storage or str(self.folder / f"{self.study}.journal")

    @property
    def snapshots(self) -> Path:
        """The folder of populations whose trials are not stored yet."""
        return self.folder / f"{self.study}.populations"

    @property
    def continues(self) -> bool:
        """Whether the study has to exist."""
        return self.resume and not self.begins


def latest(location: StudyLocation) -> StudyLocation:
    """The location of the latest study of the folder, unless the study was named."""
    journals = _journals(location)
    if not journals:
        return location
    return dataclasses.replace(location, study=journals[max(journals)].stem)


def next_free(location: StudyLocation) -> StudyLocation:
    """The location for a new study; the files of the study before it are moved aside."""
    journals = _journals(location)
    if not journals:
        return location
    newest = max(journals)
    _move_aside(location.folder, journals[newest].stem)
    return dataclasses.replace(location, study=f"{STUDY}-{newest + 1}")


def _journals(location: StudyLocation) -> dict[int, Path]:
    """The journals of the folder's unnamed studies, by number."""
    if location.storage is not None or location.study != STUDY:
        return {}
    return numbered_journals(location.folder)


def numbered_journals(folder: Path) -> dict[int, Path]:
    """`search.journal` is number 0 of a folder, `search-1.journal` number 1, and so on.

    The latest study has the largest number: clocks are set back, and copies lose file times.
    """
    names = {file: UNNAMED.fullmatch(file.stem) for file in folder.glob(f"{STUDY}*.journal")}
    return {int(match[1] or 0): file for file, match in names.items() if match}


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
