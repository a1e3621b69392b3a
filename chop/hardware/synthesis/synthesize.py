"""Run yosys on a circuit, once for each design, and read its netlist."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from chop.hardware.circuit import Circuit
from chop.hardware.synth_options import SynthOptions, Target
from chop.hardware.synthesis.count import count_cells
from chop.hardware.synthesis.netlist import flat_cells
from chop.hardware.synthesis.place import place_netlist
from chop.hardware.synthesis.programs import Program, find_nextpnr, find_yosys
from chop.hardware.synthesis.resources import Resources, Synthesis
from chop.system.caches import cached
from chop.system.files import part_folder, read_json, write_whole

__all__ = ["synthesize_circuit"]

logger = logging.getLogger(__name__)

LAYOUT = 1  # of the results in the cache; those of an older layout are computed again
SOURCES = (".v", ".sv")
NETLIST = "netlist.json"
MAP = {
    # no pads: a layer inside a larger design has none
    "xilinx": "synth_xilinx -family xcup -flatten -noiopad -noclkbuf",
    "ecp5": "synth_ecp5",
}


def synthesize_circuit(
    circuit: Circuit,
    *,
    target: Target = "xilinx",
    folder: Path,
    timeout: float | None = SynthOptions.timeout,
    place: bool = False,
) -> Synthesis:
    """Return the resources of a pipelined circuit, by layer; with `place`, also a clock rate.

    The result is kept in `folder`, by the content of the circuit, the target and the tool's
    version, beside the tool's output; a second call with the same circuit reads it. Calls in
    several processes may share the folder: the same circuit is synthesised once, different ones
    at the same time. Each call runs one single-threaded process.

    CPU time of the wheel: 11 s for a layer of 16 neurons with 16 inputs (2,300 LUTs), 31 s for 64
    neurons (8,100 LUTs); yosys 0.23, native: 14 s and 44 s.
    """
    _check(circuit, target, timeout, place)
    yosys = find_yosys()
    nextpnr = find_nextpnr() if place else None
    stem = f"{target}-{_key(circuit, yosys, nextpnr)}"
    file = folder / f"{stem}.json"

    def make() -> Synthesis:
        with part_folder(file) as work:
            result = _synthesized(circuit, target, yosys, work, folder / f"{stem}.log", timeout)
            if nextpnr is not None:
                log = folder / f"{stem}-place.log"
                wanted = 1e3 / circuit.clock_period
                placed = place_netlist(
                    nextpnr, work / NETLIST, circuit.top, result, wanted, log, timeout
                )
                result = replace(result, placement=placed)
        write_whole(file, json.dumps({"layout": LAYOUT, **asdict(result)}, indent=1) + "\n")
        return result

    return cached(file, lambda: _read(file), make)


def _check(circuit: Circuit, target: Target, timeout: float | None, place: bool) -> None:
    if target not in get_args(Target):
        raise ValueError(f"`target` is 'xilinx' or 'ecp5', not {target!r}")
    SynthOptions(target=target, place=place)
    if timeout is not None and not timeout > 0:
        raise ValueError(f"`timeout` is a number of seconds above 0, not {timeout}")
    if circuit.language != "verilog":
        raise ValueError(
            f"yosys reads Verilog, not {circuit.language.upper()}; emit the circuit with "
            f"`language='verilog'`"
        )
    if circuit.latency == 0:
        raise ValueError(
            "the circuit has no registers (its latency is 0 cycles), and yosys may take hours for "
            "such a circuit; emit it with pipeline stages, by a shorter `clock_period`"
        )


def _key(circuit: Circuit, *programs: Program | None) -> str:
    told = [circuit.digest, *(str(program) for program in programs)]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _read(file: Path) -> Synthesis | None:
    """Return the result in a file, or None if it cannot be read."""
    if not file.is_file():
        return None
    try:
        told = read_json(file, advice="it is computed again")
        if told.pop("layout", None) != LAYOUT:
            return None
        return Synthesis.from_json(told)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s cannot be read (%s); computing it again", file, error)
        return None


def _synthesized(
    circuit: Circuit,
    target: Target,
    yosys: Program,
    work: Path,
    log: Path,
    timeout: float | None,
) -> Synthesis:
    for name, text in circuit.files.items():
        (work / name).write_text(text, encoding="utf-8")
    started = time.perf_counter()
    command = MAP[target] + (" -abc9" if _needs_abc9(yosys, target, work) else "")
    (work / "synth.ys").write_text(_script(circuit, command), encoding="utf-8")
    yosys.run("-v", "3", "-s", "synth.ys", log=log, folder=work, timeout=timeout)
    seconds = time.perf_counter() - started
    design = read_json(work / NETLIST, advice=f"the output of {yosys} is in {log}")
    layers, other = _counted(design, circuit, target)
    total = Resources.total([*layers.values(), other])
    return Synthesis(
        **{name: getattr(total, name) for name in total.__dataclass_fields__},
        target=target,
        digest=circuit.digest,
        tool=str(yosys),
        seconds=round(seconds, 2),
        layers=layers,
        other=other,
    )


def _counted(
    design: Mapping[str, Any], circuit: Circuit, target: Target
) -> tuple[dict[str, Resources], Resources]:
    cells = flat_cells(design, circuit.top, circuit.layers)
    return count_cells(cells, target, circuit.layers)


def _needs_abc9(yosys: Program, target: Target, work: Path) -> bool:
    """Return whether the mapper that newer versions always use has to be asked for."""
    if yosys.wheel is not None:
        return False
    name = MAP[target].split()[0]
    told = yosys.run("-p", f"help {name}", log=work / "help.log", folder=work)
    return "\n    -abc9\n" in told


def _script(circuit: Circuit, command: str) -> str:
    """Return the commands: the instances in the top module stay, all below them is flattened.

    So each layer can be counted. Two networks had the same LUTs when flattened, within 0.5 %.
    """
    sources = [name for name in circuit.files if name.endswith(SOURCES)]
    top = circuit.top
    lines = [
        *(f"read_verilog -sv -I. {name}" for name in sources),
        f"hierarchy -check -top {top}",
        # other cells of yosys have types with a $, too
        f"select -set instances {top}/c:* {top}/t:$* %d {top}/t:$paramod* %u",
        "setattr -set keep_hierarchy 1 @instances",
        f"{command} -top {top}",
        f"write_json {NETLIST}",
    ]
    return "\n".join(lines) + "\n"
