"""Where a study is stored, and which study of a folder is used."""

from __future__ import annotations

import dataclasses
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from chop.actions.search.space.learned_names import designs_beside
from chop.project_networks import NOTE

logger = logging.getLogger(__name__)

STUDY = "search"  # the name of a study, and of its journal
UNNAMED = re.compile(rf"{STUDY}(?:-([1-9]\d*))?")
FILES = ("best.json", "log.json", "search.json", "report.html", "study.pkl", NOTE)  # of one search


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
    hardware: Path | None = None  # where the circuit of the best design is written
    previous: str | None = None  # the study whose results are moved once this one has begun

    @property
    def url(self) -> str:
        return self.storage or str(self.folder / f"{self.study}.journal")

    @property
    def snapshots(self) -> Path:
        """The folder with files of groups whose trials are not stored yet."""
        return self.folder / f"{self.study}.populations"

    @property
    def designs(self) -> Path:
        """The folder with the designs of a front that was trained."""
        return designs_beside(self.snapshots)

    @property
    def retrained(self) -> Path:
        """The folder with the designs that were trained after the search."""
        return self.folder / f"{self.study}.retrained"

    @property
    def circuits(self) -> Path:
        """The folder with the circuits of designs."""
        return self.folder / f"{self.study}.circuits"

    @property
    def continues(self) -> bool:
        """Whether the study has to exist."""
        return self.resume and not self.begins


def latest(location: StudyLocation) -> StudyLocation:
    """Return the location of the latest study of the folder, unless the study was named."""
    journals = _journals(location)
    study = journals[max(journals)].stem if journals else location.study
    return dataclasses.replace(location, study=study)


def next_free(location: StudyLocation) -> StudyLocation:
    """Return the location for a new study, after the latest one of the folder."""
    journals = _journals(location)
    if not journals:
        return location
    newest = max(journals)
    study, previous = f"{STUDY}-{newest + 1}", journals[newest].stem
    return dataclasses.replace(location, study=study, previous=previous)


def _journals(location: StudyLocation) -> dict[int, Path]:
    """Return the journals of the folder's unnamed studies, by number."""
    is_unnamed = location.storage is None and location.study == STUDY
    return numbered_journals(location.folder) if is_unnamed else {}


def numbered_journals(folder: Path) -> dict[int, Path]:
    """Return the journals by number: 0 is `search.journal`, 1 is `search-1.journal`, and so on.

    The latest study has the largest number: clocks are set back, and copies lose file times.
    """
    names = {file: UNNAMED.fullmatch(file.stem) for file in folder.glob(f"{STUDY}*.journal")}
    return {int(match[1] or 0): file for file, match in names.items() if match}


def move_previous_results(location: StudyLocation) -> None:
    """Move the results of the previous study to a subfolder; its journal stays."""
    folder, study = location.folder, location.previous
    if study is None:
        return
    named = (folder / name for name in FILES)
    files = [*(file for file in named if file.exists()), *folder.glob("trial_*")]
    if not files:
        return
    subfolder = folder / study
    subfolder.mkdir(exist_ok=True)
    for file in files:
        if (subfolder / file.name).is_dir():
            shutil.rmtree(subfolder / file.name)
        file.replace(subfolder / file.name)
    logger.info("Moved the results of the earlier search to %s", subfolder)
