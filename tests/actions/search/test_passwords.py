"""The password of a database is in no file that a run leaves, and in nothing that it says."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .conftest import GUARDED, HEAD, METRICS, PATIENCE, SPACE, STRATEGY

PASSWORD = "Tr0ub4dor&3"
ENCODED = "Tr0ub4dor%263"
TRAINING = """
max_epochs = 1
max_steps = 2
trainer_precision = "32"
accelerator = "cpu"
num_workers = 0
"""


def leaks(folder):
    """The files, and members of archives, that hold the password as text."""
    for file in (path for path in folder.rglob("*") if path.is_file()):
        contents = {file.name: file.read_bytes()}
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                contents |= {name: archive.read(name) for name in archive.namelist()}
        for name, content in contents.items():
            if any(form.encode() in content for form in (PASSWORD, ENCODED)):
                yield f"{file.relative_to(folder)}: {name}"


def assert_kept_secret(folder, said):
    assert PASSWORD not in said
    assert ENCODED not in said
    assert not list(leaks(folder))


def ch(folder, *words, check=0, **environment):
    """What a command says, on both streams, when it is over."""
    command = [sys.executable, "-m", "chop", *map(str, words), "--no-progress"]
    done = subprocess.run(
        [*command, "--project-dir", str(folder / "out"), "--log-level", "debug"],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        timeout=PATIENCE,
    )
    said = done.stdout + done.stderr
    assert done.returncode == check, said
    return said


def config_file(folder, storage=None):
    text = HEAD + TRAINING + (f"storage = '{storage}'\n" if storage else "")
    text += "[search]\ntrain_parent = true\n" + SPACE + STRATEGY
    path = folder / "config" / "a.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{text}[search.strategy.setup]\nn_trials = 2\n{METRICS}")
    return path


@pytest.fixture
def role(postgres, package):
    """A role whose password the server asks for: its name, and the host with the database."""
    psycopg = package("psycopg")
    place = postgres.partition("@")[2]
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"drop role if exists {GUARDED}")
        connection.execute(f"create role {GUARDED} superuser login password '{PASSWORD}'")
    yield GUARDED, place
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"drop owned by {GUARDED} cascade; drop role {GUARDED}")


def test_training_keeps_a_password_of_the_file_to_itself(here, tmp_path):
    urls = [f"postgresql://me:{ENCODED}@host/db", f"postgresql://user@corp:{PASSWORD}@host/db"]
    urls += [f"postgresql+psycopg://host/db?password={ENCODED}&sslpassword={ENCODED}"]
    urls += [f"postgresql:/me:{PASSWORD}@host"]
    for i, url in enumerate(urls):
        words = ("--config", config_file(tmp_path, url), "--project-dir", tmp_path / "out")
        code, out, err = here("train", *words, "--project", f"p{i}")
        assert code == 0, err
        assert_kept_secret(tmp_path / "out", out + err)
    assert "***" in (tmp_path / "out" / "p0" / "software" / "summary.json").read_text()


@pytest.mark.slow
def test_a_search_keeps_the_password_of_its_database_to_itself(tmp_path, role):
    user, place = role
    among_parameters = f"postgresql://{user}@{place}?password={ENCODED}"
    before_host = f"postgresql+psycopg://{user}:{ENCODED}@{place}"
    command = ("search", "--config", config_file(tmp_path), "--study", "secret")
    said = ch(tmp_path, *command, "--storage", among_parameters)
    said += ch(tmp_path, *command, f"--storage={before_host}", "--resume")
    assert "Build the best with" in said
    assert (tmp_path / "out" / "p" / "software" / "search_ckpts" / "report.html").exists()
    assert_kept_secret(tmp_path / "out", said)


@pytest.mark.slow
def test_a_url_without_its_password_is_used_with_the_one_of_the_environment(tmp_path, role):
    user, place = role
    file, shown = config_file(tmp_path), f"postgresql://{user}:***@{place}"
    study = ("--config", file, "--study", "shown", "--storage")
    said = ch(tmp_path, "search", *study, shown, check=1, PGPASSFILE=os.devnull)
    assert "no password supplied; give the password in --storage, in PGPASSWORD or" in said
    ch(tmp_path, "search", *study, shown, PGPASSWORD=PASSWORD)
    (pgpass := tmp_path / "pgpass").write_text(f"*:*:*:{user}:{PASSWORD}\n")
    pgpass.chmod(0o600)
    ch(tmp_path, "search", *study, shown, "--apply=best", PGPASSFILE=str(pgpass))
    assert_kept_secret(tmp_path / "out", said)
    said = ch(tmp_path, "search", "--config", file, "--resume", check=2)
    assert f"the study 'shown' of this search is stored in {shown}; give it with --storage" in said


@pytest.mark.slow
def test_a_failed_trial_and_a_refusal_say_nothing_of_the_password(tmp_path, role):
    user, place = role
    (tmp_path / "leaky.py").write_text(
        "from chop.actions.search.metrics.base import metric\n"
        "@metric('leaky', side='software', better='minimize')\n"
        "def leaky(trial) -> float:\n"
        "    '''Fail with a URL.'''\n"
        f"    raise ValueError('cannot reach postgresql://me:{PASSWORD}@host/db')\n"
    )
    file = config_file(tmp_path)
    file.write_text(file.read_text() + "[search.strategy.sw_runner.leaky]\n")
    command = ("search", "--config", file, "--import", tmp_path / "leaky.py")
    said = ch(tmp_path, *command, check=1)
    url = f"postgresql://{user}:{ENCODED}@{place.replace('/postgres', '/missing')}"
    said += ch(tmp_path, *command, "--storage", url, "--project", "q", check=1)
    assert 'database "missing" does not exist' in said
    assert_kept_secret(tmp_path / "out", said)


def test_pages_of_older_searches_are_made_without_the_password(tmp_path):
    from chop.actions.search.results.page import read_record

    url = f"postgresql://host/db?password={ENCODED}"
    content = '{"version": 1, "objectives": [{"name": "a", "direction": "maximize"}], "trials": [],'
    file: Path = tmp_path / "search.json"
    file.write_text(f'{content} "storage": "{url}", "command": "ch search --storage {url}"}}')
    record = read_record(file)
    assert record.storage == "postgresql://host/db?password=***"
    assert record.command == "ch search --storage postgresql://host/db?password=***"
