"""The example configurations: `ch search --config example:quickstart`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import chop
from chop.registry import unknown

PREFIX = "example:"
PACKAGE = Path(chop.__file__).parent
# where a wheel has them, and where a clone has them
FOLDERS = (PACKAGE / "example_configs", PACKAGE.parent / "configs" / "examples")
FILE = re.compile(r"[\w/]+\.toml")
COMMAND = re.compile(r"\./ch (\w+ .*)")


@dataclass(frozen=True)
class Example:
    """An example configuration file."""

    path: Path

    @property
    def _comment(self) -> str:
        """The text at the top of the file."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        first = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
        return "\n".join(line.lstrip("# ") for line in lines[:first])

    @property
    def about(self) -> str:
        """The first sentence of the comment at the top of the file."""
        text = " ".join(COMMAND.split(self._comment)[0].split())
        return re.split(r"(?<=[.?])\s", text)[0].rstrip(": ")

    @property
    def command(self) -> str:
        """The command that the file is for."""
        found = COMMAND.search(self._comment)
        words = found[1] if found else f"search --config {self.path.name}"
        return "ch " + FILE.sub(PREFIX + self.path.stem, words)


def _found() -> dict[str, Example]:
    files = [file for folder in FOLDERS for file in sorted(folder.glob("*.toml"))]
    return {file.stem: Example(file) for file in reversed(files)}


EXAMPLES: Mapping[str, Example] = _found()


def config_path(written: Path) -> Path:
    """Return the file of `example:NAME`; any other path is returned as it is."""
    text = str(written)
    if not text.startswith(PREFIX):
        return written
    name = text.removeprefix(PREFIX).removesuffix(".toml")
    if name not in EXAMPLES:
        raise ValueError(unknown("example", name, sorted(EXAMPLES)))
    return EXAMPLES[name].path
