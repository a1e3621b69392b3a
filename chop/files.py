"""Files that users name, and the folder for what can be made again."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

SWAP_SECONDS = 60  # a folder that was moved aside for longer than this will not be moved back
_swapping: set[Path] = set()  # what this process has moved aside just now


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

    An error leaves what was there before, and `restore_folder` brings it back if the process was
    killed meanwhile. A folder with anything else in it is not replaced.
    """
    target = Path(folder).expanduser().absolute()
    restore_folder(target)
    for left in _abandoned(target, "part") + _abandoned(target, "old"):
        shutil.rmtree(left, ignore_errors=True)
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


def restore_folder(folder: str | Path) -> None:
    """Bring back what was in `folder`, if who was replacing it was killed at the wrong moment."""
    target = Path(folder).expanduser().absolute()
    if target.exists():
        return
    for old in _abandoned(target, "old")[-1:]:
        with contextlib.suppress(OSError):  # somebody else was faster
            os.rename(old, target)


def _abandoned(target: Path, kind: str) -> list[Path]:
    """Folders beside `target` whose process has come to its end, the newest last."""
    name = re.compile(rf"\.{re.escape(target.name)}\.(\d+)\.{kind}")
    beside = target.parent.iterdir() if target.parent.is_dir() else ()
    numbers = {path: found[1] for path in beside if (found := name.fullmatch(path.name))}
    return sorted((p for p, n in numbers.items() if _is_abandoned(p, int(n))), key=_moved_at)


def _is_abandoned(path: Path, process: int) -> bool:
    if path in _swapping:
        return False
    if not _is_running(process):
        return True
    # numbers of processes are used again; writing may take its time, but swapping does not
    return path.suffix == ".old" and time.time() - _moved_at(path) > SWAP_SECONDS


def _moved_at(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):  # just now moved back
        return path.stat().st_ctime
    return time.time()


def _is_running(process: int) -> bool:
    """Whether another process has that number; what had ours before us is gone."""
    if process == os.getpid() or os.name != "posix":  # elsewhere asking would end it
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _swap(part: Path, target: Path, old: Path) -> None:
    if not target.exists():
        os.rename(part, target)
        return
    _swapping.add(old)
    try:
        os.rename(target, old)
        try:
            os.rename(part, target)
        except OSError:
            os.rename(old, target)
            raise
        os.rename(old, part)  # half of it must not be taken for the whole, should we be killed
    finally:
        _swapping.discard(old)
    shutil.rmtree(part, ignore_errors=True)


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
