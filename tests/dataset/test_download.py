"""Downloads against a real server on this machine that misbehaves in every way we know."""

import errno
import hashlib
import logging
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from chop.dataset import download as download_module
from chop.dataset.download import download

DATA = bytes(range(256)) * 4096  # a mebibyte
SHA256 = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
MD5 = f"md5:{hashlib.md5(DATA).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves `data`; the other attributes say how badly."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/file"
        self.data, self.tag, self.ranges, self.length = DATA, '"one"', True, True
        self.kind, self.cut_after, self.cuts, self.silence = "application/octet-stream", 0, 0, 0.0
        self.errors: list[int] = []  # answers before the first good one
        self.asked: list[dict[str, str]] = []  # the headers of every request


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_args):
        pass

    def do_GET(self):
        server, headers = self.server, dict(self.headers)
        server.asked.append(headers | {"path": self.path})
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", server.url)
            return self.end_headers()
        if server.errors:
            return self.send_error(server.errors.pop(0))
        start = self._start()
        if start >= len(server.data) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.data)}")
            return self.end_headers()
        return self._send(start)

    def _start(self):
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = self.headers.get("If-Range") in (None, self.server.tag)
        return int(wanted[1]) if wanted and same and self.server.ranges else 0

    def _send(self, start):
        server, body = self.server, self.server.data[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", server.kind)
        if server.length:
            self.send_header("Content-Length", str(len(body)))
        if server.tag:
            self.send_header("ETag", server.tag)
        if start:
            whole = len(server.data)
            self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
        self.end_headers()
        if server.cuts:
            server.cuts -= 1
            body = body[: server.cut_after]
        half = len(body) // 2
        try:
            self.wfile.write(body[:half])
            self.wfile.flush()
            time.sleep(server.silence)
            self.wfile.write(body[half:])
        except ConnectionError:
            pass  # the client had enough
        self.close_connection = True


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download_module, "BACK_OFF", 0.01)
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "cache" / "set" / "file.bin"


def left(target):
    """What lies beside the target, apart from its lock."""
    return sorted(file.name for file in target.parent.iterdir() if not file.name.startswith("."))


@pytest.mark.parametrize("checksum", [None, SHA256, MD5, SHA256.upper().replace("SHA", "sha")])
def test_a_file_is_fetched_once_and_nothing_else_is_left(server, target, checksum):
    for _ in range(2):
        assert download(server.url, target, checksum=checksum, size=len(DATA)) == target
        assert target.read_bytes() == DATA
    assert len(server.asked) == 1
    assert left(target) == ["file.bin"]


def test_a_redirect_is_followed(server, target):
    download(server.url.replace("file", "elsewhere"), target)
    assert target.read_bytes() == DATA


def test_a_cut_connection_is_resumed_where_it_stopped(server, target):
    server.cut_after, server.cuts = 300_000, 3
    download(server.url, target, checksum=SHA256)
    assert target.read_bytes() == DATA
    starts = [asked.get("Range") for asked in server.asked]
    assert starts == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]
    assert left(target) == ["file.bin"]


def test_a_later_call_goes_on_where_an_earlier_one_failed(server, target, monkeypatch):
    server.cut_after, server.cuts = 300_000, 1
    monkeypatch.setattr(download_module, "ATTEMPTS", 1)
    with pytest.raises(ConnectionError, match="closed after 300000 of 1048576 bytes"):
        download(server.url, target)
    assert not target.exists()
    download(server.url, target)
    assert target.read_bytes() == DATA
    assert server.asked[-1]["Range"] == "bytes=300000-"


def test_a_server_without_ranges_is_asked_for_the_whole_again(server, target):
    server.cut_after, server.cuts, server.ranges = 300_000, 2, False
    download(server.url, target, checksum=SHA256)
    assert target.read_bytes() == DATA


def test_without_a_version_nothing_is_glued_together(server, target):
    server.cut_after, server.cuts, server.tag = 300_000, 1, None
    download(server.url, target)
    assert target.read_bytes() == DATA
    assert all("Range" not in asked for asked in server.asked)


def test_a_file_that_changed_meanwhile_is_fetched_from_its_beginning(server, target, monkeypatch):
    server.cut_after, server.cuts = 300_000, 1
    monkeypatch.setattr(download_module, "ATTEMPTS", 1)
    with pytest.raises(ConnectionError):
        download(server.url, target)
    server.data, server.tag = DATA[::-1], '"two"'
    download(server.url, target)
    assert target.read_bytes() == DATA[::-1]


@pytest.mark.parametrize(("part", "requests"), [(b"x" * 1000, 2), (DATA, 1), (DATA * 2, 2)])
def test_a_wrong_or_too_long_part_is_fetched_again_and_a_whole_one_not(
    server, target, part, requests
):
    target.parent.mkdir(parents=True)
    target.with_name("file.bin.part").write_bytes(part)
    target.with_name("file.bin.part.version").write_text(server.tag)
    download(server.url, target, checksum=SHA256)
    assert target.read_bytes() == DATA
    assert len(server.asked) == requests


def test_a_wrong_checksum_is_refused_and_leaves_nothing(server, target):
    with pytest.raises(ValueError, match=r"is not the expected file: md5 .* instead of 00"):
        download(server.url, target, checksum="md5:00")
    assert left(target) == []


@pytest.mark.parametrize("length", [True, False])
def test_a_wrong_size_is_refused(server, target, length):
    server.length = length
    with pytest.raises(ValueError, match=r"1048576 bytes (long, not|instead of) 7"):
        download(server.url, target, size=7)
    assert not target.exists()


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_missing_file_is_refused_at_once_with_the_fix(server, target, status):
    server.errors = [status] * 9
    with pytest.raises(ConnectionError, match=f"{status}.*save it as {re.escape(str(target))}"):
        download(server.url, target)
    assert len(server.asked) == 1


def test_a_busy_server_is_asked_again(server, target):
    server.errors = [503, 429, 500]
    download(server.url, target)
    assert target.read_bytes() == DATA


def test_a_server_that_stays_busy_is_given_up(server, target):
    server.errors = [503] * 99
    with pytest.raises(ConnectionError, match="503"):
        download(server.url, target)
    assert len(server.asked) == download_module.ATTEMPTS


def test_a_silent_server_is_given_up(server, target, monkeypatch):
    server.silence, server.ranges = 0.6, False
    monkeypatch.setattr(download_module, "ATTEMPTS", 2)
    with pytest.raises(ConnectionError, match=r"the server does not respond|timed out"):
        download(server.url, target, timeout=0.1)
    assert not target.exists()


def test_a_slow_server_is_waited_for(server, target):
    server.silence = 0.3
    download(server.url, target, timeout=2)
    assert target.read_bytes() == DATA


def test_a_web_page_instead_of_data_is_refused(server, target):
    server.kind = "text/html; charset=utf-8"
    with pytest.raises(ValueError, match=r"web page instead of the file.*browser"):
        download(server.url, target)
    assert left(target) == []


def test_no_such_host_is_refused_at_once(target):
    with pytest.raises(ConnectionError, match=r"could not download http://nowhere\.invalid/x"):
        download("http://nowhere.invalid/x", target)


def test_two_at_once_fetch_it_once(server, target):
    server.silence = 0.2
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: download(server.url, target), range(4)))
    assert results == [target] * 4
    assert target.read_bytes() == DATA
    assert len(server.asked) == 1


def test_a_folder_that_cannot_be_written_is_refused(server, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(OSError, match=r"cannot write to .*cache.*set MASE_CACHE"):
        download(server.url, tmp_path / "cache" / "file.bin")
    assert not server.asked


def test_a_disk_without_room_is_refused_before_the_download(server, target, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(download_module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match=r"needs 1048576 more bytes and .* has 1000 free.*MASE_CACHE"):
        download(server.url, target)


def test_a_disk_that_fills_up_is_named_and_keeps_what_came(server, target, monkeypatch):
    def full(_answer, part, _advance):
        part.file.write_bytes(DATA[:1000])
        with download_module.writable(part.target.parent):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(download_module, "_append", full)
        with pytest.raises(OSError, match="No space left on device; free some space"):
            download(server.url, target)
    download(server.url, target)
    assert target.read_bytes() == DATA
    assert server.asked[-1]["Range"] == "bytes=1000-"


def test_a_log_gets_one_line_and_a_terminal_a_bar(server, target, caplog, capsys, monkeypatch):
    caplog.set_level(logging.INFO, "chop")
    download(server.url, target)
    assert [r.getMessage() for r in caplog.records] == ["downloading file.bin (1.0 MB)"]
    assert capsys.readouterr() == ("", "")
    target.unlink()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    download(server.url, target)
    assert len(caplog.records) == 1
    assert "file.bin" in capsys.readouterr().err
