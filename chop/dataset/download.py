"""Files fetched once over HTTP: resumed after a cut, verified, and in place only when whole."""

from __future__ import annotations

import hashlib
import http.client
import logging
import shutil
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chop.dataset.store import locked, writable

logger = logging.getLogger(__name__)

ATTEMPTS = 4
BACK_OFF = 1.0  # seconds before the second attempt; twice as many before each further one
BLOCK = 1 << 18
BUSY = {408, 425, 429, 500, 502, 503, 504}  # answers that may be better a moment later
CUT = (TimeoutError, ConnectionError, http.client.HTTPException, urllib.error.URLError)


class _Changed(Exception):
    """What was fetched so far does not belong to the file that is there now."""


@contextmanager
def instead(advice: str) -> Iterator[None]:
    """Meanwhile a download that fails ends with `advice`."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{error}; {advice}") from error


def download(
    url: str,
    target: Path,
    *,
    checksum: str | None = None,
    size: int | None = None,
    timeout: float = 30.0,
) -> Path:
    """`target`, fetched from `url` unless it is there; `checksum` is `sha256:…` or `md5:…`.

    `timeout` is how long the server may be silent. What came before a cut stays in `target.part`,
    and the next attempt, or the next call, goes on from there.
    """
    if target.exists():
        return target
    with locked(target):
        if target.exists():  # another process was faster
            return target
        part = _PartialFile(target)
        _fetch_whole(url, part, checksum=checksum, size=size, timeout=timeout)
        part.finish()
    return target


def _fetch_whole(
    url: str, part: _PartialFile, *, checksum: str | None, size: int | None, timeout: float
) -> None:
    """Attempts until the file is there and right; those that bring it forward are not counted."""
    failures = 0
    while failures < ATTEMPTS:
        before = part.size
        try:
            _fetch(url, part, size=size, timeout=timeout)
            _verify(url, part, checksum=checksum, size=size)
            return
        except _Changed as change:
            logger.warning("%s: %s; starting again", url, change)
            part.drop()
            failures += 1
        except CUT as error:
            failures = 1 if part.size > before else failures + 1
            if not _passing(error) or failures == ATTEMPTS:
                raise ConnectionError(_failed(url, part.target, error)) from error
            wait = BACK_OFF * 2 ** (failures - 1)
            logger.warning("%s: %s; trying again in %g s", url, _reason(error), wait)
            time.sleep(wait)
    raise ValueError(f"{url} changes while it is being downloaded; try again later")


class _PartialFile:
    """What has arrived so far, and which version of the remote file it belongs to."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.file = target.with_name(target.name + ".part")
        self._validator = target.with_name(target.name + ".part.version")
        self.resumed = False

    @property
    def size(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    @property
    def version(self) -> str | None:
        return self._validator.read_text() if self.size and self._validator.exists() else None

    def begin(self, version: str | None) -> None:
        """Forget what is there; from now on bytes of `version` arrive."""
        self.drop()
        if version:
            self._validator.write_text(version)

    def drop(self) -> None:
        self.file.unlink(missing_ok=True)
        self._validator.unlink(missing_ok=True)
        self.resumed = False

    def finish(self) -> None:
        """The whole file is here: put it in place."""
        self.file.replace(self.target)
        self._validator.unlink(missing_ok=True)


def _fetch(url: str, part: _PartialFile, *, size: int | None, timeout: float) -> None:
    """One attempt: ask for what is missing, and append it."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "mase"}
    if part.version:  # without a version, new bytes might be glued to those of another file
        headers |= {"Range": f"bytes={part.size}-", "If-Range": part.version}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            _store(url, answer, part, size=size)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") != f"bytes */{part.size}":
            raise _Changed("the server cannot resume the last attempt") from error
        part.resumed = True


def _store(
    url: str, answer: http.client.HTTPResponse, part: _PartialFile, *, size: int | None
) -> None:
    if answer.headers.get_content_type() == "text/html":
        raise ValueError(
            f"{url} answers with a web page instead of the file, perhaps to log in; "
            f"download it in a browser and save it as {part.target}"
        )
    length = answer.headers.get("Content-Length")
    if answer.status == 206:
        part.resumed = True
        start = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
        if start != str(part.size):
            raise _Changed("the server sends a different part than requested")
    else:
        with writable(part.target.parent):
            part.begin(_version(answer))
    whole = part.size + int(length) if length else None
    if size is not None and whole not in (None, size):
        raise ValueError(f"{url} is {whole} bytes long, not {size}; it is a different file")
    _check_room(url, part, whole)
    with _progress(part.target.name, part.size, whole) as advance:
        _append(answer, part, advance)
    if whole is not None and part.size < whole:
        raise ConnectionError(f"cut after {part.size} of {whole} bytes")


def _append(
    answer: http.client.HTTPResponse, part: _PartialFile, advance: Callable[[int], object]
) -> None:
    with writable(part.target.parent), part.file.open("ab") as out:
        while block := _read(answer):
            out.write(block)
            advance(len(block))


def _read(answer: http.client.HTTPResponse) -> bytes:
    """The next bytes; whatever goes wrong here is the network's fault, not the disk's."""
    try:
        return answer.read1(BLOCK)
    except OSError as error:
        raise ConnectionError(_reason(error)) from error


def _version(answer: http.client.HTTPResponse) -> str | None:
    """What identifies this version of the file well enough to append to it."""
    tag = answer.headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return tag
    return answer.headers.get("Last-Modified")


def _check_room(url: str, part: _PartialFile, whole: int | None) -> None:
    folder = part.target.parent
    free = shutil.disk_usage(folder).free
    if whole is not None and whole - part.size > free:
        raise OSError(
            f"{url} needs {whole - part.size} more bytes and {folder} has {free} free; "
            f"free some space, or set MASE_CACHE to a directory on another disk"
        )


def _verify(url: str, part: _PartialFile, *, checksum: str | None, size: int | None) -> None:
    """Refuse a file that is not the expected one; one glued from pieces is fetched once more."""
    wrong = None
    if size is not None and part.size != size:
        wrong = f"{part.size} bytes instead of {size}"
    elif checksum is not None:
        method, _, wanted = checksum.partition(":")
        with part.file.open("rb") as file:
            found = hashlib.file_digest(file, method).hexdigest()
        if found != wanted.lower():
            wrong = f"{method} {found} instead of {wanted}"
    if wrong is None:
        return
    if part.resumed:
        raise _Changed(f"the pieces do not make up the file ({wrong})")
    part.drop()
    raise ValueError(
        f"{url} is not the expected file: {wrong}; it was deleted; try again, "
        f"or save the right file as {part.target}"
    )


def _passing(error: Exception) -> bool:
    """Whether trying again may help."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in BUSY
    lasting = (socket.gaierror, ssl.SSLCertVerificationError)  # no such host, no such trust
    return not isinstance(getattr(error, "reason", error), lasting)


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        return _reason(error.reason)
    if isinstance(error, TimeoutError):
        return "the server is silent"
    return str(error) or type(error).__name__


def _failed(url: str, target: Path, error: Exception) -> str:
    return (
        f"could not download {url}: {_reason(error)}; check the address and the connection and "
        f"run again, or download it elsewhere and save it as {target}"
    )


@contextmanager
def _progress(name: str, done: int, whole: int | None) -> Iterator[Callable[[int], object]]:
    """A bar with speed and remaining time on a terminal; one line in a log."""
    if not sys.stderr.isatty():
        size = f"{whole / 1e6:.1f} MB" if whole else "unknown size"
        logger.info(
            "downloading %s (%s%s)",
            name,
            size,
            f", {done} bytes already downloaded" if done else "",
        )
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=console) as bar:
        task = bar.add_task(name, total=whole, completed=done)
        yield lambda count: bar.advance(task, count)
