"""Which of several processes this is, and how one of several ends."""

from __future__ import annotations

import logging
import os
import sys

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
