"""The C++ libraries for tables on edges, in `kernels/`.

They are built when first needed, which takes a second or two once per machine, so that a run does
not change its way of adding halfway.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from pathlib import Path

from chop.libraries import load_library
from chop.numerics.compiled import FLAGS, find_compiler, fingerprint

logger = logging.getLogger(__name__)

KERNELS = Path(__file__).parent / "kernels"


def edge_library(name: str, symbols: Sequence[str]) -> ctypes.CDLL | None:
    """Return the library of a source file, or None where it cannot be built."""
    source, compiler = KERNELS / f"{name}.cpp", find_compiler()
    try:
        if compiler is None:
            raise FileNotFoundError("no C++ compiler was found")
        built = f"{name}-{fingerprint(compiler, source, FLAGS)}"
        return load_library(built, [compiler, *FLAGS, str(source)], symbols)
    except (OSError, RuntimeError) as error:
        logger.debug("no C++ kernels (%s): tables on edges run as plain torch operations", error)
        return None
