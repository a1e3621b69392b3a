"""Build the simulation of a circuit with Verilator and a C++ compiler, once per content.

Programs are built, kept and run in the cache: one in a project could come from anybody.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.caches import forget_oldest
from chop.files import naming, part_folder, read_json
from chop.hardware.circuit import Backend, Circuit
from chop.hardware.simulation.harness import HARNESS, PORTS_HEADER, ports_header
from chop.hardware.simulation.programs import Programs, verilator
from chop.hardware.tools import ToolError, run_together, run_tool
from chop.hardware.wave_format import WaveFormat
from chop.private_cache import keep_folder, kept_folder, private_folder

__all__ = ["Build", "build_circuit", "lint_circuit"]

PROGRAM, WARNINGS = "simulate", "warnings.txt"
VERILATE = (
    *("--cc", "--make", "json", "--prefix", "Vtop", "-Mdir", "obj", "--no-timing", "--assert"),
    *("--x-assign", "unique", "--x-initial", "unique", "--timescale-override", "1ps/1ps"),
    *("-Wall", "-Wno-fatal"),
)
TRACE: dict[WaveFormat, str] = {"vcd": "--trace", "fst": "--trace-fst"}
LIBRARIES: dict[WaveFormat, tuple[str, ...]] = {"vcd": (), "fst": ("-llz4", "-lz")}
DEFINES = {
    "VM_COVERAGE": "coverage",
    "VM_SC": "system_c",
    "VM_TIMING": "use_timing",
    "VM_TRACE": "trace",
    "VM_TRACE_FST": "trace_fst",
    "VM_TRACE_SAIF": "trace_saif",
    "VM_TRACE_VCD": "trace_vcd",
}
# unrolled circuits are long code that runs once per sample: -O1 takes more than it saves
OPTIMISED: dict[Backend, str] = {"unrolled": "-Og", "streaming": "-O2"}
JOBS = 2  # compilers at once
UNIT_BYTES = 2**21  # of sources that are compiled as one file: reading the headers takes a second
SIMULATORS = "simulators"  # in the cache
KEPT = 32  # builds in the cache
WARNING = re.compile(r"^%Warning-(\w+): (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Build:
    """A program that simulates a circuit, in a directory of its own."""

    folder: Path
    is_new: bool  # whether it was built just now

    @property
    def program(self) -> Path:
        return self.folder / PROGRAM

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of Verilator at -Wall."""
        return tuple((self.folder / WARNINGS).read_text(encoding="utf-8").splitlines())


def lint_circuit(circuit: Circuit, folder: Path, timeout: float | None = None) -> None:
    """Refuse a circuit for which Verilator has a warning at -Wall; its output is kept in `folder`.

    Raise ToolError with the first warning.
    """
    _check_language(circuit)
    logs = _logs(folder)
    tool, _ = verilator(logs)
    log = logs / f"lint-{circuit.digest[:16]}.log"
    with part_folder(folder / "lint") as private:
        sources = _write_sources(circuit, private)
        arguments = ["--lint-only", "-Wall", "-Wno-fatal", "--no-timing"]
        arguments += ["--top-module", circuit.top, *sources]
        printed = run_tool(tool, arguments, log=log, folder=private, timeout=timeout)
    if found := _warnings(printed):
        raise ToolError(
            f"Verilator has {len(found)} warnings at -Wall, the first is {found[0]}; its output "
            f"is in {log}"
        )


def build_circuit(
    circuit: Circuit,
    folder: Path,
    *,
    waves: WaveFormat | None = None,
    trace_depth: int = 3,
    skip_build: bool = False,
    timeout: float | None = None,
) -> Build:
    """Return the simulation of a circuit; one of the same content in the cache is used again.

    With `skip_build`, it must be there already; one that can write waves serves without them, too.
    Logs are kept in `folder`.
    """
    _check_language(circuit)
    logs = _logs(folder)
    programs = Programs.find(logs)
    cache = private_folder(SIMULATORS)
    kinds: tuple[WaveFormat | None, ...] = (None, *TRACE) if skip_build and not waves else (waves,)
    keys = [build_key(circuit, programs, kind, trace_depth) for kind in kinds]
    for key in keys:
        if (known := kept_folder(cache / f"build-{key}")) is not None:
            return Build(known, is_new=False)
    if skip_build:
        what = "this circuit with waves" if waves else "this circuit"
        raise ToolError(f"{cache} has no build of {what}; omit `skip_build`")
    key = keys[0]
    # one name for all builds: what a killed process left is removed by the next build
    with part_folder(cache / "build") as private:
        maker = _Maker(circuit, programs, private, logs, key, waves, trace_depth, timeout)
        maker.make(_runtime(maker, cache))
        made = keep_folder(private / "done", cache / f"build-{key}")
    forget_oldest(cache, "build-*", KEPT)
    return Build(made, is_new=True)


def build_key(
    circuit: Circuit, programs: Programs, waves: WaveFormat | None, trace_depth: int
) -> str:
    """Return a checksum of everything that a build depends on."""
    harness = (HARNESS.read_text(), ports_header(circuit))
    flags = (VERILATE, OPTIMISED[circuit.backend])
    return _key(circuit.digest, *harness, *flags, programs.key, waves, waves and trace_depth)


@dataclass(frozen=True)
class _Maker:
    """One build in a private directory."""

    circuit: Circuit
    programs: Programs
    private: Path
    logs: Path
    key: str
    waves: WaveFormat | None
    trace_depth: int
    timeout: float | None

    @property
    def obj(self) -> Path:
        return self.private / "obj"

    @property
    def facts(self) -> dict[str, Any]:
        """What Verilator says of the files that it wrote."""
        return read_json(self.obj / "Vtop.json", advice="try another version of Verilator")

    def verilate(self) -> tuple[str, ...]:
        """Write the C++ of the circuit, and return the warnings."""
        sources = _write_sources(self.circuit, self.private)
        trace = [TRACE[self.waves], "--trace-depth", str(self.trace_depth)] if self.waves else []
        printed = run_tool(
            self.programs.verilator,
            [*VERILATE, *trace, "--top-module", self.circuit.top, *sources],
            log=self.logs / f"verilator-{self.key}.log",
            folder=self.private,
            timeout=self.timeout,
        )
        return _warnings(printed)

    def compile(self, units: Sequence[tuple[str, Sequence[str]]], name: str) -> None:
        """Compile files, each with its own flags, `JOBS` at once."""
        facts = self.facts
        include = Path(facts["system"]["verilator_root"]) / "include"
        flags = ["-std=c++17", "-pthread", "-I.", f"-I{include}", f"-I{include / 'vltstd'}"]
        flags += ["-DVERILATOR=1"]
        flags += [f"-D{d}={int(facts['options'].get(o, 0))}" for d, o in DEFINES.items()]
        waves = [f"-DWAVES_{self.waves.upper()}"] if self.waves else []
        log = self.logs / f"{name}-{self.key}.log"
        self._run_compiler([[*own, *flags, *waves, "-c", file] for file, own in units], log)

    def _run_compiler(self, calls: Sequence[Sequence[str]], log: Path) -> None:
        tool = self.programs.compiler
        try:
            run_together(tool, calls, JOBS, log=log, folder=self.obj, timeout=self.timeout)
        except ToolError as error:
            if self.waves == "fst" and re.search(r"lz4|zlib|-lz\b", log.read_text("utf-8")):
                raise ToolError(
                    "FST waves need the headers of lz4 and zlib, which do not come with Verilator; "
                    "use `wave_format='vcd'`, or install them, on Debian and Ubuntu with: sudo apt "
                    f"install liblz4-dev zlib1g-dev; the output of the compiler is in {log}"
                ) from error
            raise

    def make(self, runtime: Path) -> None:
        """Compile and link the program, in `done/`."""
        (self.obj / PORTS_HEADER).write_text(ports_header(self.circuit), encoding="utf-8")
        shutil.copy(HARNESS, self.obj)
        units = _units(self.obj, self.facts, OPTIMISED[self.circuit.backend])
        self.compile(units, "compiler")
        objects = [str(Path(name).with_suffix(".o")) for name, _ in units]
        objects += [str(path) for path in sorted(runtime.glob("*.o"))]
        done = self.private / "done"
        shutil.copytree(self.private / "rtl", done)  # memories are read when the circuit starts
        program = os.path.join("..", "done", PROGRAM)
        libraries = LIBRARIES[self.waves] if self.waves else ()
        link = ["-o", program, *objects, "-pthread", *libraries]
        self._run_compiler([link], self.logs / f"linker-{self.key}.log")


def _units(obj: Path, facts: dict[str, Any], optimised: str) -> list[tuple[str, list[str]]]:
    """Write files that include the generated ones, two megabytes each; return them with flags."""
    sources = facts["sources"]
    fast = [*sources.get("classes_fast", ()), *sources.get("support_fast", ())]
    slow = [*sources.get("classes_slow", ()), *sources.get("support_slow", ())]
    units: list[tuple[str, list[str]]] = []
    for kind, files, flags in (("fast", fast, [optimised]), ("slow", slow, ["-O0"])):
        for number, group in enumerate(_grouped([Path(file) for file in files])):
            name = f"unit_{kind}_{number}.cpp"
            names = [file.name for file in group]
            if kind == "fast" and number == 0:
                names.append(HARNESS.name)
            text = "".join(f'#include "{each}"\n' for each in names)
            (obj / name).write_text(text, encoding="utf-8")
            units.append((name, flags))
    return units


def _grouped(files: Sequence[Path]) -> list[list[Path]]:
    """Return the files in groups of about the same size."""
    total = sum(file.stat().st_size for file in files)
    count = max(1, min(len(files), -(-total // UNIT_BYTES)))
    groups: list[list[Path]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda file: file.stat().st_size, reverse=True):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(file)
        sizes[smallest] += file.stat().st_size
    return [group for group in groups if group]


def _runtime(maker: _Maker, cache: Path) -> Path:
    """Write the C++ of the circuit, and return the compiled library of Verilator."""
    warnings = maker.verilate()
    sources = maker.facts["sources"].get("global", [])
    key = _key(maker.programs.key, maker.waves, *sources)
    (maker.private / "rtl" / WARNINGS).write_text("\n".join(warnings), encoding="utf-8")
    target = cache / f"runtime-{key}"
    if (known := kept_folder(target)) is not None:
        return known
    maker.compile([(str(source), ["-O0"]) for source in sources], "runtime")
    done = maker.private / "runtime"
    done.mkdir()
    for source in sources:
        name = Path(source).with_suffix(".o").name
        os.rename(maker.obj / name, done / name)
    return keep_folder(done, target)


def _write_sources(circuit: Circuit, private: Path) -> list[str]:
    """Write the files of a circuit to `rtl/`; return those to compile, relative to `private`."""
    rtl = private / "rtl"
    rtl.mkdir()
    for name, text in circuit.files.items():
        (rtl / name).write_text(text, encoding="utf-8")
    sources = [f"rtl/{name}" for name in circuit.files if Path(name).suffix in (".v", ".sv")]
    return ["-Irtl", *sources]


def _check_language(circuit: Circuit) -> None:
    if circuit.language != "verilog":
        raise ToolError(
            "Verilator simulates Verilog only, and this circuit is VHDL; emit it with "
            "`language='verilog'`, which is the same circuit"
        )


def _warnings(printed: str) -> tuple[str, ...]:
    return tuple(f"{kind} at {text}" for kind, text in WARNING.findall(printed))


def _logs(folder: Path) -> Path:
    logs = folder / "logs"
    with naming(logs):
        logs.mkdir(parents=True, exist_ok=True)
    return logs


def _key(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
