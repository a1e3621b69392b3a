"""Passes that write a circuit: its top module, components, memories, test bench and project."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.passes.graph.transforms.verilog.emit_cocotb import emit_cocotb_transform_pass
    from chop.passes.graph.transforms.verilog.emit_files import (
        emit_bram_transform_pass,
        emit_internal_rtl_transform_pass,
    )
    from chop.passes.graph.transforms.verilog.emit_top import emit_verilog_top_transform_pass
    from chop.passes.graph.transforms.verilog.emit_vivado import emit_vivado_project_transform_pass

__all__ = [
    "emit_bram_transform_pass",
    "emit_cocotb_transform_pass",
    "emit_internal_rtl_transform_pass",
    "emit_verilog_top_transform_pass",
    "emit_vivado_project_transform_pass",
]

__getattr__ = lazy.importer(__name__, __file__, room="passes")
