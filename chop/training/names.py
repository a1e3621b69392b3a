"""File names of a run; further runs in the same directory get numbered names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CHECKPOINT = re.compile(r"(?:last|best)(?:-v(\d+))?\.ckpt")
CLAIM = re.compile(r"\.run(?:-v(\d+))?")  # created by every run when it starts


@dataclass(frozen=True)
class Names:
    """File names of one run: `best.ckpt` for the first in a directory, then `best-v1.ckpt`."""

    folder: Path
    version: int = 0

    @classmethod
    def claim(cls, folder: Path) -> Names:
        """Return names that no other run uses, not even one that starts at the same time."""
        folder.mkdir(parents=True, exist_ok=True)
        used = [*_versions(folder, CHECKPOINT), *_versions(folder, CLAIM)]
        names = cls(folder, max(used, default=-1) + 1)
        while True:
            try:
                names._claimed.touch(exist_ok=False)
            except FileExistsError:
                names = cls(folder, names.version + 1)
            else:
                return names

    @classmethod
    def latest(cls, folder: Path) -> Names | None:
        """Return the names of the latest run that has a checkpoint."""
        version = max(_versions(folder, CHECKPOINT), default=None)
        return None if version is None else cls(folder, version)

    def __call__(self, stem: str, ending: str) -> Path:
        return self.folder / f"{stem}{self._mark}.{ending}"

    @property
    def _mark(self) -> str:
        return f"-v{self.version}" if self.version else ""

    @property
    def _claimed(self) -> Path:
        return self.folder / f".run{self._mark}"

    @property
    def best(self) -> Path:
        return self("best", "ckpt")

    @property
    def last(self) -> Path:
        return self("last", "ckpt")

    @property
    def latest_state(self) -> Path:
        """The checkpoint to resume from."""
        return self.last if self.last.exists() else self.best


def _versions(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    matches = [pattern.fullmatch(path.name) for path in folder.glob("*")]
    return [int(match[1] or 0) for match in matches if match]
