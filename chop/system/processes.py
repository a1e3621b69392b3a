"""The rank of this process among several, and how such a process ends."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

SAFE_PATH = "PYTHONSAFEPATH"  # as `python -P`
# each launcher has its own variable for the rank
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")


class Terminated(SystemExit):
    """This process received SIGTERM."""


def is_first_process() -> bool:
    """Return whether this process, of those a launcher started, should print and write."""
    return all(os.environ.get(variable, "0") == "0" for variable in RANKS)


_joined = False


def note_joined() -> None:
    """Record that this process has computed together with others."""
    global _joined
    _joined = True


def import_path() -> list[str]:
    """Return the directories that this process imports from, for processes that it starts."""
    return [os.path.abspath(folder) for folder in sys.path]


@contextlib.contextmanager
def same_import_path() -> Iterator[None]:
    """Keep `python -m` inside from adding the current directory, unless this process has it."""
    by_module = getattr(sys.modules["__main__"], "__spec__", None) is not None
    previous = os.environ.get(SAFE_PATH)
    if by_module and os.getcwd() not in import_path():
        os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH, None)
        os.environ.update({} if previous is None else {SAFE_PATH: previous})


def end_process(code: int) -> None:
    """End at once if this process was one of several; otherwise return, to end as usual.

    Threads of torch.distributed may still use the interpreter during its shutdown, which aborts a
    process that has finished its work.
    """
    if not _joined:
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
