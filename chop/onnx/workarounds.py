"""Nodes written so that onnxruntime's optimiser, which is on by default, leaves them as they are.

`tests/onnx_files/test_workarounds.py` shows each fault in a small model, and fails once
onnxruntime has cured it: then its workaround goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from chop.onnx.builder import ModelBuilder

__all__ = ["work_around_faults"]

POOLS = ("MaxPool", "AveragePool")
CARRIED = ("Identity", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "MaxPool")
BETWEEN = ("Identity", "QuantizeLinear", "DequantizeLinear", "Pad")  # what the optimiser moves


def work_around_faults(builder: ModelBuilder) -> None:
    """Change the nodes of a model, but nothing of what it computes."""
    keep_pads_before_pools(builder)
    keep_second_roundings(builder)


def keep_second_roundings(builder: ModelBuilder) -> None:
    """Put Max(x, -inf) before the second of two QuantizeLinear in a row.

    onnxruntime 1.31 makes one rounding of a pair with another grid after it, and so keeps numbers
    that the first rounds away.
    """
    made = {node.output[0]: node for node in builder.nodes}
    lowest = np.array(-np.inf, dtype=np.float32)
    for node in [*builder.nodes]:
        if node.op_type != "QuantizeLinear":
            continue
        before = made.get(node.input[0])
        while before is not None and before.op_type in CARRIED:
            before = made.get(before.input[0])
        if before is None or before.op_type != "DequantizeLinear":
            continue
        if _grid(builder, before) != _grid(builder, node):
            kept = builder.add("Max", node.input[0], builder.constant(lowest))
            builder.nodes.insert(builder.nodes.index(node), builder.nodes.pop())
            node.input[0] = kept


def _grid(builder: ModelBuilder, node: Any) -> list[bytes | None]:
    """Return scale and zero point of a node as bytes, None for those that are computed."""
    found = (builder.constants.get(name) for name in node.input[1:])
    return [None if x is None else bytes(x.raw_data) for x in found]


def keep_pads_before_pools(builder: ModelBuilder) -> None:
    """Name the axes of each Pad before a pool, which onnxruntime 1.31 then does not fuse.

    It fuses a Pad with zeros into the pool, and so takes them for -inf in max pooling; and if they
    are more than the window allows, the file does not load.
    """
    readers: dict[str, list[Any]] = {}
    for node in builder.nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in builder.nodes:
        if node.op_type != "Pad" or len(node.input) > 3 or not _meets_pool(node, readers):
            continue
        rank = builder.constants[node.input[1]].dims[0] // 2
        missing = [""] * (3 - len(node.input))
        node.input.extend([*missing, builder.constant(np.arange(rank))])


def _meets_pool(node: Any, readers: Mapping[str, Iterable[Any]]) -> bool:
    """Return whether a pool reads a node, perhaps through nodes that only carry its values."""
    return any(
        reader.op_type in POOLS or (reader.op_type in BETWEEN and _meets_pool(reader, readers))
        for name in node.output
        for reader in readers.get(name, ())
    )
