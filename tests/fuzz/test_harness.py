"""The harness notices what it is there to notice."""

from __future__ import annotations

import pytest

from .corpus import TRAIN
from .harness import Sandbox, says_why

# by what the harness says of it
MISDEEDS = {
    "printed a traceback": "print('Traceback (most recent call last)')",
    "touched home/notes.txt": "Path.home().joinpath('notes.txt').write_text('')",
    "touched home/executed": "Path.home().joinpath('executed').touch()",
    "touched work/data.npz": "Path('data.npz').unlink()",
    "tried open '/elsewhere.txt'": "Path('/elsewhere.txt').write_text('')",
    "tried os.system": "os.system('true')",
    "tried socket.connect": "socket.create_connection(('127.0.0.1', 1))",
    "ended with 3": "os._exit(3)",
    "ended with -24": "while True: pass",
}


@pytest.mark.parametrize("noticed", MISDEEDS)
def test_a_broken_promise_is_noticed(sandbox: Sandbox, noticed: str) -> None:
    imports = "import os, socket\nfrom pathlib import Path\n"
    (sandbox.work / "own.py").write_text(imports + MISDEEDS[noticed])
    sandbox.take("data.npz")
    sandbox.seconds = 1
    ending = sandbox.run(*TRAIN, "--import=own.py")
    assert f"it {noticed}" in str(ending.problems), ending


def test_a_good_command_keeps_its_promises(sandbox: Sandbox) -> None:
    sandbox.take("data.npz")
    sandbox.check(*TRAIN)


@pytest.mark.parametrize(
    ("stderr", "enough"),
    [
        ("INFO     Training\nch: data.npz is damaged; write it again\n", True),
        ("ch: 2 problems:\n  a.toml: model: give a name\n  a.toml: seed: give a number\n", True),
        ("Usage: ch\n╭─ Error ───╮\n│ No such command 'x'. │\n╰───╯\n", True),
        ("", False),
        ("ch: 'step'\n", False),
        ("ch: data.npz is damaged\nin line 3\n", False),
    ],
)
def test_one_sentence_says_why(stderr: str, enough: bool) -> None:
    assert says_why(stderr) == enough
