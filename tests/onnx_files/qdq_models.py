"""Small models with QuantizeLinear and DequantizeLinear, with one thing changed at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from chop.onnx import ModelBuilder

STEP, WEIGHT_STEP = np.float32(0.05), np.float32(0.01)


@dataclass(frozen=True)
class Layer:
    """A layer of four channels; the defaults are those that onnxruntime fuses."""

    kind: str = "Conv"
    name: str = "layer"
    rounds_input: bool = True
    input_dtype: Any = np.uint8
    weight: Any = np.int8
    weight_zero_point: bool = True
    block_size: int = 0
    bias: Any = np.int32  # None for none, np.float32 for a plain one
    after: str = ""  # an op that reads the result
    rounds_result: bool = True
    result_dtype: Any = np.uint8
    result_zero: int = 0
    read_twice: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> Layer:
        return replace(self, **changes)


def model_of(*layers: Layer) -> Any:
    """Return the model of layers, one after the other."""
    builder = ModelBuilder("layers")
    shape = ["batch", 4, 6, 6] if layers[0].kind == "Conv" else ["batch", 4]
    x = builder.input("x", np.float32, shape)
    for layer in layers:
        x = _added(builder, layer, x)
    builder.output(x, "y", np.float32, shape)
    if layers[-1].read_twice:
        builder.output(builder.add("Neg", layers[-1].name), "negative", np.float32, shape)
    return builder.model()


def _added(b: ModelBuilder, layer: Layer, x: str) -> str:
    if layer.rounds_input:
        x = _rounded(b, x, layer.input_dtype, 0)
    operands = [x, _weight(b, layer)]
    bias = _bias(b, layer)
    if layer.kind == "MatMul":
        y = b.add("MatMul", *operands, result=layer.name)
        y = b.add("Add", y, bias) if bias else y
    else:
        place = {"pads": [1] * 4, "kernel_shape": [3, 3]} if layer.kind == "Conv" else {"transB": 1}
        operands += [bias] if bias else []
        y = b.add(layer.kind, *operands, result=layer.name, **place, **layer.attributes)
    y = _followed(b, layer.after, y)
    return _rounded(b, y, layer.result_dtype, layer.result_zero) if layer.rounds_result else y


def _followed(b: ModelBuilder, op: str, y: str) -> str:
    if op == "Clip":
        return b.add(op, y, b.constant(np.float32(-0.5)), b.constant(np.float32(0.5)))
    return b.add(op, y) if op else y


def _rounded(b: ModelBuilder, x: str, dtype: Any, zero: int) -> str:
    grid = (b.constant(STEP), b.constant(np.array(zero, dtype)))
    return b.add("DequantizeLinear", b.add("QuantizeLinear", x, *grid), *grid)


def _weight(b: ModelBuilder, layer: Layer) -> str:
    shape = {"Conv": (4, 4, 3, 3)}.get(layer.kind, (4, 4))
    codes = np.random.default_rng(0).integers(-7, 8, shape)
    name = f"{layer.name}.weight"
    if layer.weight == np.float32:
        return b.constant((codes * WEIGHT_STEP).astype(np.float32), name)
    stored = codes.astype(layer.weight)
    steps = np.full((2, 4), WEIGHT_STEP) if layer.block_size else WEIGHT_STEP
    zero = [b.constant(np.zeros(np.shape(steps), stored.dtype))] if layer.weight_zero_point else []
    blocks = {"block_size": layer.block_size, "axis": 0} if layer.block_size else {}
    return b.add("DequantizeLinear", b.constant(stored, name), b.constant(steps), *zero, **blocks)


def _bias(b: ModelBuilder, layer: Layer) -> str:
    if layer.bias is None:
        return ""
    codes = np.arange(-2, 2)
    if layer.bias == np.float32:
        return b.constant((codes * STEP * WEIGHT_STEP).astype(np.float32), f"{layer.name}.bias")
    stored = b.constant(codes.astype(layer.bias), f"{layer.name}.bias")
    return b.add("DequantizeLinear", stored, b.constant(STEP * WEIGHT_STEP))
