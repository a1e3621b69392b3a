"""Compiled libraries in the cache: verified before loading, and rebuilt if necessary."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from chop.system.files import part_folder
from chop.system.private_cache import ADVICE, checked_descriptor, keep_file, private_folder

logger = logging.getLogger(__name__)

FOLDER = "libraries"
# builds in a separate process, which continues if this one ends
BUILDER = (
    "import sys; sys.path.append(sys.argv[1]); from chop.system.libraries import build; "
    "build(sys.argv[2], sys.argv[3:])"
)


def load_library(name: str, command: Sequence[str], symbols: Iterable[str]) -> ctypes.CDLL:
    """Return the library `name`, from the cache if it is valid there, else built by `command`."""
    folder, wanted = private_folder(FOLDER), tuple(symbols)
    library = _cached(folder, name, wanted)
    if library is None:
        _build_apart(folder / name, command)
        library = _cached(folder, name, wanted)
    if library is None:
        raise OSError(f"the library that was just built in {folder} cannot be loaded; {ADVICE}")
    return library


def _cached(folder: Path, name: str, symbols: Sequence[str]) -> ctypes.CDLL | None:
    """The first valid library of that name; invalid ones are deleted."""
    for file in sorted(folder.glob(f"{name}-*.so")):
        try:
            return _loaded(file, symbols)
        except (OSError, ValueError) as error:
            logger.warning("%s is rebuilt instead of loaded: %s", file, error)
            with contextlib.suppress(OSError):
                file.unlink()
    return None


def _loaded(file: Path, symbols: Sequence[str]) -> ctypes.CDLL:
    """Load exactly what was verified, as the file may have been replaced meanwhile."""
    descriptor = checked_descriptor(file)
    try:
        opened = Path(f"/proc/self/fd/{descriptor}")
        library = ctypes.CDLL(str(opened if opened.exists() else file))
    except BaseException:
        os.close(descriptor)
        raise
    # the descriptor stays open, as the loader would mistake a later file at its number for this one
    missing = [symbol for symbol in symbols if not hasattr(library, symbol)]
    if missing:
        raise ValueError(f"it does not define the function {missing[0]}")
    return library


def _build_apart(target: Path, command: Sequence[str]) -> None:
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-I", "-c", BUILDER, root, str(target), *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    if done.returncode:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        raise RuntimeError(f"{command[0]} failed: {reason.splitlines()[-1]}")


def build(target: str, command: Sequence[str]) -> None:
    """Compile a library and store it beside `target`, with its checksum in the name."""
    path = Path(target)
    with part_folder(path) as part:
        library = part / "library.so"
        done = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            sys.exit((errors or [f"exit code {done.returncode}"])[0])
        keep_file(library, path.with_name(f"{path.name}.so"))
