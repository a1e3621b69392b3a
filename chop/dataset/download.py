"""HTTP downloads that resume after an interruption, are verified, and appear only when complete."""

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
BACK_OFF = 1.0  # seconds before the second attempt; doubles with each further one
BLOCK = 1 << 18
BUSY = {408, 425, 429, 500, 502, 503, 504}  # HTTP codes that are worth another attempt
CUT = (TimeoutError, ConnectionError, http.client.HTTPException, urllib.error.URLError)


class _Changed(Exception):
    """The remote file has changed since the first part of it was downloaded."""


@contextmanager
def instead(advice: str) -> Iterator[None]:
    """Context in which the error of a failed download ends with `advice`."""
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
    """Download `url` to `target` unless it exists; `checksum` is `sha256:…` or `md5:…`.

    `timeout` is how long the server may be silent, in seconds. After an interruption, the bytes
    received so far stay in `target.part`, from which the next attempt or call continues.
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
    """Try until the file is complete and correct; attempts that made progress do not count."""
    failures = 0
    while failures < ATTEMPTS:
        size_before = part.size
        try:
            _fetch(url, part, size=size, timeout=timeout)
            _verify(url, part, checksum=checksum, size=size)
            return
        except _Changed as change:
            logger.warning("%s: %s; starting again", url, change)
            part.drop()
            failures += 1
        except CUT as error:
            failures = 1 if part.size > size_before else failures + 1
            if not _is_transient(error) or failures == ATTEMPTS:
                raise ConnectionError(
                    f"could not download {url}: {_reason(error)}; check the address and the "
                    f"connection and try again, or download it elsewhere and save it as "
                    f"{part.target}"
                ) from error
            wait = BACK_OFF * 2 ** (failures - 1)
            logger.warning("%s: %s; trying again in %g s", url, _reason(error), wait)
            time.sleep(wait)
    raise ValueError(f"{url} changes while it is being downloaded; try again later")


class _PartialFile:
    """The bytes received so far, and the version of the remote file that they belong to."""

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
        """Discard the bytes received so far and start with `version`."""
        self.drop()
        if version:
            self._validator.write_text(version)

    def drop(self) -> None:
        self.file.unlink(missing_ok=True)
        self._validator.unlink(missing_ok=True)
        self.resumed = False

    def finish(self) -> None:
        """Move the complete file to its target."""
        self.file.replace(self.target)
        self._validator.unlink(missing_ok=True)


def _fetch(url: str, part: _PartialFile, *, size: int | None, timeout: float) -> None:
    """Make one attempt: request the missing bytes and append them."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "mase"}
    if part.version:  # without a version, the bytes might belong to different files
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
        raise ConnectionError(f"the connection closed after {part.size} of {whole} bytes")


def _append(
    answer: http.client.HTTPResponse, part: _PartialFile, advance: Callable[[int], object]
) -> None:
    with writable(part.target.parent), part.file.open("ab") as out:
        while block := _read(answer):
            out.write(block)
            advance(len(block))


def _read(answer: http.client.HTTPResponse) -> bytes:
    """Read the next bytes; report any error as one of the network, not of the disk."""
    try:
        return answer.read1(BLOCK)
    except OSError as error:
        raise ConnectionError(_reason(error)) from error


def _version(answer: http.client.HTTPResponse) -> str | None:
    """Return the tag that identifies this version of the remote file."""
    tag = answer.headers.get("ETag") or "W/"  # weak
    return answer.headers.get("Last-Modified") if tag.startswith("W/") else tag


def _check_room(url: str, part: _PartialFile, whole: int | None) -> None:
    folder = part.target.parent
    free = shutil.disk_usage(folder).free
    if whole is not None and whole - part.size > free:
        raise OSError(
            f"{url} needs {whole - part.size} more bytes and {folder} has {free} free; "
            f"free some space, or set MASE_CACHE to a directory on another disk"
        )


def _verify(url: str, part: _PartialFile, *, checksum: str | None, size: int | None) -> None:
    """Refuse an unexpected file; one that was resumed is downloaded again from the start."""
    wrong = None
    if size is not None and part.size != size:
        wrong = f"{part.size} bytes instead of {size}"
    elif checksum is not None:
        method, _, wanted = checksum.partition(":")
        with part.file.open("rb") as file:
            digest = hashlib.file_digest(file, method).hexdigest()
        if digest != wanted.lower():
            wrong = f"{method} {digest} instead of {wanted}"
    if wrong is None:
        return
    if part.resumed:
        raise _Changed(f"the pieces do not make up the file ({wrong})")
    part.drop()
    raise ValueError(
        f"{url} is not the expected file: {wrong}; it was deleted; try again, "
        f"or save the right file as {part.target}"
    )


def _is_transient(error: Exception) -> bool:
    """Whether another attempt may succeed."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in BUSY
    permanent = (socket.gaierror, ssl.SSLCertVerificationError)  # unknown host, bad certificate
    return not isinstance(getattr(error, "reason", error), permanent)


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        return _reason(error.reason)
    if isinstance(error, TimeoutError):
        return "the server does not respond"
    return str(error) or type(error).__name__


@contextmanager
def _progress(name: str, done: int, whole: int | None) -> Iterator[Callable[[int], object]]:
    """Show a bar with speed and remaining time on a terminal, elsewhere one line in the log."""
    if not sys.stderr.isatty():
        size = f"{whole / 1e6:.1f} MB" if whole else "unknown size"
        size += f", {done} bytes already downloaded" if done else ""
        logger.info("downloading %s (%s)", name, size)
        yield lambda count: None
        return
    from rich import progress
    from rich.console import Console

    shown = progress.TextColumn("{task.description}"), progress.BarColumn()
    amounts = progress.DownloadColumn(), progress.TransferSpeedColumn()
    columns = (*shown, *amounts, progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=whole, completed=done)
        yield lambda count: bar.advance(task, count)
