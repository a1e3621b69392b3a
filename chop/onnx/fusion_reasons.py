"""Why onnxruntime computes a quantised layer in float: the conditions that it has, in one sentence.

The conditions are those of onnxruntime 1.31 on a CPU, found by trying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from chop.onnx.onnx_graph import OnnxGraph, attribute, operand

__all__ = ["has_float_bias", "reason_for"]

BYTES = ("int8", "uint8")
LOWEST = {"int8": -128, "uint8": 0}
Q, DQ = "QuantizeLinear", "DequantizeLinear"
Reasons = Iterator[str]


def reason_for(graph: OnnxGraph, node: Any, kernel: str) -> str:
    """Return the first condition that a layer does not meet."""
    if kernel == "MatMulNBits":
        return (
            "its weights have few bits, but its input is float, which MatMulNBits rounds to 8 bits"
        )
    if node.op_type not in ("Conv", "Gemm", "MatMul"):
        return f"onnxruntime has no integer kernel for {node.op_type}"
    checks: tuple[Callable[[OnnxGraph, Any], Reasons], ...]
    checks = (_weight, _input, _bias, _gemm, _after, _float_bias)
    reasons = (reason for check in checks for reason in check(graph, node))
    unknown = "onnxruntime did not fuse it, although all conditions that are known here are met"
    return next(reasons, unknown)


def has_float_bias(graph: OnnxGraph, node: Any) -> bool:
    """Return whether a layer adds a constant in float."""
    if node.op_type in ("Conv", "Gemm"):
        return graph.dtype(operand(node, 2)) == "float32"
    readers = graph.readers.get(node.output[0], [])
    if node.op_type != "MatMul" or [reader.op_type for reader in readers] != ["Add"]:
        return False
    return any(graph.dtype(value) == "float32" for value in readers[0].input)


def _weight(graph: OnnxGraph, node: Any) -> Reasons:
    value = operand(node, 1)
    source = graph.source(value, DQ)
    if source is None:
        dtype = graph.dtype(value)
        if dtype:
            yield f"its weight is {dtype}: store int8 codes, and a {DQ} that reads them"
        else:
            yield f"its weight is computed: let a {DQ} of int8 codes give it"
        return
    dtype = graph.dtype(source.input[0])
    if dtype not in BYTES:
        yield f"its weight is {dtype or 'not a constant'}: only int8 and uint8 are fused"
    if attribute(source, "block_size", 0):
        yield "its weight has a scale for each block: use one per tensor or per channel"


def _input(graph: OnnxGraph, node: Any) -> Reasons:
    value = operand(node, 0)
    source = graph.source(value, DQ)
    if source is None:
        origin = graph.sources.get(value)
        where = "the input of the model" if origin is None else f"the result of {origin.op_type}"
        yield f"its input is {where} in float: a {Q} and a {DQ} must come before the layer"
        return
    if (dtype := _rounded_to(graph, source)) not in (*BYTES, ""):
        yield f"its input is {dtype}: only int8 and uint8 are fused"


def _bias(graph: OnnxGraph, node: Any) -> Reasons:
    value = operand(node, 2)
    if not value:
        return
    source = graph.source(value, DQ)
    if source is None and not graph.dtype(value):
        yield f"its bias is computed: let a {DQ} of int32 codes give it"
    elif source is not None and graph.dtype(source.input[0]) != "int32":
        dtype = graph.dtype(source.input[0])
        yield f"its bias has codes of {dtype or 'no constant'}: only int32 is fused"


def _gemm(graph: OnnxGraph, node: Any) -> Reasons:
    """MatMul and a sum after it become a Gemm."""
    after = graph.readers.get(node.output[0], [])
    becomes = node.op_type == "Gemm" or [reader.op_type for reader in after] == ["Add"]
    if not becomes:
        return
    if attribute(node, "beta", 1.0) != 1.0:
        yield "its beta is not 1: multiply the bias by it"
    source = graph.source(operand(node, 1), DQ)
    if source is not None and not operand(source, 2):
        yield f"the {DQ} of its weight has no zero point, which QGemm needs: give 0"


def _after(graph: OnnxGraph, node: Any) -> Reasons:
    """What reads the result; a Conv needs a rounded one, the others may return floats."""
    value, readers = _result(graph, node)
    float_result = "round it by a QuantizeLinear"
    if value in graph.outputs and node.op_type == "Conv":
        yield f"its result is an output of the model in float: {float_result}"
    if len(readers) > 1:
        ops = ", ".join(sorted({reader.op_type for reader in readers}))
        yield f"its result has several readers ({ops}): let one {Q} read it"
    for reader in readers:
        if reader.op_type == "Relu":
            yield from _relu(graph, reader)
        elif reader.op_type == "Clip":
            yield f"Clip stands between it and {Q}: let the range of the codes do what it does"
        elif reader.op_type != Q:
            yield f"{reader.op_type} reads its result in float: {float_result}"
        elif (dtype := _rounded_to(graph, reader)) not in (*BYTES, ""):
            yield f"its result is rounded to {dtype}: only int8 and uint8 are fused"


def _float_bias(graph: OnnxGraph, node: Any) -> Reasons:
    if has_float_bias(graph, node):
        yield "its bias is float32 and its result is not rounded: store int32 codes, and a " + DQ


def _result(graph: OnnxGraph, node: Any) -> tuple[str, list[Any]]:
    """Return the result of a layer and what reads it; a bias after a MatMul is part of it."""
    value = node.output[0]
    readers = graph.readers.get(value, [])
    if node.op_type == "MatMul" and [reader.op_type for reader in readers] == ["Add"]:
        value = readers[0].output[0]
        readers = graph.readers.get(value, [])
    while [reader.op_type for reader in readers] == ["Identity"]:
        value = readers[0].output[0]
        readers = graph.readers.get(value, [])
    return value, readers


def _relu(graph: OnnxGraph, relu: Any) -> Reasons:
    readers = graph.readers.get(relu.output[0], [])
    if [reader.op_type for reader in readers] != [Q]:
        yield f"Relu reads its result in float: let one {Q} follow the Relu"
        return
    dtype, zero = _rounded_to(graph, readers[0]), _zero_point(graph, readers[0])
    if dtype not in BYTES:
        yield f"its result is rounded to {dtype}: only int8 and uint8 are fused"
    elif zero != LOWEST[dtype]:
        yield (
            f"Relu stands between it and a {Q} to {dtype} with zero point {zero}: use uint8 with 0 "
            f"or int8 with -128, so that rounding does what Relu does"
        )


def _rounded_to(graph: OnnxGraph, node: Any) -> str:
    """Return the dtype of the codes of a QuantizeLinear or DequantizeLinear; "" if unknown."""
    if dtype := graph.dtype(operand(node, 2)):
        return dtype
    if node.op_type == Q:
        return "uint8"  # by the standard
    source = graph.source(operand(node, 0), Q)
    return "" if source is None else _rounded_to(graph, source)


def _zero_point(graph: OnnxGraph, node: Any) -> int:
    from onnx import numpy_helper

    tensor = graph.constants.get(operand(node, 2))
    return 0 if tensor is None else int(numpy_helper.to_array(tensor).flat[0])
