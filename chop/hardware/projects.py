"""The directories of a hardware project, and the project that was written last."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from chop.hardware.circuit import MANIFEST
from chop.system.files import default_project_dir

__all__ = ["HardwareProject", "last_project", "note_project"]

BENCH = "mase_top_tb"
_last: list[Path] = []  # the project that this process wrote last


@dataclass(frozen=True)
class HardwareProject:
    """A project directory: sources in `hardware/rtl`, the test bench in `hardware/test`."""

    folder: Path

    @classmethod
    def at(cls, folder: str | Path | None, top: str = "top") -> HardwareProject:
        """Return the project in a directory, by default `mase_output/<top>`."""
        given = default_project_dir() / top if folder is None else Path(folder).expanduser()
        project = cls(Path(os.path.normpath(given.absolute())))
        project.check()
        return project

    @property
    def hardware(self) -> Path:
        return self.folder / "hardware"

    @property
    def rtl(self) -> Path:
        return self.hardware / "rtl"

    @property
    def sim(self) -> Path:
        return self.hardware / "sim"

    @property
    def bench(self) -> Path:
        """The directory of the test bench."""
        return self.hardware / "test" / BENCH

    @property
    def vivado(self) -> Path:
        return self.hardware / "vivado"

    @property
    def has_circuit(self) -> bool:
        return (self.rtl / MANIFEST).is_file()

    def check(self) -> None:
        """Refuse a directory that cannot be written to."""
        place = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        if not place.is_dir():
            raise NotADirectoryError(f"project_dir: {place} is a file; give a directory")
        if not os.access(place, os.W_OK):
            raise PermissionError(
                f"project_dir: {place} cannot be written to; give a directory that can"
            )


def note_project(project: HardwareProject) -> None:
    """Record that a circuit was written to a project."""
    _last[:] = [project.folder]


def last_project() -> HardwareProject:
    """Return the project that this process wrote last, or the newest one in `mase_output`."""
    places = [place for place in _last if HardwareProject(place).has_circuit]
    if not places:
        manifests = default_project_dir().glob(f"*/hardware/rtl/{MANIFEST}")
        newest = sorted(manifests, key=lambda file: file.stat().st_mtime)[-1:]
        places = [file.parents[2] for file in newest]
    if not places:
        raise FileNotFoundError(
            f"no circuit was emitted yet, and there is none in {default_project_dir()}; run "
            f"emit_verilog_top_transform_pass and its siblings, or ch emit"
        )
    return HardwareProject(places[0])
