"""Place and route a netlist for ECP5, for a clock rate."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

from chop.hardware.synthesis.programs import Program
from chop.hardware.synthesis.resources import Placement, Resources
from chop.hardware.tools import ToolError
from chop.system.files import read_json, write_whole

__all__ = ["place_netlist"]

# flag -> device, LUT4, multipliers, blocks of memory
DEVICES = {
    "--25k": ("LFE5U-25F", 24288, 28, 56),
    "--45k": ("LFE5U-45F", 43848, 72, 108),
    "--85k": ("LFE5U-85F", 83640, 156, 208),
}
FILL = 0.8  # of the LUTs; the ends of carry chains need more than yosys counts
REPORT, REGISTERED = "place.json", "registered.json"
CLOCK = "clk"


def place_netlist(
    nextpnr: Program,
    netlist: Path,
    top: str,
    needed: Resources,
    target_mhz: float,
    log: Path,
    timeout: float | None,
) -> Placement:
    """Place a circuit on the smallest ECP5 of speed grade 6 that holds it, and return its clock.

    It is placed without pads, as a block inside a larger design: its ports are not limited by the
    pins of a package. A register at each bit of a port makes the clock rate that of all paths.
    """
    flag = _device(needed)
    design = read_json(netlist, advice="synthesise the circuit again")
    _add_registers(design["modules"][top])
    write_whole(netlist.with_name(REGISTERED), json.dumps(design))
    started = time.perf_counter()
    nextpnr.run(
        flag,
        *("--json", REGISTERED, "--report", REPORT, "--freq", f"{target_mhz:g}"),
        *("--out-of-context", "--timing-allow-fail", "--seed", "1"),
        log=log,
        folder=netlist.parent,
        timeout=timeout,
    )
    told = read_json(netlist.parent / REPORT, advice=f"the output of {nextpnr} is in {log}")
    rates = [row["achieved"] for row in told["fmax"].values()]
    if not rates:
        raise ToolError(f"{nextpnr} found no path between registers, so there is no clock rate")
    return Placement(
        device=DEVICES[flag][0],
        clock_mhz=round(min(rates), 2),
        utilization={
            kind: (row["used"], row["available"])
            for kind, row in told["utilization"].items()
            if row["used"]
        },
        tool=str(nextpnr),
        seconds=round(time.perf_counter() - started, 2),
    )


def _add_registers(module: dict[str, Any]) -> None:
    """Put a register between each bit of a port, except the clock, and what it leads to."""
    ports, cells = module["ports"], module["cells"]
    used = [row["bits"] for row in (*ports.values(), *module["netnames"].values())]
    used += [bits for cell in cells.values() for bits in cell["connections"].values()]
    new = itertools.count(1 + max(net for nets in used for net in nets if isinstance(net, int)))
    for name, port in ports.items():
        for i, inside in enumerate(port["bits"] if name != CLOCK else ()):
            port["bits"][i] = outside = next(new)
            ends = (outside, inside) if port["direction"] == "input" else (inside, outside)
            cells[f"{name}_register_{i}"] = _register(ports[CLOCK]["bits"][0], *ends)


def _register(clock: int, data: int | str, output: int | str) -> dict[str, Any]:
    return {
        "type": "TRELLIS_FF",
        # the space tells a text from a binary number
        "parameters": {"CEMUX": "1 ", "CLKMUX": "CLK", "GSR": "DISABLED", "LSRMUX": "LSR"},
        "attributes": {},
        "port_directions": {"CLK": "input", "DI": "input", "LSR": "input", "Q": "output"},
        "connections": {"CLK": [clock], "DI": [data], "LSR": ["0"], "Q": [output]},
    }


def _device(needed: Resources) -> str:
    for flag, (_, luts, multipliers, memories) in DEVICES.items():
        fits = max(needed.luts, needed.ffs) <= FILL * luts
        if fits and needed.dsps <= multipliers and needed.brams <= memories:
            return flag
    raise ValueError(
        f"the circuit has {needed.luts:,} LUTs, {needed.ffs:,} registers, {needed.dsps} "
        f"multipliers and {needed.brams:g} memories, which no ECP5 holds; emit a smaller one"
    )
