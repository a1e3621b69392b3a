"""Files that users name, and the folder for what can be made again."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path


def write_text(file: str | Path, text: str) -> Path:
    """Write a file, and the folders above it; a folder cannot be written."""
    path = Path(file)
    if path.is_dir():
        raise IsADirectoryError(f"{str(file)!r} is a folder; name a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def cache_folder() -> Path:
    """`$MASE_CACHE`, or `mase` in the user's cache: never inside the installed package."""
    own = os.environ.get("MASE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own).expanduser() if own else Path(shared) / "mase"


@contextlib.contextmanager
def replaced_folder(folder: str | Path, files: Iterable[str]) -> Iterator[Path]:
    """A folder to write `files` in, which takes the place of `folder` when all went well.

    An error leaves what was there before. A folder with anything else in it is not replaced.
    """
    target = Path(folder).expanduser().absolute()
    _check_replaceable(target, set(files))
    part, old = (target.with_name(f".{target.name}.{os.getpid()}.{x}") for x in ("part", "old"))
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part
        for file in part.iterdir():
            with open(file, "rb+") as written:
                os.fsync(written.fileno())
        _swap(part, target, old)
    except OSError as error:
        raise OSError(
            f"cannot write {target}: {error.strerror or error}; what was there before is untouched"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _swap(part: Path, target: Path, old: Path) -> None:
    if not target.exists():
        os.rename(part, target)
        return
    os.rename(target, old)
    try:
        os.rename(part, target)
    except OSError:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _check_replaceable(target: Path, files: set[str]) -> None:
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file; name a folder")
    others = (
        sorted(p.name for p in target.iterdir() if p.name not in files) if target.exists() else []
    )
    if others:
        raise FileExistsError(
            f"{target} holds other files ({others[0]!r}), which would be lost; name another folder"
        )
