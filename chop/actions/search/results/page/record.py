"""What a search has left behind in `search.json`, found and checked."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from chop.actions.config import ConfigError
from chop.actions.invocation import called
from chop.actions.search.store.running import FILE as RUNNING
from chop.actions.search.store.running import Note, is_running, read_note
from chop.options import did_you_mean
from chop.redaction import redacted, redacted_text

__all__ = ["Objective", "SearchRecord", "Space", "Trial", "find_record", "read_record"]

VERSION = 1  # of the files that this code can read
FILE = "search.json"
IN_PROJECT = Path("software", "search_ckpts", FILE)
SUM = "sum of scaled metrics"

Metrics = dict[str, float | None]
Direction = Literal["maximize", "minimize"]


class _Part(BaseModel):
    """Keys that later versions add are no error."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Objective(_Part):
    """A metric that the search was after."""

    name: str
    direction: Direction
    scale: float = 1.0

    def better(self, a: float, b: float) -> bool:
        return a > b if self.direction == "maximize" else a < b


class Space(_Part):
    """What could be chosen; a size of None is one that nobody can count."""

    name: str = "unnamed"
    size: int | str | None = None
    choices: dict[str, Any] = {}


class Scores(_Part):
    """Metrics of one network, by the kind of runner that measured them."""

    software_metrics: dict[str, Any] = {}
    hardware_metrics: dict[str, Any] = {}

    @property
    def metrics(self) -> Metrics:
        """All of them; None stands for what is no number, or not a finite one."""
        return {
            name: finite(value)
            for name, value in (self.software_metrics | self.hardware_metrics).items()
            if value is None or isinstance(value, (int, float))
        }


class Trial(Scores):
    """One design that was tried."""

    number: int
    state: Literal["COMPLETE", "FAIL", "PRUNED", "RUNNING", "WAITING"]
    values: list[float | None] | None = None
    feasible: bool = True
    params: dict[str, Any] = {}
    config: dict[str, Any] = {}
    layers: dict[str, dict[str, Any]] | None = None
    seconds: float | None = None
    error: str | None = None

    @property
    def is_complete(self) -> bool:
        return self.state == "COMPLETE"


class SearchRecord(_Part):
    """A whole search."""

    version: int
    command: Annotated[str, AfterValidator(lambda text: redacted_text(text))] = "ch search"
    started: str | None = None
    finished: str | None = None
    seconds: float | None = None
    model: str = "unnamed model"
    dataset: str = "unnamed data set"
    dataset_title: str | None = None
    simulated: bool = False
    fingerprints: dict[str, str] = {}
    versions: dict[str, str | None] = {}
    machine: dict[str, Any] = {}
    seed: int | None = None
    sampler: str | None = None
    study: str | None = None
    storage: Annotated[str | None, AfterValidator(redacted)] = None
    workers: int | None = None
    space: Space = Space()
    objectives: list[Objective] = Field(min_length=1)
    summed: Direction | None = None
    constraints: list[str] = []
    baseline: Scores | None = None
    trials: list[Trial]
    front: list[int] = []
    importance: dict[str, dict[str, float | None]] = {}
    chosen: int | None = None
    test: dict[str, dict[str, Any]] | None = None
    state: Literal["running", "cut"] | None = None  # of a search that has not written its files

    @property
    def goals(self) -> list[Objective]:
        """What the sampler was told to improve: the objectives, or their one sum."""
        if self.summed is None:
            return self.objectives
        return [Objective(name=SUM, direction=self.summed)]

    def metrics_of(self, trial: Trial) -> Metrics:
        """The trial's metrics, the sum among them, objectives in their own units."""
        metrics = dict(trial.metrics)
        for objective, value in zip(self.goals, trial.values or [], strict=False):
            if metrics.get(objective.name) is None:
                metrics[objective.name] = finite(value, divisor=objective.scale)
        return metrics


def finite(value: float | None, divisor: float = 1.0) -> float | None:
    """`value / divisor` where that is a number that can be drawn."""
    if value is None or not divisor or not math.isfinite(value):
        return None
    return value / divisor


def find_record(where: str | Path, project_dir: Path) -> Path:
    """The file by which `read_record` knows the search of a project, or the file that is named.

    That is its search.json and, as long as it has none or is not up to date, the note of the
    running search or the journal of its study.
    """
    path = Path(where).expanduser()
    if path.is_file():
        return path
    folder = path if path.is_dir() else project_dir / path
    if not folder.is_dir():
        raise ConfigError(_no_such_project(str(where), project_dir))
    for place in ((folder / IN_PROJECT).parent, folder):
        if (found := _record_in(place)) is not None:
            return found
    raise ConfigError(
        f"no search in {folder}: {IN_PROJECT} is missing; "
        f"run `{called()} search --project {folder.name}` first, or give another project"
    )


def _record_in(folder: Path) -> Path | None:
    """What is known of the latest search in a folder: the first of these that is there."""
    note = read_note(folder)
    is_known = note is not None and note.study is not None and note.storage is not None
    if is_known and is_running(folder):
        return folder / RUNNING
    if (folder / FILE).is_file():
        return folder / FILE
    if note is not None:
        return folder / RUNNING
    return _latest_journal(folder)


def _latest_journal(folder: Path) -> Path | None:
    if next(folder.glob("*.journal"), None) is None:
        return None
    from chop.actions.search.store.location import numbered_journals

    numbered = numbered_journals(folder)
    return numbered[max(numbered)] if numbered else next(folder.glob("*.journal"))


def _no_such_project(name: str, project_dir: Path) -> str:
    here = project_dir.iterdir() if project_dir.is_dir() else ()
    searched = sorted(path.name for path in here if (path / IN_PROJECT).is_file())
    hint = did_you_mean(name, searched, f"; projects with a search: {_listed(searched)}")
    return f"no project {name!r} in {project_dir}{hint}"


def _listed(names: list[str], most: int = 8) -> str:
    more = f", … {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none (--project-dir names another folder)"


def read_record(file: Path) -> SearchRecord:
    """The search that `file` tells of, or a sentence that says what is wrong with it."""
    from chop.actions.search.results.page.study import read_running, read_study

    if file.name == RUNNING:
        return read_running(file.parent) or read_record(file.with_name(FILE))
    if file.suffix == ".journal":
        return read_study(str(file), Note(file.stem), file.parent, running=False)
    with drawable(file):
        return _read(file)


@contextlib.contextmanager
def drawable(file: Path) -> Iterator[None]:
    """Errors of JSON that no search has written as one sentence."""
    try:
        yield
    except RecursionError as error:
        raise ValueError(_damaged(file, "it is nested too deeply")) from error
    except OverflowError as error:
        raise ValueError(_damaged(file, "a number in it is too large")) from error
    except UnicodeEncodeError as error:
        raise ValueError(_damaged(file, "a text in it is not Unicode")) from error


def _read(file: Path) -> SearchRecord:
    try:
        content = json.loads(
            file.read_text(encoding="utf-8"),
            parse_constant=lambda _: None,  # NaN and infinities cannot be drawn
            parse_float=lambda text: finite(float(text)),
            object_hook=_sharing(),
        )
    except ValueError as error:
        raise ValueError(_damaged(file, str(error))) from error
    if not isinstance(content, dict) or not isinstance(content.get("version"), int):
        raise ValueError(_damaged(file, "it has no version"))
    if content["version"] > VERSION:
        raise ValueError(
            f"{file} has version {content['version']}, but this MASE supports versions up "
            f"to {VERSION}; update MASE, or use the MASE that ran the search"
        )
    try:
        return SearchRecord.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(_damaged(file, f"{place}: {first['msg']}")) from error


def _sharing() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Make equal tables of nodes, of which thousands of designs have few, the same object."""
    known: dict[str, dict[str, Any]] = {}

    def shared(table: dict[str, Any]) -> dict[str, Any]:
        is_of_node = table.keys() == {"config"}
        return known.setdefault(repr(table), table) if is_of_node else table

    return shared


def _damaged(file: Path, why: str) -> str:
    return f"{file} is damaged ({why}): `{called()} search --resume` writes it again from the study"
