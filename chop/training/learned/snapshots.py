"""Snapshots of a run on disk, from which it continues with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.checkpoints import read_torch_file
from chop.training.learned.archive import LearnedDesign
from chop.training.saving import write_atomically
from chop.version import __version__

KEY = "mase_front"


class Snapshots:
    """A folder with the state of a run, and a file for each design that it keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "state.pt"

    def write(self, identity: str, state: dict[str, Any], designs: list[LearnedDesign]) -> None:
        """Write the state after the designs that it names, then remove designs of earlier ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files = {self._file(design) for design in designs}
        for design in designs:
            if not self._file(design).exists():
                write_atomically(design.state, self._file(design))
        facts = [design.facts for design in designs]
        write_atomically({KEY: __version__, "who": identity, "designs": facts, **state}, self.file)
        self._remove_all_but(files)

    def read(self, identity: str) -> tuple[dict[str, Any], list[LearnedDesign]] | None:
        """Return the state and designs of an earlier process, None if there are none.

        Designs that no state names are removed, as `write` keeps the files that it finds.
        """
        if not self.file.exists():
            self._remove_all_but(set())
            return None
        saved = read_torch_file(self.file)
        if not isinstance(saved, dict) or KEY not in saved:
            raise ValueError(f"{self.file} is not a snapshot of a front; delete it to start again")
        if saved["who"] != identity:
            raise ValueError(
                f"{self.file} belongs to a run with another network, data set or other options; "
                f"use the same ones, or delete its folder to start again"
            )
        designs = [LearnedDesign(**facts, state={}) for facts in saved["designs"]]
        self._remove_all_but({self._file(design) for design in designs})
        states = [read_torch_file(self._file(design)) for design in designs]
        pairs = zip(saved["designs"], states, strict=True)
        return saved, [LearnedDesign(**facts, state=state) for facts, state in pairs]

    def _remove_all_but(self, files: set[Path]) -> None:
        for file in self.folder.glob("design-*.pt"):
            if file not in files:
                file.unlink(missing_ok=True)

    def _file(self, design: LearnedDesign) -> Path:
        return self.folder / f"design-{design.name}.pt"
