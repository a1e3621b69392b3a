"""Synthesis: what a circuit occupies on an FPGA, layer by layer.

synthesize.py runs yosys and keeps its results; netlist.py, packing.py, depth.py and count.py read
the netlist; place.py runs nextpnr; vendors.py reads reports of Vivado and Quartus.
"""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.hardware.synthesis.resources import Placement, Resources, Synthesis
    from chop.hardware.synthesis.synthesize import synthesize_circuit
    from chop.hardware.synthesis.vendors import (
        VendorReport,
        read_quartus_report,
        read_report,
        read_vivado_report,
    )

__all__ = [
    "Placement",
    "Resources",
    "Synthesis",
    "VendorReport",
    "read_quartus_report",
    "read_report",
    "read_vivado_report",
    "synthesize_circuit",
]

__getattr__ = lazy.importer(__name__, __file__)
