"""Which of several processes this is, and how one of several ends."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

SAFE_PATH = "PYTHONSAFEPATH"  # as `python -P`
# each launcher counts processes in a variable of its own
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")


def is_first_process() -> bool:
    """Whether this process, of those that a launcher started, is the one to print and write."""
    return all(os.environ.get(variable, "0") == "0" for variable in RANKS)


_joined = False


def note_joined() -> None:
    """Remember that this process has computed together with others."""
    global _joined
    _joined = True


def import_path() -> list[str]:
    """The folders that this process imports from, for one that imports from the same."""
    return [os.path.abspath(folder) for folder in sys.path]


@contextlib.contextmanager
def same_import_path() -> Iterator[None]:
    """Meanwhile `python -m` does not put the current folder first, unless this process has it."""
    by_module = getattr(sys.modules["__main__"], "__spec__", None) is not None
    before = os.environ.get(SAFE_PATH)
    if by_module and os.getcwd() not in import_path():
        os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH, None)
        os.environ.update({} if before is None else {SAFE_PATH: before})


def end_process(code: int) -> None:
    """End at once if this process was one of several; else come back, to end as usual.

    Threads of torch.distributed may still want the interpreter while Python takes it apart, which
    aborts a process whose work is done.
    """
    if not _joined:
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
