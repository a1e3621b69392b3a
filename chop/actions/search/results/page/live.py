"""A page on this machine that follows a search: `ch report --live`."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import os
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from chop.actions.config import ConfigError
from chop.actions.search.results.page.page import report_page, waiting_page
from chop.actions.search.results.page.reading import read_record
from chop.actions.search.results.page.study import NoTrialsYet
from chop.actions.search.store.running import FILE as RUNNING
from chop.actions.search.store.running import is_running, read_note
from chop.actions.search.store.urls import parse_url

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")  # by which a browser of this machine may ask for the page
PAUSE = 1.0  # seconds, at least, between two looks at the search
SHARE = 0.2  # of the time, at most, that is spent on making pages
MARKED_FILES = ("", "-wal")  # of a database file: new trials are in its write-ahead log first


class LivePage:
    """The page of a search as it is now, made again when there is something new."""

    def __init__(self, find: Callable[[], Path]) -> None:
        self._find, self._lock = find, threading.Lock()
        self._version, self._page, self._not_before = "", b"", 0.0
        self._refresh()

    def current(self) -> tuple[str, bytes]:
        """Return the version of the page, which changes with its content, and the page."""
        with self._lock:
            if time.monotonic() >= self._not_before:
                # while files are moved or written, the last page is still true
                with contextlib.suppress(ConfigError, ValueError, OSError):
                    self._refresh()
            return self._version, self._page

    def _refresh(self) -> None:
        start = time.monotonic()
        try:
            file = self._find()
            version = _version(file)
            if version is None or version != self._version:
                self._make(file, version)
        except NoTrialsYet as reason:
            self._version = _digest(reason.what)
            self._page = waiting_page(reason.what, self._version).encode()
        finally:
            end = time.monotonic()
            self._not_before = end + max(PAUSE, (end - start) / SHARE)

    def _make(self, file: Path, version: str | None) -> None:
        record = read_record(file)
        version = version or _digest([(t.number, t.state) for t in record.trials], record.state)
        if version != self._version:
            self._page = report_page(record, live=version).encode()
            self._version = version


def _digest(*facts: Any) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _version(file: Path) -> str | None:
    """Return what changes when a search has news, None for a study in a database server."""
    if file.name != RUNNING:
        return _digest(file, _stamp(file))
    note = read_note(file.parent)
    if note is None or note.storage is None:
        return _digest(file, note)
    _, path = parse_url(note.storage)
    if path is None:
        return None
    stamps = [_stamp(path.with_name(path.name + end)) for end in MARKED_FILES]
    return _digest(file, note, is_running(file.parent), stamps)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class LiveServer(http.server.ThreadingHTTPServer):
    """Gives the page to browsers of this machine, and to no other."""

    daemon_threads = True

    def __init__(self, page: LivePage, port: int = 0) -> None:
        self.page = page
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise OSError(
                f"cannot serve the report at port {port} ({error.strerror}); give another --port, "
                f"or 0 for any free one"
            ) from error

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a browser has closed the connection."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "mase", ""

    def do_GET(self) -> None:
        # another web site may have a name that leads here; it must not read the page
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in NAMES}:
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        if self.path not in ("/", "/version"):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        version, page = self.server.page.current()
        content = page if self.path == "/" else version.encode()
        kind = "text/html" if self.path == "/" else "text/plain"
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing to the terminal."""


def serve(find: Callable[[], Path], port: int, started: Callable[[str], None]) -> None:
    """Serve the page of a search until Ctrl-C; `started` is called with its address."""
    with contextlib.suppress(KeyboardInterrupt), LiveServer(LivePage(find), port) as server:
        started(server.address)
        server.serve_forever(poll_interval=0.1)
