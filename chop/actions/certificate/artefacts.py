"""The files that a certificate is about, by their checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chop.actions.certificate.onnx_way import OnnxFile, onnx_files
from chop.actions.certificate.ways import Way, inside
from chop.hardware.circuit import MANIFEST, Circuit

__all__ = ["Artefact", "artefacts", "changes"]

Kind = Literal["network", "onnx", "verilog"]
CHUNK = 2**20


@dataclass(frozen=True)
class Artefact:
    """A file, relative to the project if it is in it."""

    file: str
    kind: Kind
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path, kind: Kind, name: str) -> Artefact:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(CHUNK):
                digest.update(part)
        return cls(name, kind, path.stat().st_size, digest.hexdigest())


def artefacts(folder: Path, network: Path | None, ways: Iterable[Way]) -> list[Artefact]:
    """Return the files of the network and of the ways that are compared."""
    return [Artefact.of(path, kind, name) for path, kind, name in _files(folder, network, ways)]


def _files(
    folder: Path, network: Path | None, ways: Iterable[Way]
) -> Iterator[tuple[Path, Kind, str]]:
    chosen = set(ways)
    if network is not None:
        parts = sorted(network.iterdir()) if network.is_dir() else [network]
        for path in (part for part in parts if part.is_file()):
            outside = path.relative_to(network.parent).as_posix()
            yield path, "network", inside(path, folder) or outside
    if "onnx" in chosen:
        for path in onnx_files(folder, network):
            for part in (path, *OnnxFile.read(path).data_files):
                yield part, "onnx", inside(part, folder) or part.name
    if "verilog" in chosen:
        rtl = folder / "hardware" / "rtl"
        for name in (MANIFEST, *Circuit.read(folder / "hardware").files):
            yield rtl / name, "verilog", f"hardware/rtl/{name}"


def changes(before: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return what happened to the files of an earlier certificate, a clause for each file."""
    old = {row["file"]: row["sha256"] for row in before}
    new = {row["file"]: row["sha256"] for row in now}
    changed = [f"{name} has changed" for name in old if name in new and old[name] != new[name]]
    gone = [f"{name} is gone" for name in old if name not in new]
    return [*changed, *gone, *(f"{name} is new" for name in new if name not in old)]
