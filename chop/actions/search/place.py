"""Where a search runs and keeps its study, and which study of a folder is meant."""

from __future__ import annotations

import dataclasses
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from chop.actions.config import ConfigError
from chop.actions.search.company import is_led_at
from chop.actions.search.record import Record, missing_study

logger = logging.getLogger(__name__)

STUDY = "search"  # the name of a study, and of its journal
NUMBERED = re.compile(rf"{STUDY}(?:-([1-9]\d*))?")  # the name of a study that nobody has named
OF_ONE_SEARCH = ("search.json", "report.html", "study.pkl")


@dataclass(frozen=True)
class Place:
    """Where a search runs, and where it keeps what it finds."""

    folder: Path
    storage: str | None = None
    study: str = STUDY
    workers: int | None = None
    engine: str = "local"
    resume: bool = False
    progress: bool = True
    command: str = ""
    begins: bool = False  # whether the run that is resumed was cut before it had a study

    @property
    def url(self) -> str:
        return self.storage or str(self.folder / f"{self.study}.journal")

    @property
    def unfinished(self) -> Path:
        """Where populations are kept until their trials are recorded."""
        return self.folder / f"{self.study}.populations"

    @property
    def continues(self) -> bool:
        """Whether the study has to exist."""
        return self.resume and not self.begins


def free_place(place: Place, beat: float) -> Place:
    """A second search in a folder gets a study of its own; a resumed one the latest."""
    if place.continues:
        return latest(place)
    there = _studies(place)
    if not there:
        return place
    newest = max(there)
    file = there[newest]
    if is_led_at(str(file), file.stem, beat):
        return latest(place)
    _set_aside(place.folder, file.stem)
    return dataclasses.replace(place, study=f"{STUDY}-{newest + 1}")


def _set_aside(folder: Path, study: str) -> None:
    """Keep what an earlier search has left; its journal stays where it is."""
    named = (folder / name for name in ("best.json", "log.json", *OF_ONE_SEARCH))
    files = [*(file for file in named if file.exists()), *folder.glob("trial_*")]
    if not files:
        return
    aside = folder / study
    aside.mkdir(exist_ok=True)
    for file in files:
        if (aside / file.name).is_dir():
            shutil.rmtree(aside / file.name)
        file.replace(aside / file.name)
    logger.info("An earlier search is in this folder: its files are in %s now", aside)


def latest(place: Place) -> Place:
    """The place of the search that is there."""
    there = _studies(place)
    return dataclasses.replace(place, study=there[max(there)].stem) if there else place


def _studies(place: Place) -> dict[int, Path]:
    """The journals of the studies that nobody has named, by number."""
    if place.storage is not None or place.study != STUDY:
        return {}
    return numbered_journals(place.folder)


def numbered_journals(folder: Path) -> dict[int, Path]:
    """`search.journal` is number 0 of a folder, `search-1.journal` number 1: the later, the larger.

    Times of files say less: clocks are set back, and copies lose them.
    """
    named = {file: NUMBERED.fullmatch(file.stem) for file in folder.glob(f"{STUDY}*.journal")}
    return {int(found[1] or 0): file for file, found in named.items() if found}


def check_study_exists(place: Place) -> None:
    """Refuse a study that is not there, before anything takes time."""
    place = latest(place)
    record = Record.found(place.url, place.study, create=False)
    if record is None:
        raise ConfigError(missing_study(place.study, place.url))
    record.close()
