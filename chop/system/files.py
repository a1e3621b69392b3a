"""Atomic writes of files and directories, reading of JSON files, and the cache directory."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chop

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

SWAP_SECONDS = 60  # swapping two directories never takes this long
ABANDONED_SECONDS = 24 * 60 * 60  # no write takes this long, on any machine
UNTOUCHED = "nothing was changed"
BEST = re.compile(r"best(?:-v(\d+))?\.ckpt")
_in_use: set[Path] = set()  # directories that this process is writing or has moved aside


def cache_folder() -> Path:
    """Return `$MASE_CACHE`, or `mase` in the user's cache directory."""
    chosen = os.environ.get("MASE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen).expanduser() if chosen else Path(shared) / "mase"


def default_project_dir() -> Path:
    """Return `mase_output` in the clone, or in the current directory if MASE is installed."""
    clone = Path(chop.__file__).resolve().parents[1]
    return (clone if (clone / "ch").is_file() else Path.cwd()) / "mase_output"


# --- files


def is_onnx_file(name: object) -> bool:
    """Whether the name of a model is the path of an ONNX file."""
    return str(name).lower().endswith(".onnx")


def why_missing(path: str | Path, kind: str = "file or folder") -> str:
    """Return why nothing exists at `path`, with the link that leads nowhere if one does."""
    return broken_link(path) or f"there is no {kind} {str(path)!r}"


def best_checkpoint(folder: str | Path) -> Path | None:
    """Return `best.ckpt` of a training run in `folder`, of the last run if there are several."""
    runs = [(BEST.fullmatch(file.name), file) for file in Path(folder).glob("best*.ckpt")]
    versions = {int(match[1] or 0): file for match, file in runs if match}
    return versions[max(versions)] if versions else None


def later_checkpoint(file: Path) -> Path | None:
    """Return the best checkpoint that a later run wrote beside this one, or None."""
    newest = best_checkpoint(file.parent) if BEST.fullmatch(file.name) else None
    return newest if newest is not None and newest.name != file.name else None


def broken_link(path: str | Path) -> str | None:
    """Return a clause about the symbolic link in `path` that leads nowhere; None without one."""
    place = Path(path).expanduser().absolute()
    links = [part for part in (place, *place.parents) if part.is_symlink() and not part.exists()]
    if not links:
        return None
    target = os.readlink(links[-1])
    return f"{str(links[-1])!r} is a symbolic link to {target!r}, which does not exist"


def write_whole(
    file: str | Path, content: str | bytes | memoryview, *, advice: str = UNTOUCHED
) -> Path:
    """Write a file atomically, and create its parent directories."""
    with whole_file(file, advice=advice) as part:
        part.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return Path(file)


@contextlib.contextmanager
def whole_file(file: str | Path, *, advice: str = UNTOUCHED) -> Iterator[Path]:
    """Yield a temporary path that replaces `file` when the block ends without an error.

    After an error or a kill, `file` is unchanged. A symbolic link is kept and its target replaced;
    a device or a pipe is written directly.
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
def locked_file(file: str | Path) -> Iterator[None]:
    """Lock `file` against other processes; the lock ends with the process that holds it.

    The lock is a file beside it, which stays: where one process removes it, two could hold it.
    """
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f".{path.name}.lock").open("a") as lock:
        _lock(lock.fileno(), path)
        yield


def _lock(descriptor: int, path: Path) -> None:
    """Wait for a lock; where the file system has none, or on Windows, there is none to wait for."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for another process that writes %s", path)
            fcntl.flock(descriptor, fcntl.LOCK_EX)


@contextlib.contextmanager
def naming(file: str | Path, advice: str = UNTOUCHED) -> Iterator[None]:
    """Context in which an OSError becomes one sentence that names the file being written."""
    try:
        yield
    except OSError as error:
        reason = str(error.strerror or error)
        named = OSError(f"cannot write {file}: {reason}; {advice}")
        named.strerror = reason  # used when this file is part of a directory that is being written
        raise named from error


def write_safetensors(
    tensors: Mapping[str, Tensor], file: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors with the usual permissions of a file; a full disk raises OSError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    file.touch()
    mode = file.stat().st_mode
    try:
        save_file(dict(tensors), file, metadata=metadata)
    except KeyError as error:  # a dtype that safetensors lacks
        dtype = error.args[0]
        names = [name for name, tensor in tensors.items() if tensor.dtype is dtype]
        if not names:
            raise
        raise ValueError(
            f"{names[0]!r} is of {dtype}, which safetensors cannot hold; convert it, for instance "
            f"to {'complex64' if dtype.is_complex else 'float32'}"
        ) from error
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise ValueError(f"{file} cannot hold these tensors: {error}") from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error
    file.chmod(mode)  # safetensors makes it readable for the owner only


def read_json(file: str | Path, *, advice: str) -> dict[str, Any]:
    """Read the object in a JSON file; the error for a damaged file ends with `advice`."""
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"its content is of type {type(content).__name__}, not an object")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({_reason(error)}); {advice}") from error
    return content


def _reason(error: Exception) -> str:
    """Return why a text is not JSON; where it stops being JSON, and whether it is cut off there."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8 text"
    if not isinstance(error, json.JSONDecodeError):  # such as a number with thousands of digits
        return str(error)
    if not error.doc.strip():
        return "it is empty"
    place = f"line {error.lineno}, column {error.colno}"
    if not error.doc[error.pos :].strip() or error.msg.startswith("Unterminated string"):
        return f"it is cut off at {place}"
    return f"{error.msg} at {place}"


def _sync(file: Path) -> None:
    with open(file, "rb+") as written:
        os.fsync(written.fileno())


# --- directories


@contextlib.contextmanager
def replaced_folder(folder: str | Path, files: Iterable[str]) -> Iterator[Path]:
    """Yield a directory for `files` that replaces `folder` when the block ends without an error.

    After an error, `folder` is unchanged; after a kill, `restore_folder` restores it. A directory
    that holds other files is not replaced.
    """
    target = Path(folder).expanduser().absolute()
    restore_folder(target)
    check_replaceable(target, set(files))
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
    """Restore `folder` if a process was killed while replacing it."""
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
        os.rename(old, part)  # after a kill, a half-deleted directory must not be restored
    finally:
        _in_use.discard(old)


def check_replaceable(target: Path, files: set[str]) -> None:
    """Refuse a directory that holds other files than these, which would be lost."""
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file; give a directory")
    others = {path.name for path in target.iterdir()} - files if target.exists() else set()
    if others:
        raise FileExistsError(
            f"{target} holds other files ({min(others)!r}), which would be lost; use "
            f"another directory"
        )


@contextlib.contextmanager
def one_at_a_time(folder: str | Path) -> Iterator[None]:
    """Context that one process at a time has for a directory that exists; others wait."""
    if fcntl is None:  # a directory cannot be opened on Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, Path(folder))
        yield
    finally:
        os.close(descriptor)


# --- parts: incomplete files are in a temporary directory beside their target


@contextlib.contextmanager
def part_folder(target: Path) -> Iterator[Path]:
    """Yield a private temporary directory beside `target`, which is removed afterwards.

    Those that killed processes left for the same target are removed too.
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


def _abandoned(target: Path, kind: str, now: float | None = None) -> list[Path]:
    """Return the directories that ended processes left beside `target`, the newest last.

    `now` is the time of the file server's clock, if known.
    """
    pattern = re.compile(
        rf"\.{re.escape(_stem(target))}\.([0-9a-f]{{8}})\.(\d+)\.[0-9a-f]{{8}}\.{kind}"
    )
    longest = SWAP_SECONDS if kind == "old" else ABANDONED_SECONDS
    times = {}
    for name in os.listdir(target.parent) if target.parent.is_dir() else ():
        match, path = pattern.fullmatch(name), target.with_name(name)
        if match is None or path in _in_use:
            continue
        changed = _changed_at(path)
        age = (time.time() if now is None else now) - changed
        # of a process on another machine, only the age of the directory tells whether it has ended
        if age > longest or (match[1] == _machine() and not _is_running(int(match[2]))):
            times[path] = changed
    return sorted(times, key=times.__getitem__)


def _stem(target: Path) -> str:
    return target.name[:40]  # file names have at most 255 bytes


@functools.cache
def _machine() -> str:
    """Return an id of this machine, or of the container, in which process ids are unique."""
    namespace = "/proc/self/ns/pid"
    numbering = os.readlink(namespace) if os.path.lexists(namespace) else ""
    return hashlib.sha256(f"{platform.node()} {numbering}".encode()).hexdigest()[:8]


def _changed_at(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):  # it has just been restored
        return path.stat().st_ctime
    return time.time()


def _is_running(process: int) -> bool:
    """Whether another process has this id; an earlier process with our own id has ended."""
    if process == os.getpid() or os.name != "posix":  # elsewhere, os.kill would end it
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
