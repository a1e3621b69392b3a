"""Projects in which a file is missing, damaged, of another kind, or a directory."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from .commands import SEARCH, TEST, TRAIN, TRANSFORM
from .harness import Sandbox, inputs
from .mutations import changed_json, damaged, foreign

PROJECT = "out/fuzz"
BEST = f"{PROJECT}/software/training_ckpts/best.ckpt"
APPLY = (*SEARCH, "--apply=best")
COMMANDS: dict[str, Sequence[Sequence[str]]] = {
    "trained": (
        (*TRAIN, "--resume", "--max-epochs=2"),
        (*TEST, f"--load={BEST}", "--load-type=pl"),
        (*TEST, f"--load={PROJECT}"),
        (*TRANSFORM, f"--load={PROJECT}"),
    ),
    "searched": (
        (*SEARCH, "--resume"),
        APPLY,
        ("report", "fuzz", "--project-dir=out"),
    ),
    "transformed": (
        (*TRAIN, f"--load={PROJECT}", "--load-type=mz"),
        (*TRANSFORM, f"--load={PROJECT}", "--load-type=mz"),
        (*TEST, f"--load={PROJECT}"),
    ),
}


PLACES = [(name, place) for name, all in COMMANDS.items() for place in range(len(all))]


def take(sandbox: Sandbox, name: str) -> None:
    """Copy a project of the corpus, and what its commands read beside it."""
    sandbox.take("data.npz", "search.toml", "transform.toml", "best.ckpt")
    sandbox.take_project(name)
    if name == "transformed":
        graph = sandbox.project / "software" / "transform" / "transformed_ckpt"
        shutil.copytree(sandbox.corpus / "graph", graph)


def spoil(random: Random, file: Path) -> None:
    """Damage a file, or put something else in its place."""
    content = file.read_bytes()
    way = random.randrange(5)
    if way == 0:
        file.unlink()
    elif way == 1:
        file.unlink()
        file.mkdir()
    elif way == 2:
        file.write_bytes(foreign(random))
    elif way == 3 and file.suffix == ".json":
        file.write_bytes(changed_json(random, content.decode()))
    else:
        file.write_bytes(damaged(random, content))


@inputs("project")
def test_a_damaged_project_is_read_or_refused(sandbox: Sandbox, random: Random, index: int) -> None:
    name = random.choice(sorted(COMMANDS))
    take(sandbox, name)
    files = sorted(path for path in sandbox.project.rglob("*") if path.is_file())
    for _ in range(random.choice((1, 1, 2))):
        spoil(random, random.choice([file for file in files if file.is_file()]))
    sandbox.check(*random.choice(COMMANDS[name]))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_project_that_is_not_damaged_is_accepted(sandbox: Sandbox, name: str, place: int) -> None:
    take(sandbox, name)
    ending = sandbox.run(*COMMANDS[name][place])
    assert (ending.status, ending.problems) == (0, []), sandbox.report()
