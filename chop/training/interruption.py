"""Signals during training: the step that runs is finished, and nothing is lost."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn

logger = logging.getLogger(__name__)
REQUEUE: signal.Signals | None = getattr(
    signal, "SIGUSR1", None
)  # what SLURM sends before the time limit


class Interrupted(BaseException):
    """Training has stopped for a signal, after saving; like KeyboardInterrupt it is no error."""

    def __init__(self, received: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(received).name}; `resume` continues from here"
        )
        self.received = received

    @property
    def exit_code(self) -> int:
        return 128 + self.received


class Interruption:
    """While it is entered, SIGINT and SIGTERM only set `received`; a second one acts as ever."""

    def __init__(self, *, requeue: bool = False) -> None:
        self.received: int | None = None
        self.requeue = requeue
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            wanted = [signal.SIGINT, signal.SIGTERM]
            if self.requeue and REQUEUE is not None:
                wanted.append(REQUEUE)
            self._before = {number: signal.signal(number, self._note) for number in wanted}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        logger.warning("%s: finishing this step and saving", signal.Signals(number).name)
        self._restore()

    def stop(self, received: int, *, leads: bool = True) -> NoReturn:
        """Leave for a signal that this process or another got; one of them asks SLURM."""
        if self.requeue and received == REQUEUE and leads:
            requeue_job()
        raise Interrupted(received)


def requeue_job() -> None:
    """Ask SLURM to run this job again; it will find the checkpoint and go on."""
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
    """Whether SLURM runs this job for another time."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0
