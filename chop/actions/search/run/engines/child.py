"""A process that measures what it is sent; `engines.processes` starts it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from multiprocessing.connection import Connection


def serve(pipe: Connection) -> None:
    """Unpack the problem, then measure tasks until the other end is closed."""
    from chop.actions.search.run.engines.base import reported
    from chop.actions.search.spec.problem import unpacked

    try:
        worker = unpacked(pipe.recv()).worker()
    except Exception as error:
        pipe.send(_plain(error))
        return
    pipe.send("ready")
    while True:
        try:
            work = pipe.recv()
        except EOFError:  # the search is over, or was killed
            return
        for said in reported(worker, work):
            pipe.send(said)


def _plain(error: Exception) -> Exception:
    """The error as one that any process can read."""
    return ValueError(f"a worker could not start: {error}")


def _end_with(parent: int) -> None:
    """A search that was killed cannot end its workers, which may be hours into a trial."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main(descriptor: int) -> None:
    """Measure what comes through the pipe of that number."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):  # the search itself is told
        signal.signal(number, signal.SIG_IGN)
    logging.getLogger("chop").setLevel(logging.ERROR)
    pipe = Connection(descriptor)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(pipe)
