"""Build or run a test bench with cocotb's runner; a process of its own.

python -m chop.hardware.cocotb_runner JOB, where JOB is the arguments of one step as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIMESCALE = ("1ns", "1ps")


def build(sources: list[str], top: str, folder: str) -> None:
    """Compile the sources to the program `top` in a directory."""
    from cocotb_tools.runner import get_runner

    get_runner("verilator").build(
        sources=sources, hdl_toplevel=top, build_dir=folder, waves=True, timescale=TIMESCALE
    )


def test(bench: str, top: str, folder: str, work: str, waves: bool) -> None:
    """Run the tests of a bench in the directory `work` with the program in `folder`."""
    from cocotb_tools.runner import get_runner

    file = Path(bench)
    sys.path.insert(0, str(file.parent))
    get_runner("verilator").test(
        test_module=file.stem,
        hdl_toplevel=top,
        hdl_toplevel_lang="verilog",
        build_dir=folder,
        test_dir=work,
        results_xml=str(Path(work) / "results.xml"),
        waves=waves,
    )


def main(job: dict[str, Any]) -> None:
    """Do one step; tests that fail are told in results.xml, under pytest too."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    steps: dict[str, Callable[..., None]] = {"build": build, "test": test}
    steps[job.pop("step")](**job)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
