"""Helpers for fx graphs, at the path where scripts import them from."""

from chop.ir.ops import is_seq_blocks_parameter as is_seq_blocks_parameter
from chop.ir.ops import is_tensor_constant as is_tensor_constant
from chop.passes.graph.describe.nodes import *  # noqa: F403
