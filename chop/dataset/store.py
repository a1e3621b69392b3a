"""PreparedData data on disk: made once, mapped into memory from then on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.dataset.base import Split
from chop.dataset.tensors import Prepare, TensorSplit, fingerprint
from chop.files import whole_file, write_safetensors

logger = logging.getLogger(__name__)

LAYOUT = 1  # of the files written here; an older one is made anew


@dataclass(frozen=True)
class PreparedData:
    """All samples of a data set, those for training first, then validation, then test.

    One block in one order makes every split, and training with validation together, a slice.
    """

    x: Tensor
    y: Tensor
    rows: Mapping[str, int]  # how many samples train, validation and test have
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    def span(self, split: Split, *, legacy_val: bool = False) -> tuple[int, int]:
        """Where `split` lies; with `legacy_val`, training and validation are both of the two."""
        train, held = self.rows["train"], self.rows["train"] + self.rows["validation"]
        if split in ("test", "pred"):
            return held, held + self.rows["test"]
        if legacy_val:
            return 0, held
        return (0, train) if split == "train" else (train, held)

    def spans(self) -> set[tuple[int, int]]:
        """Every slice that somebody may ask for."""
        splits: tuple[Split, ...] = ("train", "validation", "test")
        return {self.span(s) for s in splits} | {self.span("train", legacy_val=True)}

    def split(
        self, split: Split, *, legacy_val: bool = False, prepare: Prepare | None = None
    ) -> TensorSplit:
        """The samples of `split`: a view, not a copy."""
        start, stop = self.span(split, legacy_val=legacy_val)
        known = self.fingerprints.get(f"{start}:{stop}")
        x, y = self.x[start:stop], self.y[start:stop]
        return TensorSplit(x, y, prepare=prepare, fingerprint=known)

    def computed_fingerprints(self) -> dict[str, str]:
        return {f"{a}:{b}": fingerprint(self.x[a:b], self.y[a:b]) for a, b in sorted(self.spans())}


def prepared(
    folder: Path,
    source: Path | Sequence[Path],
    build: Callable[[], PreparedData],
    *,
    version: int,
    options: Mapping[str, Any] | None = None,
    renew: bool = False,
) -> PreparedData:
    """What `build()` makes of `source`, one file or several, from `folder` if it was made before.

    It is made anew if `source`, `version` (of the preparation) or `options` are not those it was
    made with, if it is damaged, or if the caller says `renew`.
    """
    sources = [source] if isinstance(source, Path) else list(source)
    recipe = _recipe(sources, version, options or {})
    file = folder / f"prepared-{_key(sources, recipe['options'])}.safetensors"
    there = None if renew else _opened(file, recipe)
    if there is not None:
        return there
    with locked(file):
        there = None if renew else _opened(file, recipe)  # another process was faster
        if there is not None:
            return there
        logger.info("preparing %s (once)", sources[0])
        _write(file, build(), recipe)
        made = _opened(file, recipe)
    assert made is not None, "what was just written can be read"
    return made


def _recipe(sources: Sequence[Path], version: int, options: Mapping[str, Any]) -> dict[str, str]:
    """All that a prepared file depends on."""
    stats = [source.stat() for source in sources]
    return {
        "layout": str(LAYOUT),
        "version": str(version),
        "options": json.dumps(options, sort_keys=True),
        "sources": json.dumps([[stat.st_size, stat.st_mtime_ns] for stat in stats]),
    }


def _key(sources: Sequence[Path], options: str) -> str:
    """What tells prepared files of one folder apart."""
    names = [str(source.resolve()) for source in sources]
    return hashlib.sha256(json.dumps([*names, options]).encode()).hexdigest()[:12]


def _seal_time(recipe: dict[str, str]) -> int:
    """The time that a prepared file bears: that of its source, until somebody touches it."""
    return int(json.loads(recipe["sources"])[0][1])


def _seal(file: Path, recipe: dict[str, str]) -> None:
    os.utime(file, ns=(_seal_time(recipe), _seal_time(recipe)))


def _write(file: Path, data: PreparedData, recipe: dict[str, str]) -> None:
    """Write `file` whole or not at all, and seal it."""
    facts = {name: getattr(data, name) for name in ("rows", "features", "classes")}
    facts["fingerprints"] = data.computed_fingerprints()
    header = recipe | {"facts": json.dumps(facts)}
    with writable(file.parent), whole_file(file) as part:
        write_safetensors({"x": data.x, "y": data.y}, part, metadata=header)
        _seal(part, recipe)


def _opened(file: Path, recipe: dict[str, str]) -> PreparedData | None:
    """The data in `file`, mapped; nothing if it is damaged or made by another recipe."""
    from safetensors import SafetensorError, safe_open

    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as tensors:
            header = tensors.metadata() or {}
            if {key: header.get(key) for key in recipe} != recipe:
                logger.info("%s is stale; rebuilding", file)
                return None
            facts = json.loads(header["facts"])
            data = PreparedData(
                tensors.get_tensor("x"),
                tensors.get_tensor("y"),
                facts["rows"],
                features=tuple(facts["features"]),
                classes=tuple(facts["classes"]),
                fingerprints=facts["fingerprints"],
            )
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        logger.warning("%s is damaged (%s); rebuilding", file, error)
        return None
    return data if _sound(file, data, recipe) else None


def _sound(file: Path, data: PreparedData, recipe: dict[str, str]) -> bool:
    """Whether the content is what was written: read in full only if somebody touched the file."""
    if file.stat().st_mtime_ns == _seal_time(recipe):
        return True
    if data.computed_fingerprints() != data.fingerprints:
        logger.warning("%s is damaged; rebuilding", file)
        return False
    with suppress(OSError):  # somebody else's file is read in full every time
        _seal(file, recipe)
    return True


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Only one process at a time makes `file`; the lock dies with the process that holds it."""
    with writable(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = (file.parent / f".{file.name}.lock").open("a")
    with lock:
        _lock(lock.fileno(), file)
        yield


def _lock(descriptor: int, file: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks on Windows: work may be done twice, files stay whole
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("waiting for another process that is building %s", file)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Say which folder it was, and what to do, if something cannot be written."""
    try:
        yield
    except ConnectionError:
        raise  # what is being written comes over the network
    except OSError as error:
        raise OSError(
            f"cannot write to {folder}: {error.strerror or error}; free some space or make "
            f"it writable, or set MASE_CACHE to another directory"
        ) from error
