"""Traced logic on disk, by content: a layer is traced once for all processes.

An entry is compressed JSON in `$MASE_CACHE/adders`. Its name is a checksum of the layer, of
alkaid's version and of the code that traces, so that no entry is ever out of date.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import logging
import os
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from chop import extensions, integers
from chop.hardware.unrolled.stages import Logic
from chop.system.caches import forget_oldest
from chop.system.files import cache_folder, write_whole

__all__ = ["decoded", "encoded", "entry_of", "packages_in_key", "read_entry", "write_entry"]

logger = logging.getLogger(__name__)

FOLDER = "adders"
MAX_ENTRIES = 4096
FEWEST_OPS = 100  # smaller logic is traced in a few milliseconds
FIELDS = ("shape", "inp_shifts", "out_idxs", "out_shifts", "out_negs", "ops")
SIZES = ("carry_size", "adder_size")


def entry_of(key: str) -> Path:
    """Return the file of a layer with this checksum of its content."""
    told = hashlib.sha256(f"{key} {_code(_packages())}".encode()).hexdigest()
    return cache_folder() / FOLDER / f"{told[:32]}.json.gz"


@cache
def _code(packages: tuple[str, ...]) -> str:
    """Return a checksum of what turns a layer into logic: ops, this package, alkaid's version."""
    told = hashlib.sha256(metadata.version("alkaid").encode())
    for package in map(importlib.import_module, packages):
        for folder in map(Path, package.__path__):
            for file in sorted(folder.rglob("*.py")):
                told.update(file.relative_to(folder).as_posix().encode())
                told.update(file.read_bytes())
    return told.hexdigest()


def _packages() -> tuple[str, ...]:
    return (integers.__name__, __package__, *extensions.METHODS)


def packages_in_key() -> tuple[str, ...]:
    """Return the prefixes of the modules whose code is in the names of entries."""
    return tuple(f"{package}." for package in _packages())


def read_entry(file: Path) -> tuple[Logic, dict[int, int]] | None:
    """Return the logic and the constants in a file; None if there is none, or it is damaged."""
    try:
        text = gzip.decompress(file.read_bytes())
        made = decoded(json.loads(text))
        os.utime(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    # whatever is wrong with the file: it is only a copy of what can be computed
    except Exception as error:
        logger.warning("%s cannot be read (%s); computing it again", file, error)
        return None
    return made


def write_entry(file: Path, told: dict[str, Any]) -> None:
    """Write the encoded logic of a layer, unless it is small; the oldest entries are deleted."""
    if len(told["logic"][FIELDS.index("ops")]) < FEWEST_OPS:
        return
    text = json.dumps(told, separators=(",", ":")).encode()
    try:
        write_whole(file, gzip.compress(text, 1, mtime=0))
    except OSError as error:
        logger.debug("the logic of a layer is not kept: %s", error)
        return
    forget_oldest(file.parent, "*.json.gz", MAX_ENTRIES)


def encoded(logic: Logic, constants: dict[int, int]) -> dict[str, Any]:
    """Return logic as lists and numbers that JSON holds exactly."""
    tables = None
    if logic.lookup_tables is not None:
        tables = [{**_plain(t.to_dict()), "mask": _plain(t.mask)} for t in logic.lookup_tables]
    parts = [_plain(getattr(logic, name)) for name in (*FIELDS, *SIZES)]
    return {
        "logic": parts if tables is None else [*parts, tables],
        "constants": [[int(place), int(value)] for place, value in constants.items()],
    }


def decoded(told: dict[str, Any]) -> tuple[Logic, dict[int, int]]:
    """Return what `encoded` was given."""
    from alkaid.types import CombLogic

    logic = CombLogic.from_dict(told["logic"], raw=True)
    if logic.lookup_tables is not None:
        for table, row in zip(logic.lookup_tables, told["logic"][-1], strict=True):
            # alkaid does not write which entries never occur
            table.mask = None if row["mask"] is None else np.array(row["mask"], dtype=np.bool_)
    return logic, {int(place): int(value) for place, value in told["constants"]}


def _plain(value: Any) -> Any:
    """Return numbers of numpy, also inside tuples and lists, as Python's."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
