"""Files that are not ours, or not as a search left them: one sentence, and no byte is changed."""

import json
import os
import shutil
import sqlite3

import pytest

from chop import cli

from .conftest import config_text, search_words


@pytest.fixture(scope="module")
def studies(tmp_path_factory, checkpoint):
    """A folder with a search in a journal (project j) and one in SQLite (project s), both done."""
    folder = tmp_path_factory.mktemp("studies")
    (folder / "a.toml").write_text(config_text("n_trials = 4\nsampler = 'random'"))
    for name, flags in {"j": [], "s": ["--storage", f"sqlite:///{folder}/study.db"]}.items():
        with pytest.raises(SystemExit, match=r"^0$"):
            cli.main(search_words(folder / "a.toml", checkpoint, "--project", name, *flags))
    return folder


class Study:
    """A copy of one of the studies, to be damaged."""

    def __init__(self, folder, checkpoint, here, project):
        self.folder, self.checkpoint, self._here, self.project = folder, checkpoint, here, project
        self.results = folder / "out" / project / "software" / "search_ckpts"
        self.journal, self.database = self.results / "search.journal", folder / "study.db"

    def search(self, *flags):
        """The exit code and what was said."""
        where = ["--project", self.project]
        if self.project == "s":
            where += ["--storage", f"sqlite:///{self.database}"]
        code, _, said = self._here(
            *search_words(self.folder / "a.toml", self.checkpoint, *where, *flags)
        )
        return code, said

    def run(self, *statements):
        with sqlite3.connect(self.database) as connection:
            for statement in statements:
                assert connection.execute(statement).rowcount != 0, statement
        connection.close()


@pytest.fixture
def copied(studies, tmp_path, checkpoint, here):
    def make(project):
        folder = shutil.copytree(studies, tmp_path / "copy")
        return Study(folder, checkpoint, here, project)

    return make


def content(folder):
    """All files, apart from what SQLite keeps beside a database while it is open."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {f: f.read_bytes() for f in files if not f.name.endswith(("-wal", "-shm"))}


def one_sentence(said):
    """The last line, which is all there is to say."""
    last = said.strip().splitlines()[-1]
    assert last.startswith("ch: "), said
    assert "Traceback" not in said
    return last


# --- journals


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def in_trials(*path, value):
    """Change a field of every trial."""

    def apply(lines):
        for number, line in enumerate(lines):
            if line.startswith('{"op_code":4'):
                log = trial = json.loads(line)
                for key in path[:-1]:
                    trial = trial[key]
                trial[path[-1]] = value
                lines[number] = json.dumps(log)

    return apply


def about_line(value):
    line = '{"op_code":2,"worker_id":"x","study_id":0,"user_attr":{"about":%s}}'
    return lambda lines: lines.append(line % value)


LINES = {
    "an unknown operation": lambda lines: lines.insert(2, '{"op_code":99,"worker_id":"x"}'),
    "a line without an operation": lambda lines: lines.insert(2, '{"worker_id":"x"}'),
    "a line that is a number": lambda lines: lines.insert(2, "3"),
    "a line that is a list": lambda lines: lines.insert(2, "[1,2]"),
    "a line that is text": lambda lines: lines.insert(2, "notes"),
    "a last line that is text": lambda lines: lines.append("notes"),
    "zeros": lambda lines: lines.insert(2, "\0" * 100),
    "a line that is nested deeply": lambda lines: lines.insert(2, "[" * 100_000),
    "a subject that is nested deeply": about_line("[" * 5_000 + "]" * 5_000),
    "a subject that is no table": about_line("3"),
    "a state of another version": in_trials("state", value=17),
    "a trial without values": in_trials("values", value=None),
    "a trial with too many values": in_trials("values", value=[1.0, 2.0, 3.0]),
    "a trial with values that are text": in_trials("values", value=["x", "y"]),
    "a trial without a design": in_trials("params", value={}),
    "a trial without distributions": in_trials("distributions", value={}),
    "a distribution of another version": in_trials(
        "distributions", "seq_blocks_2/config/data_in_width", value='{"name":"Odd"}'
    ),
    "a moment that is no moment": in_trials("datetime_start", value="yesterday"),
    "metrics that are a list": in_trials("user_attrs", "software_metrics", value=[1]),
    "metrics that are nested": in_trials(
        "user_attrs", "hardware_metrics", value={"a": nested(400)}
    ),
    "attributes that are text": in_trials("user_attrs", "mase", value="x"),
    "a start in another age": in_trials("user_attrs", "mase", "started", value=1e300),
    "a start that is text": in_trials("user_attrs", "mase", "started", value="1794820036"),
    "violations that are text": in_trials("user_attrs", "mase", "violations", value=["x"]),
    "rungs that are a list": in_trials("user_attrs", "mase", "rungs", value=[1]),
    "an error that is a number": in_trials("user_attrs", "mase", "error", value=3),
}


RESUME, APPLY = ("--resume",), ("--apply", "best")
BOTH = pytest.mark.parametrize("flags", [RESUME, pytest.param(APPLY, marks=pytest.mark.slow)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", LINES)
@BOTH
def test_a_damaged_journal_is_named_in_a_sentence(copied, case, flags):
    study = copied("j")
    lines = study.journal.read_text().splitlines()
    LINES[case](lines)
    study.journal.write_text("\n".join(lines) + "\n")
    before = content(study.results)
    code, said = study.search(*flags)
    last = one_sentence(said)
    assert code == 1, said
    assert str(study.journal) in last
    assert "--storage" in last
    after = content(study.results)
    assert after.pop(study.journal).startswith(before.pop(study.journal))
    assert after == before


NOT_JOURNALS = {
    "notes": b"my precious notes",
    "a line": b"my precious notes\n",
    "a number": b"3\n",
    "a list": b"[1,2]\n",
    "another JSON": b'{"a": 1}\n{"b": 2}\n',
    "zeros": bytes(100),
    "a newline": b"\n",
    "half a word of a journal": b'{"op_co',
    "an operation that comes later": b'{"op_code":4,"worker_id":"x","study_id":0}\n',
    "a first line that says nothing": b'{"op_code":0,"worker_id":"x"}\n',
    "a first line that is no JSON": b'{"op_code":0,"worker_id"\n',
    "one long line": b"x" * 200_000,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", NOT_JOURNALS)
@pytest.mark.parametrize("flags", [(), pytest.param(RESUME, marks=pytest.mark.slow)])
def test_a_file_that_is_not_a_journal_is_left_as_it_is(copied, case, flags):
    study = copied("j")
    notes = study.folder / "notes.txt"
    notes.write_bytes(NOT_JOURNALS[case])
    before = content(study.folder)
    code, said = study.search("--storage", notes, *flags)
    assert code == 2, said
    assert f"ch: {notes} is not the journal of a search" in one_sentence(said)
    assert content(study.folder) == before


@pytest.mark.parametrize("begun", [b"", b'{"op_code":0,', b'{"op_code":0,"worker_id":"a-b","stu'])
def test_a_journal_that_was_cut_in_its_first_line_is_new(copied, begun):
    study = copied("j")
    file = study.folder / "new.journal"
    file.write_bytes(begun)
    code, said = study.search("--storage", file)
    assert code == 0, said
    assert file.read_bytes().count(b'{"op_code":0,') == 1


@pytest.mark.parametrize("kind", ["a folder", "a pipe"])
def test_what_is_not_a_file_is_refused_as_a_journal(copied, kind):
    study = copied("j")
    path = study.folder / "odd"
    os.mkdir(path) if kind == "a folder" else os.mkfifo(path)
    code, said = study.search("--storage", path)
    assert code == 2, said
    assert "name a file" in one_sentence(said)


# --- what is not there


def beheaded(study):
    lines = study.journal.read_bytes().splitlines(keepends=True)
    study.journal.write_bytes(b"".join(lines[1:]))


MISSING = {
    "a typo in the storage": (None, ("--storage", "typo.journal")),
    "a typo in the URL": (None, ("--storage", "sqlite:///typo.db")),
    "a typo in the study": (None, ("--study", "saerch")),
    "an empty journal": (lambda study: study.journal.write_bytes(b""), ()),
    "a journal without its first line": (beheaded, ()),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_study_that_is_not_there_is_not_resumed(copied, case):
    study = copied("j")
    damage, flags = MISSING[case]
    if damage is not None:
        damage(study)
    before = content(study.results)
    code, said = study.search("--resume", *flags)
    assert code == 2, said
    last = one_sentence(said)
    assert "there is no study" in last or "is not the journal of a search" in last
    assert content(study.results) == before
    assert not (study.folder.parent / "typo.journal").exists()
    assert not (study.folder.parent / "typo.db").exists()


def test_after_an_empty_journal_a_new_search_begins(copied):
    study = copied("j")
    study.journal.write_bytes(b"")
    code, said = study.search()
    assert code == 0, said
    assert (study.results / "search-1.journal").exists()
    assert (study.results / "search" / "log.json").exists()


# --- SQLite


ATTRIBUTE = "UPDATE trial_user_attributes SET value_json = '{}' WHERE key = '{}'"
ABOUT = "UPDATE study_user_attributes SET value_json = '{}' WHERE key = 'about'"
ROWS = {
    "a newer schema": "UPDATE alembic_version SET version_num = 'v99.0.0.a'",
    "trials without designs": "DELETE FROM trial_params",
    "trials without values": "DELETE FROM trial_values",
    "trials with values that are text": "UPDATE trial_values SET value = 'x'",
    "trials that are numbered by text": "UPDATE trials SET number = 'x' || number",
    "trials with one value of two": "DELETE FROM trial_values WHERE objective = 1",
    "a distribution of another version": (
        'UPDATE trial_params SET distribution_json = \'{"name": "Odd", "attributes": {}}\''
    ),
    "a distribution that is no JSON": "UPDATE trial_params SET distribution_json = '{odd'",
    "a state of another version": "UPDATE trials SET state = 'ODD'",
    "a subject that is no table": ABOUT.format("3"),
    "a subject that is no JSON": ABOUT.format("{odd"),
    "a subject that is nested deeply": ABOUT.format("[" * 5_000 + "]" * 5_000),
    "metrics that are no JSON": ATTRIBUTE.format("{odd", "software_metrics"),
    "metrics that are a list": ATTRIBUTE.format("[1]", "software_metrics"),
    "attributes that are text": ATTRIBUTE.format('"x"', "mase"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ROWS)
@BOTH
def test_a_damaged_database_is_named_in_a_sentence(copied, case, flags):
    study = copied("s")
    study.run(ROWS[case])
    before = content(study.results)
    code, said = study.search(*flags)
    last = one_sentence(said)
    assert code == 1, said
    assert str(study.database) in last
    assert "--storage" in last
    assert content(study.results) == before


def test_a_database_of_another_program_is_left_as_it_is(copied):
    study = copied("s")
    study.database.unlink()
    study.run("CREATE TABLE places (name TEXT)", "INSERT INTO places VALUES ('here')")
    before = study.database.read_bytes()
    code, said = study.search()
    assert code == 2, said
    assert "is the database of another program" in one_sentence(said)
    assert study.database.read_bytes() == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("notes", [b"my precious notes\n" * 100, b"my notes", b">"])
@pytest.mark.parametrize("flags", [(), RESUME])
def test_a_file_that_is_no_database_is_left_as_it_is(copied, notes, flags):
    study = copied("s")
    study.database.write_bytes(notes)
    code, said = study.search(*flags)
    assert code == 2, said
    assert f"{study.database} is not an SQLite database" in one_sentence(said)
    assert study.database.read_bytes() == notes


IN_MEMORY = ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite+pysqlite:///:memory:"]
IN_MEMORY += ["sqlite:///file::memory:?uri=true", "sqlite:///file:x?mode=memory&uri=true"]


@pytest.mark.parametrize("url", IN_MEMORY)
def test_a_database_in_memory_is_refused(copied, url):
    study = copied("j")
    before = content(study.results)
    code, said = study.search("--storage", url)
    assert code == 2, said
    assert f"ch: --storage {url} is a database in memory" in one_sentence(said)
    assert content(study.results) == before
