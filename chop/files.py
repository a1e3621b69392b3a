"""Atomic writes of files and directories, reading of JSON, and the cache directory."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

SWAP_SECONDS = 60  # after which a directory that was moved away is not moved back
ABANDONED_SECONDS = 24 * 60 * 60  # no write takes that long, on any machine
UNTOUCHED = "the previous content is unchanged"
_in_use: set[Path] = set()  # the parts that this process is writing, and what it has moved away


def cache_folder() -> Path:
    """Return `$MASE_CACHE`, or `mase` in the user's cache directory, never in the package."""
    chosen = os.environ.get("MASE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen).expanduser() if chosen else Path(shared) / "mase"


# --- files


def write_whole(
    file: str | Path, content: str | bytes | memoryview, *, advice: str = UNTOUCHED
) -> Path:
    """Write a file atomically, and create its parent directories."""
    with whole_file(file, advice=advice) as part:
        part.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return Path(file)


@contextlib.contextmanager
def whole_file(file: str | Path, *, advice: str = UNTOUCHED) -> Iterator[Path]:
    """Yield a path to write to, which replaces `file` on success.

    An error or a kill leaves the previous content. A link stays a link to the replaced file; a
    device or a pipe is written directly.
    """
    target = Path(os.path.realpath(file))
    if target.is_dir():
        raise IsADirectoryError(f"{str(file)!r} is a directory; give a file in it")
    if Path(file).exists() and not Path(file).is_file():
        with naming(file, advice):
            yield Path(file)
        return
    with naming(file, advice), part_folder(target) as folder:
        part = folder / target.name
        yield part
        _sync(part)
        os.replace(part, target)


@contextlib.contextmanager
def naming(file: str | Path, advice: str = UNTOUCHED) -> Iterator[None]:
    """Turn an operating-system error into one sentence that names the file being written."""
    try:
        yield
    except OSError as error:
        reason = str(error.strerror or error)
        named = OSError(f"cannot write {file}: {reason}; {advice}")
        named.strerror = reason  # for the directory that this file is part of
        raise named from error


def write_safetensors(
    tensors: Mapping[str, Tensor], file: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors with the usual file permissions; a full disk raises OSError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    file.touch()
    mode = file.stat().st_mode
    try:
        save_file(dict(tensors), file, metadata=metadata)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise ValueError(f"{file} cannot hold these tensors: {error}") from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error
    file.chmod(mode)  # safetensors makes the file readable only by its owner


def read_json(file: str | Path, *, advice: str) -> dict[str, Any]:
    """Return the object in a JSON file; an error names a damaged file and gives advice."""
    try:
        text = Path(file).read_text(encoding="utf-8")
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise _damaged(file, _where(error), advice) from error
    except UnicodeDecodeError as error:
        raise _damaged(file, f"byte {error.start} is not UTF-8 text", advice) from error
    except RecursionError as error:
        raise _damaged(file, "it is nested too deeply", advice) from error
    except ValueError as error:  # a number with thousands of digits
        raise _damaged(file, str(error), advice) from error
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise _damaged(file, f"its content is of type {kind}, not an object", advice)
    return content


def _where(error: json.JSONDecodeError) -> str:
    """Where a text stops being JSON, and whether it is truncated there."""
    if not error.doc.strip():
        return "it is empty"
    place = f"line {error.lineno}, column {error.colno}"
    if not error.doc[error.pos :].strip() or error.msg.startswith("Unterminated string"):
        return f"it is cut off at {place}"
    return f"{error.msg} at {place}"


def _damaged(file: str | Path, reason: str, advice: str) -> ValueError:
    return ValueError(f"{file} is damaged ({reason}); {advice}")


def _sync(file: Path) -> None:
    with open(file, "rb+") as written:
        os.fsync(written.fileno())


# --- directories


@contextlib.contextmanager
def replaced_folder(folder: str | Path, files: Iterable[str]) -> Iterator[Path]:
    """Yield a directory to write `files` to, which replaces `folder` on success.

    An error leaves the previous content, and `restore_folder` restores it if the process was killed
    meanwhile. A directory with any other file in it is not replaced.
    """
    target = Path(folder).expanduser().absolute()
    restore_folder(target)
    _check_replaceable(target, set(files))
    with naming(target), part_folder(target) as private:
        for left in _abandoned(target, "old"):
            shutil.rmtree(left, ignore_errors=True)
        part = private / target.name
        part.mkdir()
        yield part
        for file in part.iterdir():
            _sync(file)
        _swap(part, target, private.with_suffix(".old"))


def restore_folder(folder: str | Path) -> None:
    """Restore the previous content of `folder` if the process that replaced it was killed."""
    target = Path(folder).expanduser().absolute()
    if target.exists():
        return
    for old in _abandoned(target, "old")[-1:]:
        with contextlib.suppress(OSError):  # another process was faster
            os.rename(old, target)


def _swap(part: Path, target: Path, old: Path) -> None:
    if not target.exists():
        os.rename(part, target)
        return
    _in_use.add(old)
    try:
        os.rename(target, old)
        try:
            os.rename(part, target)
        except OSError:
            os.rename(old, target)
            raise
        os.rename(old, part)  # if we are killed, a partial directory must not look complete
    finally:
        _in_use.discard(old)


def _check_replaceable(target: Path, files: set[str]) -> None:
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file; give a directory")
    others = (
        sorted(p.name for p in target.iterdir() if p.name not in files) if target.exists() else []
    )
    if others:
        raise FileExistsError(
            f"{target} holds other files ({others[0]!r}), which would be lost; give "
            f"another directory"
        )


# --- parts: incomplete content lies beside its target, in a separate directory


@contextlib.contextmanager
def part_folder(target: Path) -> Iterator[Path]:
    """Yield a private directory beside `target`, which is deleted afterwards.

    Leftovers of killed processes for the same target are deleted.
    """
    name = f".{_stem(target)}.{_machine()}.{os.getpid()}.{secrets.token_hex(4)}.part"
    part = target.with_name(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    _in_use.add(part)
    try:
        part.mkdir(mode=0o700)
        for left in _abandoned(target, "part", part.stat().st_mtime):
            shutil.rmtree(left, ignore_errors=True)
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        _in_use.discard(part)


class _WriterProcess(NamedTuple):
    """The process that left something beside a target."""

    machine: str
    process: int

    def is_gone(self, age: float, longest: float) -> bool:
        """Whether the process has ended; on another machine only the age of its part shows that."""
        if age > longest:
            return True
        return self.machine == _machine() and not _is_running(self.process)


def _abandoned(target: Path, kind: str, now: float | None = None) -> list[Path]:
    """What ended processes left beside `target`, newest last.

    `now` is the time of the file server, if it is known.
    """
    pattern = re.compile(
        rf"\.{re.escape(_stem(target))}\.([0-9a-f]{{8}})\.(\d+)\.[0-9a-f]{{8}}\.{kind}"
    )
    longest = SWAP_SECONDS if kind == "old" else ABANDONED_SECONDS
    left = {}
    for name in os.listdir(target.parent) if target.parent.is_dir() else ():
        match, path = pattern.fullmatch(name), target.with_name(name)
        if match is None or path in _in_use:
            continue
        changed = _changed_at(path)
        age = (time.time() if now is None else now) - changed
        if _WriterProcess(match[1], int(match[2])).is_gone(age, longest):
            left[path] = changed
    return sorted(left, key=left.__getitem__)


def _stem(target: Path) -> str:
    return target.name[:40]  # file names have at most 255 bytes


@functools.cache
def _machine() -> str:
    """A name for the scope of process ids: this machine, or the container on it."""
    namespace = "/proc/self/ns/pid"
    numbering = os.readlink(namespace) if os.path.lexists(namespace) else ""
    return hashlib.sha256(f"{platform.node()} {numbering}".encode()).hexdigest()[:8]


def _changed_at(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):  # it was just moved back
        return path.stat().st_ctime
    return time.time()


def _is_running(process: int) -> bool:
    """Whether another process has that id; a previous process with ours has ended."""
    if process == os.getpid() or os.name != "posix":  # elsewhere, checking would kill it
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
