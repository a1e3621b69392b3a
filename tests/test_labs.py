"""The tutorials of the labs: their commands run in order, and say what the pages show."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "labs").glob("lab*.md"))
BLOCK = re.compile(r"^```(bash|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks():
    """(page, kind, text) of every command and of what it says, over all pages."""
    for page in PAGES:
        for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            yield page.name, kind, text


def numbers_aside(line):
    """A line in which numbers, and the spaces and rules that depend on them, are alike."""
    return re.sub(r"[\s-]+", " ", re.sub(r"\d[\d.,e+-]*", "#", line)).strip()


def test_there_is_a_page_for_each_lab_and_it_shows_commands():
    names = ["lab1.md", "lab2.md", "lab3.md", "lab4.md", "lab4_hardware.md"]
    assert [page.name for page in PAGES] == names
    assert {name for name, kind, _ in blocks() if kind == "bash"} == {p.name for p in PAGES}


def test_every_example_that_a_page_runs_is_there():
    for name, kind, text in blocks():
        for example in re.findall(r"python (\S+)", text if kind == "bash" else ""):
            assert (ROOT / example).is_file(), f"{name}: {example}"


@pytest.mark.slow
def test_the_commands_of_the_pages_say_what_the_pages_show(tmp_path):
    """Examples have a test of their own; networks are trained for an epoch."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    said = set()
    for page, kind, text in blocks():
        if kind == "text":
            shown = [numbers_aside(line) for line in text.splitlines()]
            assert not [line for line in shown if line not in said], page
            continue
        for line in text.splitlines():
            if not line.startswith("./ch "):
                continue
            words = shlex.split(line)[1:]
            words += ["--project-dir", "mase_output", "--accelerator", "cpu"]
            words += ["--max-epochs", "1"] if words[0] == "train" else []
            command = [sys.executable, "-m", "chop", *words]
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{page}: {line}\n{done.stderr}"
            said = {numbers_aside(out) for out in (done.stdout + done.stderr).splitlines()}
