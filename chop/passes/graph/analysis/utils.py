"""Helpers for fx graphs, at the path where scripts import them from."""

from chop.ir.ops import is_seq_blocks_parameter, is_tensor_constant
from chop.passes.graph.describe.nodes import (
    fetch_attr,
    first_computing,
    get_hardware_nodes,
    get_input_nodes,
    get_output_nodes,
    last_computing,
    load_arg,
    match_and_filter,
    outer_nodes,
)

__all__ = [
    "fetch_attr",
    "first_computing",
    "get_hardware_nodes",
    "get_input_nodes",
    "get_output_nodes",
    "is_seq_blocks_parameter",
    "is_tensor_constant",
    "last_computing",
    "load_arg",
    "match_and_filter",
    "outer_nodes",
]
