"""The harness notices what it is there to notice."""

from __future__ import annotations

import signal

import pytest

from .commands import SEARCH, TEST, TRAIN
from .data_files import FILES, that_reads
from .harness import Ending, Sandbox, says_why

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
}
HANG = f"ended with -{signal.SIGXCPU.value}"


@pytest.mark.parametrize("noticed", [*MISDEEDS, pytest.param(HANG, marks=pytest.mark.slow)])
def test_a_broken_promise_is_noticed(sandbox: Sandbox, noticed: str) -> None:
    imports = "import os, socket\nfrom pathlib import Path\n"
    misdeed = MISDEEDS.get(noticed, "while True: pass")
    (sandbox.work / "own.py").write_text(imports + misdeed)
    sandbox.take("data.npz")
    sandbox.seconds = 1
    ending = sandbox.run(*TRAIN, "--import=own.py")
    assert f"it {noticed}" in str(ending.problems), ending


def test_the_words_of_an_exception_are_no_sentence() -> None:
    said = Ending(1, "", "ch: 'int' object has no attribute 'items'", "", ())
    assert said.problems == ["it said why in the words of Python or torch"]


GOOD = {
    "data.npz": TRAIN,
    "state.pt": (*TEST, "--load=state.pt", "--load-type=pt"),
    "state.safetensors": (*TEST, "--load=state.safetensors", "--load-type=pt"),
    "best.ckpt": (*TEST, "--load=best.ckpt", "--load-type=pl"),
    "hf": (*TEST, "--load=hf", "--load-type=hf"),
    "graph": (*TEST, "--load=graph", "--load-type=mz"),
    "trained": (*TRAIN, "--resume", "--max-epochs=2"),
    "searched": (*SEARCH, "--resume"),
    "in_database": (*SEARCH, "--apply=best", "--storage=sqlite:///study.db"),
}


@pytest.mark.slow
@pytest.mark.parametrize("sample", GOOD)
def test_what_is_not_damaged_is_accepted(sandbox: Sandbox, sample: str) -> None:
    sandbox.take("data.npz", "best.ckpt", "search.toml", "study.db", sample)
    if (sandbox.corpus / sample / "software").exists():
        sandbox.take_project(sample)
    ending = sandbox.run(*GOOD[sample], may_change=[sandbox.work / "study.db"])
    assert (ending.status, ending.problems) == (0, []), sandbox.report()


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_data_that_is_not_damaged_is_accepted(sandbox: Sandbox, file: str) -> None:
    if file == "table.parquet":
        pytest.importorskip("pyarrow")
    sandbox.take(file)
    sandbox.check(*that_reads(file))
    assert sandbox.ending is not None
    assert sandbox.ending.status == 0, sandbox.report()


@pytest.mark.parametrize(
    ("stderr", "enough"),
    [
        ("INFO     Training\nch: data.npz is damaged; write it again\n", True),
        ("ch: 2 problems:\n  a.toml: model: give a name\n  a.toml: seed: give a number\n", True),
        ("Usage: ch\n╭─ Error ───╮\n│ No such command 'x'. │\n╰───╯\n", False),
        ("", False),
        ("ch: 'step'\n", False),
        ("ch: data.npz is damaged\nin line 3\n", False),
    ],
)
def test_one_sentence_says_why(stderr: str, enough: bool) -> None:
    assert says_why(stderr) == enough
