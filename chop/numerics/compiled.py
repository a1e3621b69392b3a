"""The C++ kernels of `kernels/rounding.cpp`: built once per machine, in the background, and kept.

One library serves all formats and widths. Building takes a C++ compiler a few seconds; until it is
there, or where there is no compiler, formats run as plain torch operations. Nobody waits for it,
unless told to by MASE_FUSED=on.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

from chop.files import cache_folder

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "kernels" / "rounding.cpp"
COMPILERS = ("c++", "g++", "clang++")
# exact: no contraction, no fast math; what is assumed is that nobody looks at floating-point traps
EXACT = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
FLAGS = ("-O3", "-march=native", "-std=c++17", *EXACT, "-shared", "-fPIC", "-pthread")
# a build goes on, and ends well, when the process that wanted it does not live that long
SCRIPT = 'part=$1; shift; "$@" -o "$part" && mv "$part" "$0" || { rm -f "$part"; exit 1; }'
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

    def ready(self, numel: int, *, wait: bool) -> bool:
        """Whether kernels can be called; builds them when so many numbers have been rounded that
        it pays, or, with `wait`, at once."""
        if self.library is None and (self._builder is None or wait):
            self._seen += numel
            if wait or self._seen >= PAYS:
                self._build(wait)
        return self.library is not None

    def _build(self, wait: bool) -> None:
        if self._builder is None:
            self._builder = threading.Thread(target=self._load, daemon=True)
            self._builder.start()
        if wait:
            self._builder.join()

    def _load(self) -> None:
        try:
            self.library = ctypes.CDLL(str(build()))
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            logger.debug("no C++ kernels (%s): formats run as plain torch operations", error)

    def rule(self, name: str, kind: str) -> Any:
        """The function that rounds by that rule; only where kernels are ready."""
        function = getattr(self.library, f"round_{name}")
        if function.argtypes is None:
            function.argtypes, function.restype = SIGNATURES[kind], None
        return function


KERNELS = Kernels()


def build() -> Path:
    """The library for this machine, compiled if it is not in the cache yet."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *COMPILERS))), None)
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    library = cache_folder() / f"rounding-{_fingerprint(compiler)}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        part = f"{library}.{os.getpid()}"  # others may build it at the same time
        command = ["sh", "-c", SCRIPT, str(library), part, compiler, *FLAGS, str(SOURCE)]
        quiet = subprocess.DEVNULL
        subprocess.run(command, check=True, stdout=quiet, stderr=quiet, start_new_session=True)
    return library


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
