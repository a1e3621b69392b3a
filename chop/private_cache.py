"""Compiled code in the cache: only its owner can write to it, and names contain checksums."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import stat
from pathlib import Path

from chop.files import cache_folder, naming

__all__ = [
    "ADVICE",
    "checked_descriptor",
    "keep_file",
    "keep_folder",
    "kept_folder",
    "private_folder",
]

logger = logging.getLogger(__name__)

DIGITS = 32  # of the checksum in a name
ADVICE = "set MASE_CACHE to a directory that only you can write to"
BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def private_folder(name: str) -> Path:
    """Return a directory of the cache to which only its owner can write."""
    folder = cache_folder() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o755)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode):
        raise NotADirectoryError(f"{folder} is a link or a file, not a directory; {ADVICE}")
    _check_owner(about, folder)
    if about.st_mode & BY_OTHERS:
        logger.warning("other users could write to %s; its contents will be built again", folder)
        folder.chmod(about.st_mode & ~BY_OTHERS)
        for path in folder.iterdir():
            _delete(path)
    return folder


def checked_descriptor(file: Path) -> int:
    """Open a file for reading; refuse one that others may have written, or with another checksum.

    Raise OSError or ValueError. What is read from the descriptor is what was checked, as the file
    may have been replaced meanwhile.
    """
    descriptor, checksum = _opened(file)
    if file.stem.endswith(f"-{checksum}"):
        return descriptor
    os.close(descriptor)
    raise ValueError("its checksum differs from the one in its name")


def keep_file(made: Path, target: Path) -> Path:
    """Move a file to `target` with its checksum in the name."""
    made.chmod(made.stat().st_mode & ~BY_OTHERS)
    kept = target.with_name(f"{target.stem}-{_checksum(made)}{target.suffix}")
    os.replace(made, kept)
    return kept


def kept_folder(target: Path) -> Path | None:
    """Return the first sound directory that was kept as `target`; others are deleted.

    It counts as used now.
    """
    for folder in sorted(target.parent.glob(f"{target.name}-*")):
        try:
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode):
                raise NotADirectoryError("it is not a directory")
            _check_private(about, folder)
            with contextlib.suppress(OSError):  # root's, or on a disk that cannot be written to
                os.utime(folder)  # first, or another process could forget it while it is checked
            if not folder.name.endswith(f"-{_folder_checksum(folder)}"):
                raise ValueError("its checksum differs from the one in its name")
            return folder
        except FileNotFoundError:  # another process has deleted it
            continue
        except (OSError, ValueError) as error:
            logger.warning("%s is built again instead of used: %s", folder, error)
            _delete(folder)
    return None


def keep_folder(made: Path, target: Path) -> Path:
    """Move a directory of files to `target` with its checksum in the name."""
    for path in (made, *made.iterdir()):
        path.chmod(path.stat().st_mode & ~BY_OTHERS)
    kept = target.with_name(f"{target.name}-{_folder_checksum(made)}")
    with naming(kept):
        try:
            os.rename(made, kept)
        except OSError:  # another process was faster
            if not kept.is_dir():
                raise
    return kept


def _opened(file: Path) -> tuple[int, str]:
    """Open a regular file to which only its owner can write, and return its checksum."""
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is not a regular file")
        _check_private(about, file)
        with open(descriptor, "rb", closefd=False) as content:
            return descriptor, hashlib.file_digest(content, "sha256").hexdigest()[:DIGITS]
    except BaseException:
        os.close(descriptor)
        raise


def _checksum(file: Path) -> str:
    descriptor, checksum = _opened(file)
    os.close(descriptor)
    return checksum


def _folder_checksum(folder: Path) -> str:
    """Return a checksum of the names and the contents of all files."""
    lines = [f"{_checksum(file)} {file.name}" for file in sorted(folder.iterdir())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGITS]


def _check_private(about: os.stat_result, path: Path) -> None:
    _check_owner(about, path)
    if about.st_mode & BY_OTHERS:
        raise PermissionError("other users can write to it")


def _check_owner(about: os.stat_result, path: Path) -> None:
    """Raise an error for a file of another user, who could have put any code in it."""
    user = os.getuid() if hasattr(os, "getuid") else about.st_uid
    if about.st_uid not in (user, 0):
        raise PermissionError(f"{path} belongs to another user; {ADVICE}")


def _delete(path: Path) -> None:
    """Delete a file, a link or a directory, as far as that is possible."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
