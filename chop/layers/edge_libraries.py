"""The C++ libraries for tables on edges, in `kernels/`.

They are built when first needed, which takes a second or two once per machine, so that a run does
not change its way of adding halfway.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from chop.libraries import load_library
from chop.numerics.compiled import FLAGS, find_compiler

logger = logging.getLogger(__name__)

KERNELS = Path(__file__).parent / "kernels"


def edge_library(name: str, symbols: Sequence[str]) -> ctypes.CDLL | None:
    """Return the library of a source file, or None where it cannot be built."""
    source, compiler = KERNELS / f"{name}.cpp", find_compiler()
    try:
        if compiler is None:
            raise FileNotFoundError("no C++ compiler was found")
        made_of = (source.read_text(), *FLAGS, os.path.realpath(compiler), *_features())
        digest = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
        return load_library(f"{name}-{digest}", [compiler, *FLAGS, str(source)], symbols)
    except (OSError, RuntimeError) as error:
        logger.debug("no C++ kernels (%s): tables on edges run as plain torch operations", error)
        return None


def _features() -> list[str]:
    """Return what the processor can do, as machines may share a home directory."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return [line for line in lines if line.startswith(("flags", "Features"))][:1]
