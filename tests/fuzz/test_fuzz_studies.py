"""Studies: journals, databases, and the records of a search."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from random import Random

from .commands import SEARCH
from .harness import Sandbox, inputs
from .mutations import ODD, changed, changed_json, changed_lines, damaged, foreign
from .pickles import hostile_file

RECORDS = Path("software") / "search_ckpts"
JOURNAL_START = b'{"op_code":'


def take_search(sandbox: Sandbox, random: Random, name: str) -> Path:
    """Copy a finished search with a study.pkl that would run code; return its records."""
    sandbox.take("data.npz", "best.ckpt", "search.toml")
    sandbox.take_project(name)
    records = sandbox.project / RECORDS
    (records / "study.pkl").write_bytes(hostile_file(random, sandbox.marker))
    return records


def odd_journal(random: Random, journal: bytes) -> bytes:
    """Return a journal with odd lines, of another program, or damaged."""
    way = random.randrange(6)
    if way == 0:
        return foreign(random)
    if way == 1:
        return damaged(random, journal)
    lines = journal.decode().splitlines()
    if way == 2:
        return "\n".join(changed_lines(random, lines)).encode(errors="surrogateescape") + b"\n"
    place = random.randrange(len(lines))
    if way == 3:
        operation = json.loads(lines[place]) | {"op_code": random.choice((*range(12), *ODD))}
        lines[place] = json.dumps(operation)
    else:
        lines[place] = changed_json(random, lines[place]).decode(errors="surrogateescape")
    return "\n".join(lines).encode(errors="surrogateescape") + b"\n"


@inputs("journal")
def test_a_journal_is_read_or_refused(sandbox: Sandbox, random: Random, index: int) -> None:
    own = take_search(sandbox, random, "searched") / "search.journal"
    content = odd_journal(random, own.read_bytes())
    how = random.choice((("--resume",), ("--resume",), ("--apply=best",), ()))
    if random.random() < 0.6 and how:
        own.write_bytes(content)
        sandbox.check(*SEARCH, *how)
        return
    other = sandbox.work / "study.journal"
    other.write_bytes(content)
    is_journal = content.startswith(JOURNAL_START) or not content
    may_change = [other] if is_journal else []
    sandbox.check(*SEARCH, *how, "--storage=study.journal", may_change=may_change)


def odd_database(random: Random, file: Path) -> None:
    """Change rows, columns or tables of a database, or damage it."""
    way = random.randrange(6)
    if way == 0:
        file.write_bytes(damaged(random, file.read_bytes()))
        return
    if way == 1:
        file.write_bytes(foreign(random))
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(file)) as database, database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type='table'")
        table = random.choice(sorted(name for (name,) in tables))
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        column = random.choice(columns)
        if way == 2:
            database.execute(f"DELETE FROM {table} WHERE rowid % 2")
        elif way == 3:
            database.execute(f"DROP TABLE {table}")
        else:
            odd = (None, -1, 10**6, 0.5, "x", "{", "[]", '{"a": 1}', b"\xff", "9" * 50)
            value = random.choice(odd)
            database.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", [value])


@inputs("sqlite")
def test_a_database_is_read_or_refused(sandbox: Sandbox, random: Random, index: int) -> None:
    take_search(sandbox, random, "in_database")
    sandbox.take("study.db")
    file = sandbox.work / "study.db"
    odd_database(random, file)
    how = random.choice(("--resume", "--resume", "--apply=best"))
    beside = [file, *(file.with_name(f"study.db-{end}") for end in ("wal", "shm", "journal"))]
    is_database = file.read_bytes().startswith(b"SQLite format 3")
    may_change = beside if is_database else []
    sandbox.check(*SEARCH, how, "--storage=sqlite:///study.db", may_change=may_change)


@inputs("record")
def test_records_of_a_search_are_read_or_refused(
    sandbox: Sandbox, random: Random, index: int
) -> None:
    records = take_search(sandbox, random, "searched")
    if random.random() < 0.7:
        file = records / "search.json"
        file.write_bytes(changed_json(random, file.read_text()))
        sandbox.check("report", "fuzz", "--project-dir=out")
        return
    files = [path for path in records.rglob("*.json") if path.parent.name != "transformed_ckpt"]
    file = random.choice(sorted(files))
    if random.random() < 0.5:
        file.write_text(json.dumps(changed(random, json.loads(file.read_text()))))
    else:
        file.write_bytes(damaged(random, file.read_bytes()))
    sandbox.check(*SEARCH, random.choice(("--resume", "--apply=best")))
