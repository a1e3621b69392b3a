"""Nodes written so that onnxruntime's optimiser, which is on by default, leaves them as they are.

`tests/onnx_files/test_workarounds.py` shows each fault in a small model, and fails once
onnxruntime has cured it: then its workaround goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from chop.onnx.builder import ModelBuilder

__all__ = ["work_around_faults"]

POOLS = ("MaxPool", "AveragePool")
# what the optimiser drops, or moves roundings through
CARRIED = (
    "Identity", "Cast", "Dropout", "Expand", "Reshape", "Flatten", "Transpose", "Squeeze",
    "Unsqueeze", "Slice", "MaxPool",
)  # fmt: skip
NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}  # dropped with this constant
BETWEEN = ("Identity", "QuantizeLinear", "DequantizeLinear", "Pad")  # what the optimiser moves


def work_around_faults(builder: ModelBuilder) -> None:
    """Change the nodes of a model, but nothing of what it computes."""
    keep_pads_before_pools(builder)
    keep_second_roundings(builder)


def keep_second_roundings(builder: ModelBuilder) -> None:
    """Put Max(x, -inf) before the second of two QuantizeLinear in a row.

    onnxruntime 1.31 makes one rounding of a pair with another grid after it, and so keeps numbers
    that the first rounds away. Before that, it drops what adds 0 or multiplies by 1.
    """
    made = {name: node for node in builder.nodes for name in node.output}
    fixed = _fixed_values(builder)
    lowest = np.array(-np.inf, dtype=np.float32)
    for node in [*builder.nodes]:
        if node.op_type != "QuantizeLinear":
            continue
        before = made.get(node.input[0])
        while before is not None and before.op_type != "DequantizeLinear":
            before = made.get(_carried(builder, before, fixed))
        if before is not None and _grid(builder, before) != _grid(builder, node):
            kept = builder.add("Max", node.input[0], builder.constant(lowest))
            builder.nodes.insert(builder.nodes.index(node), builder.nodes.pop())
            node.input[0] = kept


def _fixed_values(builder: ModelBuilder) -> set[str]:
    """Return the names of the values that the optimiser can compute in advance."""
    fixed = {"", *builder.constants}
    for node in builder.nodes:
        if node.op_type == "Shape" or (
            node.op_type != "DequantizeLinear" and fixed.issuperset(node.input)
        ):
            fixed.update(node.output)
    return fixed


def _carried(builder: ModelBuilder, node: Any, fixed: Set[str]) -> str:
    """Return the input whose numbers are those of a node's result; "" for one that computes."""
    if node.op_type in CARRIED:
        return str(node.input[0])
    if node.op_type not in NEUTRAL:
        return ""
    first, second = node.input
    sides = (
        [(first, second)] if node.op_type in ("Sub", "Div") else [(first, second), (second, first)]
    )
    for x, other in sides:
        if other in fixed and _may_be(builder, other, NEUTRAL[node.op_type]):
            return str(x)
    return ""


def _may_be(builder: ModelBuilder, name: str, number: int) -> bool:
    """Return whether a value is a number throughout, or is computed in advance."""
    from onnx import numpy_helper

    stored = builder.constants.get(name)
    return stored is None or bool((numpy_helper.to_array(stored) == number).all())


def _grid(builder: ModelBuilder, node: Any) -> list[object]:
    """Return type and bytes of scale and zero point; the name of one that is computed."""
    from onnx import numpy_helper

    stored = [(name, builder.constants.get(name)) for name in node.input[1:]]
    return [
        name if x is None else (x.data_type, numpy_helper.to_array(x).tobytes())
        for name, x in stored
    ]


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
