"""Find and read the record of a search."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from chop.actions.config import ConfigError
from chop.actions.invocation import called
from chop.actions.search.results.page.record import SearchRecord, finite, table_sharing
from chop.actions.search.store.location import numbered_journals
from chop.actions.search.store.running import FILE as RUNNING
from chop.actions.search.store.running import Note, is_running, read_note
from chop.options import did_you_mean

VERSION = 1  # of the files that this code can read
MOST = 8  # projects that a message lists
FILE = "search.json"
IN_PROJECT = Path("software", "search_ckpts", FILE)
# errors of JSON that no search has written
DAMAGES: dict[type[Exception], str] = {
    RecursionError: "it is nested too deeply",
    OverflowError: "a number in it is too large",
    UnicodeEncodeError: "a text in it is not Unicode",
}


def find_record(where: str | Path, project_dir: Path) -> Path:
    """Return the file from which `read_record` reads a search: of a project, or the named file.

    For a project that is its search.json or, while that is missing or out of date, the note of the
    running search or the journal of its study.
    """
    path = Path(where).expanduser()
    if path.is_file():
        return path
    folder = path if path.is_dir() else project_dir / path
    if not folder.is_dir():
        raise ConfigError(_no_such_project(str(where), project_dir))
    for place in ((folder / IN_PROJECT).parent, folder):
        if (file := _record_in(place)) is not None:
            return file
    raise ConfigError(
        f"no search in {folder}: {IN_PROJECT} is missing; "
        f"run `{called()} search --project {folder.name}` first, or give another project"
    )


def _record_in(folder: Path) -> Path | None:
    """Return the most up-to-date file about the latest search in a folder."""
    note = read_note(folder)
    is_known = note is not None and note.study is not None and note.storage is not None
    if is_known and is_running(folder):
        return folder / RUNNING
    if (folder / FILE).is_file():
        return folder / FILE
    if note is not None:
        return folder / RUNNING
    numbered = numbered_journals(folder)
    return numbered[max(numbered)] if numbered else next(folder.glob("*.journal"), None)


def _no_such_project(name: str, project_dir: Path) -> str:
    searched = sorted(path.parents[2].name for path in project_dir.glob(f"*/{IN_PROJECT}"))
    more = f", … {len(searched) - MOST} more" if len(searched) > MOST else ""
    listed = ", ".join(searched[:MOST]) + more or "none (--project-dir names another folder)"
    hint = did_you_mean(name, searched, f"; projects with a search: {listed}")
    return f"no project {name!r} in {project_dir}{hint}"


def read_record(file: Path) -> SearchRecord:
    """Return the search in a file that `find_record` returned."""
    from chop.actions.search.results.page.study import read_running, read_study

    if file.name == RUNNING:
        return read_running(file.parent) or read_record(file.with_name(FILE))
    if file.suffix == ".journal":
        return read_study(str(file), Note(file.stem), file.parent, running=False)
    with page_errors(file):
        return _read(file)


@contextlib.contextmanager
def page_errors(file: Path) -> Iterator[None]:
    """Raise `DAMAGES` as one sentence."""
    try:
        yield
    except tuple(DAMAGES) as error:
        raise ValueError(_damaged(file, DAMAGES[type(error)])) from error


def _read(file: Path) -> SearchRecord:
    try:
        content = json.loads(
            file.read_text(encoding="utf-8"),
            parse_constant=lambda _: None,  # NaN and infinities cannot be drawn
            parse_float=lambda text: finite(float(text)),
            object_hook=table_sharing(),
        )
    except ValueError as error:
        raise ValueError(_unlike_a_search(file, str(error))) from error
    if not isinstance(content, dict) or not isinstance(content.get("version"), int):
        raise ValueError(_unlike_a_search(file, "it has no version"))
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


def _unlike_a_search(file: Path, why: str) -> str:
    """Return the message for a file that is damaged or, by its name, something else."""
    if file.name == FILE:
        return _damaged(file, why)
    return f"{file} is not a {FILE} ({why}); give the {FILE} of a search, or its project"


def _damaged(file: Path, why: str) -> str:
    return f"{file} is damaged ({why}): `{called()} search --resume` writes it again from the study"
