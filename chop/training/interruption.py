"""Signals during training: the current step is finished and saved before the run stops."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from types import FrameType
from typing import Any, NoReturn

logger = logging.getLogger(__name__)
# SLURM sends it before the time limit
REQUEUE: signal.Signals | None = getattr(signal, "SIGUSR1", None)


class Interrupted(BaseException):
    """Training was stopped by a signal and saved; like KeyboardInterrupt, not an Exception."""

    def __init__(self, received: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(received).name}; `resume` continues from here"
        )
        self.received = received

    @property
    def exit_code(self) -> int:
        return 128 + self.received


class Interruption:
    """Context in which the first SIGINT or SIGTERM only sets `received`.

    `then` says what happens before the run stops; a second signal stops it at once.
    """

    def __init__(
        self, *, requeue: bool = False, then: str = "finishing this step and saving"
    ) -> None:
        self.received: int | None = None
        self.requeue = requeue
        self.then = then
        self._handlers: dict[int, Any] = {}  # those outside the context

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            wanted = [signal.SIGINT, signal.SIGTERM]
            if self.requeue and REQUEUE is not None:
                wanted.append(REQUEUE)
            self._handlers = {number: signal.signal(number, self._note) for number in wanted}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        logger.warning("%s: %s", signal.Signals(number).name, self.then)
        self._restore()

    def stop(self, received: int, *, leads: bool = True) -> NoReturn:
        """Stop for a signal to any process of the run; the leading one asks SLURM to requeue."""
        if self.requeue and received == REQUEUE and leads:
            requeue_job()
        raise Interrupted(received)


def requeue_job() -> None:
    """Ask SLURM to run this job again, which will resume from the checkpoint."""
    job = os.environ.get("SLURM_ARRAY_JOB_ID")
    if job:
        job += "_" + os.environ["SLURM_ARRAY_TASK_ID"]
    job = job or os.environ.get("SLURM_JOB_ID")
    if not job:
        logger.warning("this is not a SLURM job, so it is not requeued")
        return
    logger.info("requeuing SLURM job %s", job)
    subprocess.run(["scontrol", "requeue", job], check=True)


def is_requeued() -> bool:
    """Whether SLURM has requeued this job."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0
