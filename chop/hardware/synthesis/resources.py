"""What a circuit occupies on an FPGA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chop.hardware.synth_options import Target

__all__ = ["Placement", "Resources", "Synthesis"]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The cells of a circuit or of one of its layers, as yosys has mapped them.

    `luts` is the raw count: a look-up table is one whatever its number of inputs, and so is a
    shift register or a memory in a LUT. `packed_luts` counts the places that they need: a LUT6 of
    Xilinx has two outputs, so two functions share one if they have at most five distinct inputs
    together and neither of them is part of an adder, whose LUT the carry chain occupies. A LUT4 of
    ECP5 has one output, so both counts are equal there.

    `depth` is the longest path between registers, counted in LUTs, wide multiplexers and carry
    chains, each of which is one level whatever its length. `brams` are blocks of 36 kbit for
    Xilinx, of 18 kbit for ECP5.
    """

    luts: int = 0
    packed_luts: int = 0
    ffs: int = 0
    carries: int = 0
    dsps: int = 0
    brams: float = 0
    depth: int = 0
    lut_sizes: Mapping[int, int] = field(default_factory=dict)  # inputs -> LUTs, without memories

    @classmethod
    def total(cls, parts: Iterable[Resources]) -> Resources:
        """Return the sum of parts; the depth is that of the deepest."""
        parts = list(parts)
        sizes = sorted({size for part in parts for size in part.lut_sizes})
        return Resources(
            luts=sum(part.luts for part in parts),
            packed_luts=sum(part.packed_luts for part in parts),
            ffs=sum(part.ffs for part in parts),
            carries=sum(part.carries for part in parts),
            dsps=sum(part.dsps for part in parts),
            brams=sum(part.brams for part in parts),
            depth=max((part.depth for part in parts), default=0),
            lut_sizes={n: sum(part.lut_sizes.get(n, 0) for part in parts) for n in sizes},
        )

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Resources:
        """Return what `dataclasses.asdict` wrote to a JSON file."""
        return Resources(**{**row, "lut_sizes": {int(n): c for n, c in row["lut_sizes"].items()}})


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A circuit that is placed and routed: its clock rate on a device."""

    device: str
    clock_mhz: float
    utilization: Mapping[str, tuple[int, int]]  # kind of cell -> used, available
    tool: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Synthesis(Resources):
    """The resources of a circuit and of each of its layers, and how they were found.

    `other` is what belongs to no layer: registers between layers, valid bits, handshakes.
    """

    target: Target
    digest: str  # of the circuit
    tool: str  # with its version
    seconds: float
    layers: Mapping[str, Resources]
    other: Resources
    placement: Placement | None = None

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Synthesis:
        """Return what `dataclasses.asdict` wrote to a JSON file."""
        placed = row["placement"]
        told = {
            **row,
            "lut_sizes": {int(n): count for n, count in row["lut_sizes"].items()},
            "layers": {n: Resources.from_json(layer) for n, layer in row["layers"].items()},
            "other": Resources.from_json(row["other"]),
        }
        if placed is not None:
            used = {kind: (int(n), int(of)) for kind, (n, of) in placed["utilization"].items()}
            told["placement"] = Placement(**{**placed, "utilization": used})
        return cls(**told)
