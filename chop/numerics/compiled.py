"""The C++ kernels of `kernels/rounding.cpp`: built once per machine, in the background.

One library serves all formats and widths. Building takes a few seconds; until it is
done, or without a compiler, formats run as plain torch operations. Only MASE_FUSED=on waits for
it, and warns if it is not available.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chop.system.libraries import load_library

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "kernels" / "rounding.cpp"
COMPILERS = ("c++", "g++", "clang++")
# exact: no contraction, no fast math; only floating-point traps are assumed to be unused
EXACT = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
FLAGS = ("-O3", "-march=native", "-std=c++17", *EXACT, "-shared", "-fPIC", "-pthread")
PAYS = 2**22  # elements rounded without kernels after which building the library pays off

_TENSOR, _COUNT, _ARGUMENTS = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
SIGNATURES = {
    kind: (_TENSOR, _TENSOR, *shape, _ARGUMENTS, ctypes.c_int)
    for kind, shape in {
        "elements": (_COUNT,),
        "rows": (_COUNT, _COUNT),
        "blocks": 5 * (_COUNT,),
    }.items()
}
_PLACES = 3 * (_COUNT,)
SIGNATURES["learned"] = (*4 * (_TENSOR,), *_PLACES, _ARGUMENTS, ctypes.c_int)
SIGNATURES["learned_gradients"] = (*6 * (_TENSOR,), *_PLACES, _ARGUMENTS, ctypes.c_int)
SIGNATURES["learned_widths"] = (*3 * (_TENSOR,), _COUNT, _ARGUMENTS, ctypes.c_int)
SIGNATURES["learned_errors"] = (*4 * (_TENSOR,), _COUNT, _ARGUMENTS, ctypes.c_int)


class Kernels:
    """The compiled library, if it is available."""

    def __init__(self) -> None:
        self.library: ctypes.CDLL | None = None
        self._seen = 0
        self._builder: threading.Thread | None = None
        self._missing: str | None = None  # why the library is missing
        self._is_awaited = False

    def ready(self, numel: int, *, wait: bool) -> bool:
        """Whether kernels can be called.

        Builds them once enough numbers have been rounded to pay off; with `wait`, at once."""
        if self.library is None and (self._builder is None or wait):
            self._seen += numel
            if wait or self._seen >= PAYS:
                self._build(wait)
        return self.library is not None

    def settle(self) -> None:
        """Wait until the library is loaded, or known to be missing.

        Sums of gradients have other last bits by kernels, so that a run which must be repeated with
        the same bits may not change from one way to the other at a step that depends on the time.
        """
        if self.library is None:
            self._started().join()

    def _build(self, wait: bool) -> None:
        self._is_awaited = self._is_awaited or wait
        builder = self._started()
        if wait:
            builder.join()
            self._warn()

    def _started(self) -> threading.Thread:
        """Return the thread that builds the library."""
        if self._builder is None:
            self._builder = threading.Thread(target=self._load, daemon=True)
            self._builder.start()
        return self._builder

    def _load(self) -> None:
        try:
            self.library = load()
        except (OSError, RuntimeError) as error:
            self._missing = str(error)
            if not self._is_awaited:
                logger.debug("no C++ kernels (%s): formats run as plain torch operations", error)

    def _warn(self) -> None:
        """Warn once why the library is missing."""
        if self._missing is not None:
            logger.warning(
                "MASE_FUSED=on needs the C++ kernels, which are not available (%s): formats run "
                "as plain torch operations, which take longer",
                self._missing,
            )
            self._missing = None

    def rule(self, name: str, kind: str) -> Any:
        """Return the function of that rule; kernels must be ready."""
        prefix = kind.partition("_")[2] or "round"
        function = getattr(self.library, f"{prefix}_{name}")
        if function.argtypes is None:
            function.argtypes, function.restype = SIGNATURES[kind], None
        return function


KERNELS = Kernels()


def find_compiler() -> str | None:
    """Return the path of the C++ compiler in CXX, or of another one that is installed."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *COMPILERS))), None)


def load() -> ctypes.CDLL:
    """Return the library for this machine, compiling it unless it is in the cache."""
    compiler = find_compiler()
    if compiler is None:
        raise FileNotFoundError(
            "no C++ compiler was found; install g++ or clang++, or name one in CXX"
        )
    rules = re.findall(
        r"^(?:ELEMENTS|ROWS|BLOCKS|LEARNED)\((\w+)[,)]", SOURCE.read_text(), re.MULTILINE
    )
    symbols = [f"round_{rule}" for rule in rules]
    command = [compiler, *FLAGS, str(SOURCE)]
    return load_library(f"rounding-{fingerprint(compiler, SOURCE, FLAGS)}", command, symbols)


def fingerprint(compiler: str, source: Path, flags: Sequence[str]) -> str:
    """Hash of everything a library depends on; machines may share a home directory."""
    features = ""
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        lines = cpus.read_text().splitlines()
        features = next(
            (line for line in lines if line.startswith(("flags", "Features"))), features
        )
    compiled = (source.read_text(), *flags, os.path.realpath(compiler))
    made_of = (*compiled, platform.system(), platform.machine(), features)
    return hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
