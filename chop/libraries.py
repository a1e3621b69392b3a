"""Compiled libraries in the cache: verified before loading, and rebuilt if necessary.

A library has its checksum in its name, and its directory is writable only by its owner.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from chop.files import cache_folder, part_folder

logger = logging.getLogger(__name__)

FOLDER = "libraries"
DIGITS = 32  # of the checksum in a name
ADVICE = "set MASE_CACHE to a directory that only you can write to"
BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# builds in a separate process, which continues if this one ends
BUILDER = (
    "import sys; sys.path.append(sys.argv[1]); from chop.libraries import build; "
    "build(sys.argv[2], sys.argv[3:])"
)


def load_library(name: str, command: Sequence[str], symbols: Iterable[str]) -> ctypes.CDLL:
    """Return the library `name`, from the cache if it is valid there, else built by `command`."""
    folder, wanted = _private_folder(), tuple(symbols)
    library = _cached(folder, name, wanted)
    if library is None:
        _build_apart(folder / name, command)
        library = _cached(folder, name, wanted)
    if library is None:
        raise OSError(f"the library that was just built in {folder} cannot be loaded; {ADVICE}")
    return library


def _private_folder() -> Path:
    """Return the directory of all libraries, which only its owner can write to."""
    folder = cache_folder() / FOLDER
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o755)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode):
        raise NotADirectoryError(f"{folder} is a link or a file, not a directory; {ADVICE}")
    _check_owner(about, folder)
    if about.st_mode & BY_OTHERS:
        logger.warning("other users could write to %s; its libraries will be rebuilt", folder)
        folder.chmod(about.st_mode & ~BY_OTHERS)
        for library in folder.glob("*.so"):
            library.unlink()
    return folder


def _check_owner(about: os.stat_result, path: Path) -> None:
    """Raise an error for a file of another user, who could have put any code in it."""
    user = os.getuid() if hasattr(os, "getuid") else about.st_uid
    if about.st_uid not in (user, 0):
        raise PermissionError(f"{path} belongs to another user; {ADVICE}")


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
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        _verify(descriptor, file)
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


def _verify(descriptor: int, file: Path) -> None:
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is not a regular file")
    _check_owner(about, file)
    if about.st_mode & BY_OTHERS:
        raise PermissionError("other users can write to it")
    with open(descriptor, "rb", closefd=False) as content:
        checksum = hashlib.file_digest(content, "sha256").hexdigest()[:DIGITS]
    if not file.stem.endswith(f"-{checksum}"):
        raise ValueError("its checksum differs from the one in its name")


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
        library.chmod(library.stat().st_mode & ~BY_OTHERS)
        checksum = hashlib.sha256(library.read_bytes()).hexdigest()[:DIGITS]
        os.replace(library, path.with_name(f"{path.name}-{checksum}.so"))
