"""A circuit: its source files, its ports, and when its results are there."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from chop.files import (
    check_replaceable,
    naming,
    one_at_a_time,
    read_json,
    replaced_folder,
    restore_folder,
)
from chop.hardware.emit import Backend, Language
from chop.hardware.source_check import check_sources

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["MANIFEST", "Backend", "Circuit", "Language", "Port", "check_place"]

MANIFEST = "circuit.json"
WORD_BITS = 32
MOST = 2**31  # of any number that describes a circuit
# names become parts of paths, of scripts for tools and of C++, so that nothing else may be in them
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Port:
    """A port that carries one value of the integer graph, `lanes` codes per beat.

    The codes of a sample are sent in row-major order of the dimensions `order`, the first in the
    lowest bits of a beat, each in `width` bits; the last beat is filled up with zeros. A port
    `data_in_0` comes with `data_in_0_valid` and, in a streaming circuit, `data_in_0_ready`.
    """

    name: str
    value: str  # node of the integer graph
    shape: tuple[int, ...]  # without the batch
    width: int
    signed: bool
    lanes: int
    order: tuple[int, ...] = ()  # of the dimensions; empty: as they are

    def __post_init__(self) -> None:
        _check_identifier("port", self.name)
        _check_range(f"the width of {self.name}", self.width, 1, 64)
        _check_range(f"the number of lanes of {self.name}", self.lanes, 1, MOST)
        for size in (*self.shape, self.size):
            _check_range(f"a dimension of {self.name}", size, 1, MOST)
        if self.order and sorted(self.order) != [*range(len(self.shape))]:
            raise ValueError(
                f"the order of {self.name} lists each of its {len(self.shape)} dimensions once, "
                f"not {self.order}"
            )

    @property
    def size(self) -> int:
        """The number of codes of a sample."""
        return math.prod(self.shape)

    @property
    def beats(self) -> int:
        """The number of beats of a sample."""
        return -(-self.size // self.lanes)

    @property
    def bits(self) -> int:
        """The bits of the port."""
        return self.lanes * self.width

    @property
    def words(self) -> int:
        """The 32-bit words of a beat."""
        return -(-self.bits // WORD_BITS)

    def to_beats(self, codes: Tensor) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """Return the beats of a batch of codes, as words of shape (batch, beats, words)."""
        if self.order:
            codes = codes.permute(0, *(d + 1 for d in self.order))
        flat = codes.reshape(len(codes), -1).cpu().numpy().astype(np.int64)
        padded = np.zeros((len(flat), self.beats * self.lanes), np.int64)
        padded[:, : self.size] = flat
        # least significant bit first
        places = np.arange(self.width, dtype=np.int64)
        bits = ((padded[..., None] >> places) & 1).astype(np.uint8)
        bits = bits.reshape(len(flat), self.beats, self.bits)
        packed = np.packbits(bits, axis=-1, bitorder="little")
        filled = np.zeros((len(flat), self.beats, self.words * 4), np.uint8)
        filled[..., : packed.shape[-1]] = packed
        return filled.view("<u4")

    def from_beats(self, words: np.ndarray[Any, np.dtype[np.uint32]]) -> Tensor:
        """Return the codes of beats; the inverse of `to_beats`."""
        raw = np.ascontiguousarray(words, "<u4").view(np.uint8)
        bits = np.unpackbits(raw, axis=-1, count=self.bits, bitorder="little")
        bits = bits.reshape(len(words), self.beats * self.lanes, self.width)[:, : self.size]
        places = np.left_shift(np.int64(1), np.arange(self.width, dtype=np.int64))
        if self.signed:
            places[-1] = -places[-1]
        codes = torch.from_numpy(bits.astype(np.int64) @ places)
        if not self.order:
            return codes.reshape(len(words), *self.shape)
        sent = codes.reshape(len(words), *(self.shape[d] for d in self.order))
        back = sorted(range(len(self.order)), key=lambda place: self.order[place])
        return sent.permute(0, *(place + 1 for place in back)).contiguous()


@dataclass(frozen=True)
class Circuit:
    """The source files of a circuit, and what a test bench has to know of it.

    `latency` counts the clock cycles from the first beat of a sample to the last beat of its
    result, `interval` those between samples. `layers` names the module of each layer, and `network`
    is the checksum of the integer graph, if it is known.
    """

    top: str
    backend: Backend
    language: Language
    files: Mapping[str, str]  # name in the directory of the sources -> text
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    clock_period: float  # ns
    latency: int
    interval: int = 1
    layers: Mapping[str, str] = field(default_factory=dict)  # node of the model -> module
    notes: tuple[str, ...] = ()
    network: str = ""

    def __post_init__(self) -> None:
        _check_identifier("top module", self.top)
        for module in self.layers.values():
            _check_identifier("module", module)
        for name in self.files:
            if not FILE_NAME.fullmatch(name) or name == MANIFEST:
                raise ValueError(
                    f"the name of a source file consists of letters, digits, '_' and '.', and "
                    f"starts with no '.', unlike {name!r}"
                )
        _check_range("the latency", self.latency, 0, MOST)
        _check_range("the interval", self.interval, 1, MOST)
        if not 0 < self.clock_period < MOST:
            raise ValueError(f"the clock period is a number of ns above 0, not {self.clock_period}")

    @property
    def handshakes(self) -> bool:
        """Whether the ports have `ready` signals."""
        return self.backend == "streaming"

    @property
    def digest(self) -> str:
        """A checksum of everything that a simulation or synthesis depends on."""
        told = json.dumps([self._described(), sorted(self.files.items())], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    def _described(self) -> dict[str, Any]:
        return {
            "top": self.top,
            "backend": self.backend,
            "language": self.language,
            "inputs": [asdict(port) for port in self.inputs],
            "outputs": [asdict(port) for port in self.outputs],
            "clock_period": self.clock_period,
            "latency": self.latency,
            "interval": self.interval,
            "layers": dict(self.layers),
            "notes": list(self.notes),
            "network": self.network,
        }

    def write(self, hardware: str | Path) -> Path:
        """Write the sources and the manifest to `rtl/` in the directory `hardware` of a project.

        The sources of an earlier circuit are replaced; files that nobody emitted are not.
        """
        hardware = Path(hardware)
        rtl = hardware / "rtl"
        sums = {n: hashlib.sha256(t.encode()).hexdigest() for n, t in self.files.items()}
        manifest = json.dumps({**self._described(), "files": sums}, indent=2) + "\n"
        with naming(hardware):
            hardware.mkdir(parents=True, exist_ok=True)
        with (
            one_at_a_time(hardware),
            replaced_folder(rtl, {MANIFEST, *self.files, *_emitted(rtl)}) as part,
        ):
            for name, text in {**self.files, MANIFEST: manifest}.items():
                (part / name).write_text(text, encoding="utf-8")
        return rtl

    @classmethod
    def read(cls, hardware: str | Path) -> Circuit:
        """Return the circuit of a project, with its source files as they are now."""
        hardware = Path(hardware)
        rtl = hardware / "rtl"
        if not hardware.is_dir():
            raise FileNotFoundError(f"there is no circuit in {hardware}; run ch emit first")
        with one_at_a_time(hardware):
            return cls._read(hardware, rtl)

    @classmethod
    def _read(cls, hardware: Path, rtl: Path) -> Circuit:
        restore_folder(rtl)
        if not (rtl / MANIFEST).is_file():
            raise FileNotFoundError(f"there is no circuit in {hardware}; run ch emit first")
        told = _manifest(rtl)
        try:
            files = {name: _source(rtl, name) for name in told["files"]}
            circuit = _adapter().validate_json(json.dumps({**told, "files": files}), strict=True)
            ports = [port.name for port in (*circuit.inputs, *circuit.outputs)]
            if not (circuit.inputs and circuit.outputs) or len({*ports}) < len(ports):
                raise ValueError(f"its inputs and outputs need names of their own, unlike {ports}")
            if not circuit.files:
                raise ValueError("it has no source files")
            check_sources(circuit.files)
        except ValueError as error:
            what = _first_fault(error)
            raise ValueError(
                f"{rtl / MANIFEST} does not describe a circuit: {what}; {_again(rtl)}"
            ) from error
        return circuit


def check_place(hardware: Path) -> None:
    """Refuse, before a circuit is built, files beside the sources of an earlier one."""
    rtl = hardware / "rtl"
    restore_folder(rtl)
    check_replaceable(rtl, {MANIFEST, *_emitted(rtl)})


def _emitted(rtl: Path) -> list[str]:
    """Return the files of the circuit that is in a directory now."""
    return list(_manifest(rtl)["files"]) if (rtl / MANIFEST).is_file() else []


def _manifest(rtl: Path) -> dict[str, Any]:
    """Return what a manifest says, which names the source files at least."""
    advice = f"delete {rtl} and {_again(rtl)}"  # which files are the user's is not known
    told = read_json(rtl / MANIFEST, advice=advice)
    if not isinstance(told.get("files"), dict):
        raise ValueError(
            f"{rtl / MANIFEST} does not describe a circuit: its 'files' are not a table of names "
            f"and checksums; {advice}"
        )
    return told


def _again(rtl: Path) -> str:
    return f"emit it again with ch emit --load {shlex.quote(str(rtl.parents[1]))}"


def _source(rtl: Path, name: str) -> str:
    """Return the text of a source file, which lies beside the manifest."""
    if not FILE_NAME.fullmatch(name):
        return ""  # the circuit refuses the name
    file = rtl / name
    if file.is_symlink():
        raise ValueError(f"{name} is a link")
    if not file.is_file():
        raise FileNotFoundError(f"{rtl} has no {name}, which the circuit needs; {_again(rtl)}")
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text") from error


@functools.cache
def _adapter() -> TypeAdapter[Circuit]:
    from pydantic import TypeAdapter

    return TypeAdapter(Circuit)


def _first_fault(error: ValueError) -> str:
    """Return what is wrong, of pydantic's errors the first."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _check_identifier(what: str, name: str) -> None:
    if not IDENTIFIER.fullmatch(name):
        raise ValueError(
            f"the name of a {what} consists of letters, digits and '_', and starts with no digit, "
            f"unlike {name!r}"
        )


def _check_range(what: str, number: int, low: int, high: int) -> None:
    if not low <= number <= high:
        raise ValueError(f"{what} is from {low} to {high:,}, not {number}")
