"""Out-of-memory errors: how much memory there is, and one sentence that says what to lower."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

SMALLER = "lower `batch_size`, or choose a smaller model or smaller model_args"
# what torch, CUDA and C++ say in a RuntimeError
SIGNS = re.compile(
    "(can't allocate|not enough|out of) memory|ALLOC_FAILED|bad_alloc|Invalid buffer size|"
    "Storage size calculation overflowed"
)
AMOUNT = re.compile(r"(?:[Tt]ried to|[Uu]nable to) allocate ([\d.]+) ?([KMGTPE]i?B|bytes)")


class OutOfMemory(MemoryError):
    """Out of memory; the message says for what, and what to lower."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, numpy, the operating system or torch is about memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and SIGNS.search(str(error)) is not None


@contextlib.contextmanager
def memory_for(purpose: str, advice: str = SMALLER) -> Iterator[None]:
    """Turn out-of-memory errors inside into one sentence that ends in `advice`."""
    try:
        yield
    except OutOfMemory:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"not enough memory to {purpose}{_amount(error)}; {advice}") from error


def _amount(error: BaseException) -> str:
    """The amount of memory requested last, if the error has it."""
    asked = AMOUNT.search(str(error))
    if asked is None:
        return ""
    amount = size(int(asked[1])) if asked[2] == "bytes" else f"{asked[1].rstrip('.')} {asked[2]}"
    return f" ({amount} more)"


def size(count: int) -> str:
    """Format a number of bytes for people.

    >>> size(3 * 2**30)
    '3 GiB'
    """
    for power, unit in ((60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB")):
        if count >= 2**power:
            return f"{count / 2**power:.3g} {unit}"
    return f"{count:,} bytes"


def available_memory() -> int | None:
    """Bytes that this process can still use, including swap; None if unknown."""
    about = Path("/proc/meminfo")
    if not about.exists():
        return None
    rows = dict(line.split(":") for line in about.read_text().splitlines())
    free = sum(int(rows[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree"))
    with contextlib.suppress(OSError, ValueError):  # not in a container, or one without a limit
        return min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return free
