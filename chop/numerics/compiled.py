"""The C++ kernels of `kernels/rounding.cpp`: built once per machine, in the background, and kept.

One library serves all formats and widths. Building takes a C++ compiler a few seconds; until it is
there, or where there is no compiler, formats run as plain torch operations. Only MASE_FUSED=on
waits for it, and warns if it is not available.
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
from pathlib import Path
from typing import Any

from chop.libraries import load_library

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "kernels" / "rounding.cpp"
COMPILERS = ("c++", "g++", "clang++")
# exact: no contraction, no fast math; what is assumed is that nobody looks at floating-point traps
EXACT = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
FLAGS = ("-O3", "-march=native", "-std=c++17", *EXACT, "-shared", "-fPIC", "-pthread")
PAYS = 2**22  # numbers rounded by plain operations: a process that does this will do more

_TENSOR, _COUNT, _ARGUMENTS = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
SIGNATURES = {
    kind: (_TENSOR, _TENSOR, *shape, _ARGUMENTS, ctypes.c_int)
    for kind, shape in {
        "elements": (_COUNT,),
        "rows": (_COUNT, _COUNT),
        "blocks": 5 * (_COUNT,),
    }.items()
}


class Kernels:
    """The library, if there is one by now."""

    def __init__(self) -> None:
        self.library: ctypes.CDLL | None = None
        self._seen = 0
        self._builder: threading.Thread | None = None
        self._missing: str | None = None  # why there is no library
        self._is_awaited = False

    def ready(self, numel: int, *, wait: bool) -> bool:
        """Whether kernels can be called; builds them when so many numbers have been rounded that
        it pays, or, with `wait`, at once."""
        if self.library is None and (self._builder is None or wait):
            self._seen += numel
            if wait or self._seen >= PAYS:
                self._build(wait)
        return self.library is not None

    def _build(self, wait: bool) -> None:
        self._is_awaited = self._is_awaited or wait
        if self._builder is None:
            self._builder = threading.Thread(target=self._load, daemon=True)
            self._builder.start()
        if wait:
            self._builder.join()
            self._warn()

    def _load(self) -> None:
        try:
            self.library = load()
        except (OSError, RuntimeError) as error:
            self._missing = str(error)
            if not self._is_awaited:
                logger.debug("no C++ kernels (%s): formats run as plain torch operations", error)

    def _warn(self) -> None:
        """Say once why there is no library."""
        if self._missing is not None:
            logger.warning(
                "the C++ kernels that MASE_FUSED=on waits for are not available (%s): formats run "
                "as plain torch operations, which take longer",
                self._missing,
            )
            self._missing = None

    def rule(self, name: str, kind: str) -> Any:
        """The function that rounds by that rule; only where kernels are ready."""
        function = getattr(self.library, f"round_{name}")
        if function.argtypes is None:
            function.argtypes, function.restype = SIGNATURES[kind], None
        return function


KERNELS = Kernels()


def load() -> ctypes.CDLL:
    """The library for this machine, compiled if it is not in the cache yet."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *COMPILERS))), None)
    if compiler is None:
        raise FileNotFoundError(
            "no C++ compiler was found; install g++ or clang++, or name one in CXX"
        )
    rules = re.findall(r"^(?:ELEMENTS|ROWS|BLOCKS)\((\w+)\)", SOURCE.read_text(), re.MULTILINE)
    symbols = [f"round_{rule}" for rule in rules]
    command = [compiler, *FLAGS, str(SOURCE)]
    return load_library(f"rounding-{_fingerprint(compiler)}", command, symbols)


def _fingerprint(compiler: str) -> str:
    """Of all that the library depends on; home directories are shared by unlike machines."""
    features = ""
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        lines = cpus.read_text().splitlines()
        features = next(
            (line for line in lines if line.startswith(("flags", "Features"))), features
        )
    compiled = (SOURCE.read_text(), *FLAGS, os.path.realpath(compiler))
    made_of = (*compiled, platform.system(), platform.machine(), features)
    return hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
