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

CODED = ("QuantizeLinear", "DequantizeLinear")
JOINING = ("Add", "Mul", "Concat", "Where")  # ops of which the optimiser takes all inputs as codes
FEW_BITS = (2, 3, 21, 22)  # onnx.TensorProto: UINT8, INT8, UINT4, INT4
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
    keep_scales_per_channel(builder)
    keep_float_inputs(builder)
    keep_second_roundings(builder)


def keep_scales_per_channel(builder: ModelBuilder) -> None:
    """Put Max(x, -inf) before and after codes with a scale for each channel.

    onnxruntime 1.31 replaces ops between a DequantizeLinear and a QuantizeLinear by ops on codes,
    also by some that take one scale only: the file does not load, or does not run, or gives other
    numbers. Weights with a scale for each row of results are right.
    """
    readers = _readers(builder)
    for node in [*builder.nodes]:
        grid = builder.constants.get(node.input[1]) if node.op_type in CODED else None
        if grid is None or len(grid.dims) != 1:
            continue
        place = builder.nodes.index(node)
        if node.op_type == "QuantizeLinear":
            node.input[0] = _insert_max(builder, place, node.input[0])
            continue
        wrong = [
            (r, i) for r, i in readers.get(node.output[0], ()) if _misread(builder, node, r, i)
        ]
        kept = _insert_max(builder, place + 1, node.output[0]) if wrong else ""
        for reader, i in wrong:
            reader.input[i] = kept


def keep_float_inputs(builder: ModelBuilder) -> None:
    """Put Max(x, -inf) after weights of at most 8 bits that multiply floats.

    onnxruntime 1.31 makes a MatMulNBits of such a product, which rounds the floats to 8 bits.
    """
    made = {name: node for node in builder.nodes for name in node.output}
    fixed = _fixed_values(builder)
    for node in [*builder.nodes]:
        if node.op_type not in ("MatMul", "Gemm") or _options(node).get("transB"):
            continue
        weight = made.get(node.input[1])
        if weight is None or weight.op_type != "DequantizeLinear":
            continue
        codes = builder.constants.get(weight.input[0])
        if codes is None or codes.data_type not in FEW_BITS:
            continue
        if _decoded(builder, node.input[0], made, fixed) is None:
            node.input[1] = _insert_max(builder, builder.nodes.index(node), node.input[1])


def _misread(builder: ModelBuilder, node: Any, reader: Any, place: int) -> bool:
    """Return whether onnxruntime may take one scale for all that a DequantizeLinear has."""
    codes = builder.constants.get(node.input[0])
    if codes is None:
        return True
    rank, turned = len(codes.dims), _options(reader).get("transB")
    rows = {"Conv": 0, "Gemm": 0 if turned else 1, "MatMul": rank - 1}
    if reader.op_type in rows and rank > 1:
        return place == 0 or _options(node).get("axis", 1) % rank != rows[reader.op_type]
    return reader.op_type in JOINING


def _options(node: Any) -> dict[str, int]:
    """Return the attributes of a node that are integers."""
    return {a.name: a.i for a in node.attribute}


def _insert_max(builder: ModelBuilder, place: int, value: str) -> str:
    """Add Max(x, -inf) as the node at a place, and return the name of its result."""
    kept = builder.add("Max", value, builder.constant(np.array(-np.inf, dtype=np.float32)))
    builder.nodes.insert(place, builder.nodes.pop())
    return kept


def _readers(builder: ModelBuilder) -> Mapping[str, list[tuple[Any, int]]]:
    """Return the nodes that take each value, and as which input."""
    readers: dict[str, list[tuple[Any, int]]] = {}
    for node in builder.nodes:
        for place, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, place))
    return readers


def keep_second_roundings(builder: ModelBuilder) -> None:
    """Put Max(x, -inf) before the second of two QuantizeLinear in a row.

    onnxruntime 1.31 makes one rounding of a pair with another grid after it, and so keeps numbers
    that the first rounds away. Before that, it drops what adds 0 or multiplies by 1.
    """
    made = {name: node for node in builder.nodes for name in node.output}
    fixed = _fixed_values(builder)
    for node in [*builder.nodes]:
        if node.op_type != "QuantizeLinear":
            continue
        before = _decoded(builder, node.input[0], made, fixed)
        if before is not None and _grid(builder, before) != _grid(builder, node):
            node.input[0] = _insert_max(builder, builder.nodes.index(node), node.input[0])


def _fixed_values(builder: ModelBuilder) -> set[str]:
    """Return the names of the values that the optimiser can compute in advance."""
    fixed = {"", *builder.constants}
    for node in builder.nodes:
        if node.op_type == "Shape" or (
            node.op_type != "DequantizeLinear" and fixed.issuperset(node.input)
        ):
            fixed.update(node.output)
    return fixed


def _decoded(
    builder: ModelBuilder, value: str, made: Mapping[str, Any], fixed: Set[str]
) -> Any | None:
    """Return the DequantizeLinear whose numbers a value has, if there is one."""
    node = made.get(value)
    while node is not None and node.op_type != "DequantizeLinear":
        node = made.get(_carried(builder, node, fixed))
    return node


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
    readers = _readers(builder)
    for node in builder.nodes:
        if node.op_type != "Pad" or len(node.input) > 3 or not _meets_pool(node, readers):
            continue
        rank = builder.constants[node.input[1]].dims[0] // 2
        missing = [""] * (3 - len(node.input))
        node.input.extend([*missing, builder.constant(np.arange(rank))])


def _meets_pool(node: Any, readers: Mapping[str, Iterable[tuple[Any, int]]]) -> bool:
    """Return whether a pool reads a node, perhaps through nodes that only carry its values."""
    return any(
        reader.op_type in POOLS or (reader.op_type in BETWEEN and _meets_pool(reader, readers))
        for name in node.output
        for reader, _ in readers.get(name, ())
    )
