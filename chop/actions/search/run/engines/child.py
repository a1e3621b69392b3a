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
    """Build the study, then measure tasks until the other end is closed."""
    from chop.actions.search.run.engines.base import reported
    from chop.actions.search.run.worker import Worker
    from chop.actions.search.spec.study_spec import unpacked

    try:
        worker = Worker(unpacked(pipe.recv()))
    except Exception as error:  # as one that any process can unpickle
        pipe.send(ValueError(f"a worker could not start: {error}"))
        return
    pipe.send("ready")
    while True:
        try:
            work = pipe.recv()
        except EOFError:  # the search is over, or was killed
            return
        for message in reported(worker, work):
            pipe.send(message)


def _end_with(parent: int) -> None:
    """Exit soon after the parent process was killed, even in the middle of a trial."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main(descriptor: int) -> None:
    """Serve the pipe with that file descriptor."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):  # the search itself handles them
        signal.signal(number, signal.SIG_IGN)
    logging.getLogger("chop").setLevel(logging.ERROR)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(Connection(descriptor))
