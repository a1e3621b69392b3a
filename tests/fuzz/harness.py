"""Run a command on a hostile input in a folder of its own, and check what every input is promised.

A command ends with 0, 1 or 2; if it fails, one sentence on stderr says why, without a traceback. It
does not hang, runs no code that an input brings, and changes no file but those of its project.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

# inputs in the default tier; the slow tier adds nine times as many
INPUTS = {
    "toml": 45,
    "checkpoint": 45,
    "data": 30,
    "graph": 45,
    "journal": 16,
    "sqlite": 6,
    "record": 20,
    "resume": 18,
    "command line": 25,
    "onnx": 20,
    "circuit": 20,
    "project": 10,
}
assert sum(INPUTS.values()) == 300
SLOW = 9
CPU_SECONDS = 20  # a command takes about 0.1 s, one that trains 0.3 s
ENVIRONMENT = {
    "COLUMNS": "100",
    "CUDA_VISIBLE_DEVICES": "",
    "MASE_FUSED": "off",  # no compiler is started
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
OWN = ("cache", "tmp", "work/out")  # folders in which a command may make files
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # which a terminal obeys
# what Python says to programmers, and advice of torch by which code would be run
RAW = re.compile(
    r"(?m)^ch: ('\w+' object|unhashable type|\w+ indices must be|invalid literal for|Expecting|"
    r"'[\w-]+' codec)|weights_only"
)


def inputs(kind: str) -> pytest.MarkDecorator:
    """Return the numbers of the inputs of a kind, as parameters of a test."""
    count = INPUTS[kind]
    more = [pytest.param(n, marks=pytest.mark.slow) for n in range(count, count * (SLOW + 1))]
    return pytest.mark.parametrize("index", [*range(count), *more])


class Server:
    """The process that runs commands: see server.py."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("server.py")
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
            text=True,
        )

    def run(self, folder: Path, argv: Sequence[str], seconds: int) -> int:
        """Return the exit code of a command, or minus the signal that ended it."""
        places = {"HOME": "home", "MASE_CACHE": "cache", "TMPDIR": "tmp"}
        request = {
            "folder": str(folder),
            "argv": list(argv),
            "seconds": seconds,
            "environment": {name: str(folder / place) for name, place in places.items()},
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def close(self) -> None:
        """Let the process end."""
        self.process.communicate()


@dataclass(frozen=True)
class Ending:
    """How a command has ended."""

    status: int
    stdout: str
    stderr: str
    violations: str
    changed: tuple[str, ...]

    @property
    def problems(self) -> list[str]:
        """Return the promises that were broken."""
        problems = [f"it touched {name}" for name in self.changed]
        problems += [f"it tried {line}" for line in self.violations.splitlines()]
        if self.status not in (0, 1, 2):
            problems.append(f"it ended with {self.status}")
        if CONTROL.search(self.stdout + self.stderr):
            problems.append("it printed control characters")
        if "Traceback (most recent call last)" in self.stdout + self.stderr:
            problems.append("it printed a traceback")
        elif self.status in (1, 2) and not says_why(self.stderr):
            problems.append("it did not say why in a sentence")
        elif self.status in (1, 2) and RAW.search(self.stderr):
            problems.append("it said why in the words of Python or torch")
        return problems

    @property
    def cause(self) -> str:
        """Return the last line of stderr, and where in MASE the error came from."""
        frames = re.findall(r'File ".*?(chop/.*?)", line (\d+), in (\w+)', self.stderr)
        where = [":".join(frames[-1]) + ": "] if frames else []
        return "".join([*where, *self.stderr.rstrip().splitlines()[-1:]])[:500]


def says_why(stderr: str) -> bool:
    """Whether stderr ends with a sentence, or with a list of problems."""
    lines = stderr.rstrip().splitlines()
    told = [n for n, line in enumerate(lines) if line.startswith("ch: ")]
    if not told:
        return False
    sentence, *rest = lines[told[-1] :]
    is_list = sentence.endswith(" problems:") and bool(rest)
    return is_list or (not rest and len(sentence.split()) > 3)


@dataclass
class Sandbox:
    """A folder in which one command is run: `work` is where it stands, `home` is not its own."""

    server: Server
    folder: Path
    corpus: Path
    seed: int = 0
    seconds: int = CPU_SECONDS
    argv: Sequence[str] = ()
    ending: Ending | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("work/out", "home", "cache", "tmp"):
            (self.folder / name).mkdir(parents=True)
        (self.home / "notes.txt").write_text("my notes\n")

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def marker(self) -> Path:
        """The file that planted code would make."""
        return self.home / "executed"

    @property
    def project(self) -> Path:
        return self.work / "out" / "fuzz"

    def take(self, *names: str) -> None:
        """Copy samples of the corpus into the working folder."""
        for name in names:
            source, target = self.corpus / name, self.work / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copy(source, target)

    def take_project(self, name: str) -> None:
        """Copy a project of the corpus to where this command has its own."""
        shutil.copytree(self.corpus / name, self.project)

    def run(self, *argv: str, may_change: Iterable[Path] = ()) -> Ending:
        """Run `ch` on what is in the working folder; it may change its project and these files."""
        before, own = self._hashes(), [self.project, *may_change]
        status = self.server.run(self.folder, argv, self.seconds)
        after = self._hashes()
        names = sorted(before.keys() | after.keys())
        changed = [
            str(name.relative_to(self.folder))
            for name in names
            if before.get(name) != after.get(name) and not self._may_change(name, before, own)
        ]
        texts = [(self.folder / name).read_text(errors="replace") for name in OUTPUTS]
        self.argv, self.ending = argv, Ending(status, *texts, changed=tuple(changed))
        return self.ending

    def check(self, *argv: str, may_change: Iterable[Path] = ()) -> None:
        """Run `ch`, and fail if a promise is broken."""
        ending = self.run(*argv, may_change=may_change)
        if ending.problems:
            pytest.fail(self.report(), pytrace=False)

    def report(self) -> str:
        """Return what was run, what went wrong, and how to run it again."""
        assert self.ending is not None
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        command = " ".join(["ch", *self.argv])[:1000]
        return (
            f"{'; '.join(self.ending.problems)}\ncommand: {command}\n"
            f"files: {self.folder}\n"
            f"again: python -m pytest -m '' --fuzz-seed {self.seed} '{test}'\n"
            f"cause: {self.ending.cause}"
        )

    def _may_change(self, file: Path, before: dict[Path, str], own: Sequence[Path]) -> bool:
        """Whether a file belongs to the project, or is a new one where new ones may be."""
        is_new = file not in before
        places = [*own, *(self.folder / name for name in OWN if is_new)]
        return any(file.is_relative_to(place) for place in places)

    def _hashes(self) -> dict[Path, str]:
        files = [path for path in self.folder.rglob("*") if path.parent != self.folder]
        plain = [path for path in files if path.is_file() and not path.is_symlink()]
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in plain}


OUTPUTS = ("stdout", "stderr", "violations")


def seeded(kind: str, index: int, seed: int) -> Random:
    """Return the random numbers of one input; they do not depend on other inputs."""
    return Random(f"{kind} {seed} {index}")
