"""Cache of prepared data on disk: written once, then mapped into memory."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.dataset.base import Split
from chop.dataset.nested import Inputs, rows_of
from chop.dataset.tensors import (
    Prepare,
    Scaler,
    Scalers,
    TensorSplit,
    fingerprint,
    plain_scalers,
)
from chop.system.caches import cached
from chop.system.files import locked_file, whole_file, write_safetensors

logger = logging.getLogger(__name__)

LAYOUT = 2  # of the cache files; those of an older layout are rebuilt


@dataclass(frozen=True)
class PreparedData:
    """All samples of a data set: those for training first, then validation, then test.

    Thus every split, and training and validation together, is a slice.
    """

    x: Inputs  # a tensor, or several by name
    y: Tensor
    rows: Mapping[str, int]  # number of samples for train, validation and test
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    task: str = "cls"
    scaler: Scalers | None = None  # of the features of each table; None if there are only images
    notes: tuple[str, ...] = ()  # how the file was read, for the user

    def span(self, split: Split, *, legacy_val: bool = False) -> tuple[int, int]:
        """Return start and stop of `split`; `legacy_val` joins training and validation."""
        train, held = self.rows["train"], self.rows["train"] + self.rows["validation"]
        if split in ("test", "pred"):
            return held, held + self.rows["test"]
        if legacy_val:
            return 0, held
        return (0, train) if split == "train" else (train, held)

    def spans(self) -> set[tuple[int, int]]:
        """Return all slices that `span` can return."""
        splits: tuple[Split, ...] = ("train", "validation", "test")
        return {self.span(s) for s in splits} | {self.span("train", legacy_val=True)}

    def split(
        self, split: Split, *, legacy_val: bool = False, prepare: Prepare | None = None
    ) -> TensorSplit:
        """Return the samples of `split` as a view, not a copy."""
        start, stop = self.span(split, legacy_val=legacy_val)
        known = self.fingerprints.get(f"{start}:{stop}")
        x, y = rows_of(self.x, slice(start, stop)), self.y[start:stop]
        return TensorSplit(x, y, prepare=prepare, fingerprint=known, scaler=self.scaler)

    def computed_fingerprints(self) -> dict[str, str]:
        return {
            f"{a}:{b}": fingerprint(rows_of(self.x, slice(a, b)), self.y[a:b])
            for a, b in sorted(self.spans())
        }


def prepared(
    folder: Path,
    source: Path | Sequence[Path],
    build: Callable[[], PreparedData],
    *,
    version: int,
    options: Mapping[str, Any] | None = None,
    renew: bool = False,
) -> PreparedData:
    """Return the result of `build()` for `source` (one file or several), cached in `folder`.

    It is rebuilt if `source`, `version` (of the preparation) or `options` have changed, if the
    cache is damaged, or with `renew`.
    """
    sources = [source] if isinstance(source, Path) else list(source)
    recipe = _recipe(sources, version, options or {})
    file = folder / f"prepared-{_key(sources, recipe['options'])}.safetensors"

    def make() -> PreparedData:
        logger.info("preparing %s (once)", sources[0])
        _write(file, build(), recipe)
        data = _opened(file, recipe)
        assert data is not None, "the file just written can be read"
        return data

    return cached(file, lambda: None if renew else _opened(file, recipe), make, locked)


def _recipe(sources: Sequence[Path], version: int, options: Mapping[str, Any]) -> dict[str, str]:
    """Return everything that the content of a cache file depends on."""
    stats = [source.stat() for source in sources]
    return {
        "layout": str(LAYOUT),
        "version": str(version),
        "options": json.dumps(options, sort_keys=True),
        "sources": json.dumps([[stat.st_size, stat.st_mtime_ns] for stat in stats]),
    }


def _key(sources: Sequence[Path], options: str) -> str:
    """Return a hash that distinguishes the cache files in one directory."""
    names = [str(source.resolve()) for source in sources]
    return hashlib.sha256(json.dumps([*names, options]).encode()).hexdigest()[:12]


def _seal_time(recipe: dict[str, str]) -> int:
    """Return the modification time of an untouched cache file, which is that of its source."""
    return int(json.loads(recipe["sources"])[0][1])


def _seal(file: Path, recipe: dict[str, str]) -> None:
    os.utime(file, ns=(_seal_time(recipe), _seal_time(recipe)))


def _write(file: Path, data: PreparedData, recipe: dict[str, str]) -> None:
    """Write `file` atomically, with the modification time of its source."""
    names = ("rows", "features", "classes", "task", "notes")
    facts = {name: getattr(data, name) for name in names}
    facts["fingerprints"] = data.computed_fingerprints()
    facts |= plain_scalers(data.scaler)
    inputs = {f"x.{name}": x for name, x in data.x.items()} if isinstance(data.x, dict) else None
    facts["inputs"] = list(data.x) if inputs else None
    header = recipe | {"facts": json.dumps(facts)}
    with writable(file.parent), whole_file(file) as part:
        write_safetensors((inputs or {"x": data.x}) | {"y": data.y}, part, metadata=header)
        _seal(part, recipe)


def _opened(file: Path, recipe: dict[str, str]) -> PreparedData | None:
    """Map the data in `file`; return None if it is damaged or has a different recipe."""
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
            names = facts.get("inputs")
            data = PreparedData(
                {name: tensors.get_tensor(f"x.{name}") for name in names}
                if names
                else tensors.get_tensor("x"),
                tensors.get_tensor("y"),
                facts["rows"],
                features=tuple(facts["features"]),
                classes=tuple(facts["classes"]),
                fingerprints=facts["fingerprints"],
                scaler=_scalers(facts),
                notes=tuple(facts["notes"]),
                task=facts.get("task", "cls"),
            )
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        logger.warning("%s is damaged (%s); rebuilding", file, error)
        return None
    return data if _is_intact(file, data, recipe) else None


def _scalers(facts: Mapping[str, Any]) -> Scalers | None:
    if "scalers" in facts:
        return {name: _scaler(columns) for name, columns in facts["scalers"].items()}
    return None if facts["scaler"] is None else _scaler(facts["scaler"])


def _scaler(columns: Mapping[str, list[float]]) -> Scaler:
    return Scaler(**{key: tuple(values) for key, values in columns.items()})


def _is_intact(file: Path, data: PreparedData, recipe: dict[str, str]) -> bool:
    """Whether the content is unchanged; it is read in full only if the file was modified."""
    if file.stat().st_mtime_ns == _seal_time(recipe):
        return True
    if data.computed_fingerprints() != data.fingerprints:
        logger.warning("%s is damaged; rebuilding", file)
        return False
    with suppress(OSError):  # a file of another user is read in full every time
        _seal(file, recipe)
    return True


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Lock `file` of the cache against other processes, as `locked_file` does."""
    with ExitStack() as held:
        with writable(file.parent):
            held.enter_context(locked_file(file))
        yield


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Context in which an error of writing names the directory and what to do."""
    try:
        yield
    except ConnectionError:
        raise  # an error of the download that is being written
    except OSError as error:
        raise OSError(
            f"cannot write to {folder}: {error.strerror or error}; free some space or make "
            f"it writable, or set MASE_CACHE to another directory"
        ) from error
