"""Which of several processes this is."""

from __future__ import annotations

import os

# each launcher counts processes in a variable of its own
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")


def is_first_process() -> bool:
    """Whether this process, of those that a launcher started, is the one to print and write."""
    return all(os.environ.get(variable, "0") == "0" for variable in RANKS)
