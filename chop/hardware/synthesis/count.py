"""Counting the cells of a netlist."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from chop.hardware.synth_options import Target
from chop.hardware.synthesis.depth import depths
from chop.hardware.synthesis.netlist import Cell, Net, layer_of
from chop.hardware.synthesis.packing import num_pairs, num_shift_pairs
from chop.hardware.synthesis.resources import Resources
from chop.hardware.tools import ToolError

__all__ = ["count_cells"]

logger = logging.getLogger(__name__)

LUTS = {**{f"LUT{n}": n for n in range(1, 7)}, "INV": 1}  # inputs
SHIFT_REGISTERS = ("SRL16E", "SRLC16E")
# LUTs in a memory or a shift register, and in an adder of ECP5, whose LUTs are inside the cell
OCCUPIED = {
    **dict.fromkeys((*SHIFT_REGISTERS, "SRLC32E", "RAM32X1S", "RAM64X1S"), 1),
    **dict.fromkeys(("RAM32X1D", "RAM64X1D", "RAM128X1S", "CCU2C"), 2),
    **dict.fromkeys(("RAM32M", "RAM64M", "RAM128X1D", "RAM256X1S"), 4),
    "TRELLIS_DPR16X4": 6,
    **dict.fromkeys(("RAM32M16", "RAM64M8", "RAM256X1D", "RAM512X1S"), 8),
    **dict.fromkeys(("RAM64X8SW", "RAM32X16DR8"), 8),
}
FFS = ("FDRE", "FDSE", "FDCE", "FDPE", "FDRE_1", "FDSE_1", "FDCE_1", "FDPE_1", "TRELLIS_FF")
CARRIES = ("CARRY4", "CARRY8", "CCU2C")
DSPS = ("DSP48E1", "DSP48E2", "MULT18X18D")
BRAMS = {"RAMB18E1": 0.5, "RAMB18E2": 0.5, "RAMB36E1": 1, "RAMB36E2": 1, "DP16KD": 1, "PDPW16KD": 1}
NOTES = ("$scopeinfo", "$print", "$check")  # cells of yosys that are not hardware
# constants, buffers, and multiplexers that stand beside the LUTs
FREE = (
    *("VCC", "GND", "VHI", "VLO", "BUFG", "DCCA", "IBUF", "OBUF"),
    *("MUXF7", "MUXF8", "MUXF9", "PFUMX", "L6MUX21"),
)
COUNTED = {*LUTS, *OCCUPIED, *FFS, *CARRIES, *DSPS, *BRAMS}


def count_cells(
    cells: Sequence[Cell], target: Target, layers: Mapping[str, str]
) -> tuple[dict[str, Resources], Resources]:
    """Return the resources of each layer, and of what belongs to no layer.

    Of layers that are one module, one stands for all.
    """
    unmapped = sorted({c.kind for c in cells if c.kind.startswith("$")} - set(NOTES))
    if unmapped:
        raise ToolError(
            f"yosys cannot map cells of the type {unmapped[0]!r} to {target}; use another target"
        )
    for kind, count in Counter(cell.kind for cell in cells).items():
        if kind not in (*COUNTED, *FREE, *NOTES):
            logger.warning("%d cells of the type %r are in no count", count, kind)
    named = {layer_of(module, layers) for module in layers.values()} | {c.layer for c in cells}
    shown = [layer for layer in layers if layer in named]
    by_layer: dict[str | None, list[Cell]] = {layer: [] for layer in (*shown, None)}
    for cell in cells:
        by_layer[cell.layer].append(cell)
    deepest = depths(cells)
    added = {net for cell in cells if cell.kind.startswith("CARRY") for net in cell.nets("S")}
    rows = {
        layer: _resources(part, target, added, deepest.get(layer, 0))
        for layer, part in by_layer.items()
    }
    return {layer: row for layer, row in rows.items() if layer is not None}, rows[None]


def _resources(cells: Sequence[Cell], target: Target, added: set[Net], depth: int) -> Resources:
    counts = Counter(cell.kind for cell in cells)
    raw = sum(n for kind, n in counts.items() if kind in LUTS) + int(_weighted(counts, OCCUPIED))
    sizes = Counter({LUTS[kind]: n for kind, n in counts.items() if kind in LUTS and kind != "INV"})
    sizes[1] += counts["INV"]
    return Resources(
        luts=raw,
        packed_luts=raw - (_num_shared(cells, added) if target == "xilinx" else 0),
        ffs=sum(counts[kind] for kind in FFS),
        carries=sum(counts[kind] for kind in CARRIES),
        dsps=sum(counts[kind] for kind in DSPS),
        brams=_weighted(counts, BRAMS),
        depth=depth,
        lut_sizes={size: n for size, n in sorted(sizes.items()) if n},
    )


def _weighted(counts: Counter[str], weights: Mapping[str, float]) -> float:
    return sum(weights[kind] * n for kind, n in counts.items() if kind in weights)


def _num_shared(cells: Sequence[Cell], added: set[Net]) -> int:
    """Return the number of LUTs that share a place with another one."""
    functions = [
        frozenset(net for net in cell.inputs if isinstance(net, int))
        for cell in cells
        if cell.kind in LUTS and not added & {*cell.nets("O")}
    ]
    controls = (
        tuple(cell.nets("A0", "A1", "A2", "A3", "CE", "CLK"))
        for cell in cells
        if cell.kind in SHIFT_REGISTERS
    )
    return num_pairs([inputs for inputs in functions if len(inputs) < 6]) + num_shift_pairs(
        controls
    )
