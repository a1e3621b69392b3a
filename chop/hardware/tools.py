"""External tools: where they are, and how they are run."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from chop.extras import install_command

__all__ = ["Tool", "ToolError", "need_package", "run_together", "run_tool"]

logger = logging.getLogger(__name__)

INSTALL = install_command("hardware")


POLL, LONG = 0.02, 3600.0  # seconds to wait for one of several processes, and for a single one


class ToolError(OSError):
    """A tool is missing, failed or took too long; the message is one sentence with the fix."""


@dataclass(frozen=True)
class Tool:
    """A program that can be started, and the environment that it needs."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def need_package(name: str, what: str) -> None:
    """Refuse, in one sentence, to go on without a Python package of the extra `hardware`."""
    if importlib.util.find_spec(name) is None:
        raise ToolError(f"{what} needs {name}; install it with: {INSTALL}")


def find_program(*names: str) -> str | None:
    """Return the path of the first of these programs that is installed."""
    return next((path for name in names if (path := shutil.which(name))), None)


def run_tool(
    tool: Tool,
    arguments: Sequence[str],
    *,
    log: Path,
    folder: Path,
    timeout: float | None = None,
) -> str:
    """Run a tool in `folder` and return what it printed, which is also kept in the file `log`.

    A failure, a timeout or Ctrl-C ends the tool with all processes that it started.
    """
    return run_together(tool, [arguments], 1, log=log, folder=folder, timeout=timeout)


def run_together(
    tool: Tool,
    calls: Sequence[Sequence[str]],
    jobs: int,
    *,
    log: Path,
    folder: Path,
    timeout: float | None = None,
) -> str:
    """Run a tool once per list of arguments, `jobs` at once; otherwise as `run_tool`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    end = math.inf if timeout is None else time.monotonic() + timeout
    waiting = list(calls)
    running: list[subprocess.Popen[bytes]] = []
    code = 0
    with log.open("w", encoding="utf-8") as output, ExitStack() as stack:
        while not code and (waiting or running):
            while waiting and len(running) < jobs:
                running.append(_started(tool, waiting.pop(0), output, folder, stack))
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].wait(POLL if len(running) > 1 else min(LONG, end - time.monotonic()))
            if time.monotonic() > end:
                raise ToolError(
                    f"{tool.name} took longer than {timeout:g} s and was stopped; allow more with "
                    f"`timeout`, or use a smaller design; its output is in {log}"
                )
            code = next((process.returncode for process in running if process.poll()), 0)
            running = [process for process in running if process.poll() is None]
    printed = log.read_text(encoding="utf-8", errors="replace")
    if code:
        raise ToolError(f"{tool.name} failed: {_reason(printed, code)}; its output is in {log}")
    return printed


def _started(
    tool: Tool, arguments: Sequence[str], output: IO[str], folder: Path, stack: ExitStack
) -> subprocess.Popen[bytes]:
    """Start a tool, which `stack` ends."""
    command = [*tool.command, *arguments]
    logger.debug("%s: %s", tool.name, shlex.join(command))
    with _signals_deferred():
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | dict(tool.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no process of a tool behind."""
    if process.poll() == 0:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # one that was killed may have left others
    process.wait()


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block ends: they would leave a process unknown."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(n, lambda number, frame: arrived.append(number)) for n in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
        for late in arrived:
            signal.raise_signal(late)


def _reason(printed: str, code: int) -> str:
    """Return the first error that a tool printed."""
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines[-1:] or [f"exit code {code}"])[0][:300].rstrip(".;")
