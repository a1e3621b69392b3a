"""The op of layers of tables on edges."""

from chop.ir.op_spec import define

define("edge_table", "module", names="")  # its layers name the row themselves
