"""Which layers of an ONNX file onnxruntime computes with integer kernels, and why not others."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from chop.onnx.fusion_reasons import has_float_bias, reason_for
from chop.onnx.onnx_graph import OnnxGraph, operand
from chop.onnx.packages import need_package
from chop.onnx.runtime import open_session, session_options

__all__ = ["INTEGER_KERNELS", "FusionReport", "LayerKernel", "fusion_report"]

INTEGER_KERNELS = frozenset(
    [
        "QLinearConv",
        "QLinearMatMul",
        "QGemm",
        "ConvInteger",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "QLinearAdd",
        "QLinearMul",
        "QLinearAveragePool",
        "QLinearGlobalAveragePool",
        "QLinearConcat",
        "QLinearSigmoid",
        "QLinearLeakyRelu",
        "QLinearSoftmax",
        "QLinearReduceMean",
        "QLinearWhere",
        "QAttention",
    ]
)
# the input of an op that is its weight
WEIGHTS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN"), 1),
    **dict.fromkeys(("MatMulInteger", "ConvInteger", "FusedConv", "FusedGemm", "FusedMatMul"), 1),
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulNBits"), 1),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), 3),
}
# what onnxruntime adds to the names of nodes
ADDED = re.compile(r"^fused |/MatMulAddFusion$|_token_\d+$|_nchwc$|_transpose_optimizer.*$")

ROUNDED_BIAS = "onnxruntime rounds its float bias to int32"


@dataclass(frozen=True)
class LayerKernel:
    """A node with weights, and the kernel that computes it."""

    name: str
    op: str
    kernel: str  # "" if onnxruntime needs none: the layer is computed when the model is loaded
    reason: str = ""  # why it is computed in float
    note: str = ""  # what else changes its results

    @property
    def integer(self) -> bool:
        return self.kernel in INTEGER_KERNELS


@dataclass(frozen=True)
class FusionReport:
    """The layers of a model in order, and how many kernels of each op the optimised model has."""

    layers: tuple[LayerKernel, ...]
    kernels: dict[str, int]

    @property
    def num_integer_kernels(self) -> int:
        """How many nodes of the optimised model are integer kernels."""
        return sum(count for op, count in self.kernels.items() if op in INTEGER_KERNELS)

    @property
    def in_float(self) -> tuple[LayerKernel, ...]:
        """The layers that are computed in float."""
        return tuple(layer for layer in self.layers if layer.reason)

    def table(self) -> str:
        """Return one row per layer."""
        rows = [
            {
                "Layer": x.name,
                "Op": x.op,
                "Kernel": x.kernel or "none",
                "In float because": x.reason,
            }
            for x in self.layers
        ]
        return tabulate(rows, headers="keys")


def fusion_report(file: str | Path | Any, *, threads: int = 1) -> FusionReport:
    """Let onnxruntime optimise a file or an `onnx.ModelProto`, and look at the result."""
    need_package("onnx", "the report on integer kernels")
    given, optimised = _loaded(file), _optimised(file, threads)
    layers = []
    for node in given.proto.node:
        if (weight := layer_weight(given, node)) is not None:
            kernel = _kernel(optimised, node, weight)
            layers.append(_described(given, node, kernel))
    kernels = Counter(node.op_type for node in optimised.proto.node)
    return FusionReport(tuple(layers), dict(sorted(kernels.items())))


def _described(graph: OnnxGraph, node: Any, kernel: str) -> LayerKernel:
    layer = LayerKernel(node.name or node.output[0], node.op_type, kernel)
    if not kernel:
        return layer
    if not layer.integer:
        return replace(layer, reason=reason_for(graph, node, kernel))
    return replace(layer, note=ROUNDED_BIAS if has_float_bias(graph, node) else "")


def layer_weight(graph: OnnxGraph, node: Any) -> str | None:
    """Return the constant that a node multiplies with, or None for other nodes."""
    if node.op_type not in WEIGHTS:
        return None
    return stored(graph, operand(node, WEIGHTS[node.op_type]))


def stored(graph: OnnxGraph, value: str) -> str | None:
    """Return the constant that a value is, or is dequantised, transposed or reshaped from."""
    while value not in graph.constants:
        node = graph.sources.get(value)
        if node is None or node.op_type not in _MOVES:
            return None
        value = node.input[0]
    return value


_MOVES = ("DequantizeLinear", "QuantizeLinear", "Transpose", "Reshape", "Identity", "Cast", "Clip")


def _loaded(file: Any) -> OnnxGraph:
    import onnx

    if isinstance(file, str | Path):
        return OnnxGraph(onnx.load(str(file), load_external_data=False).graph)
    return OnnxGraph(file.graph)


def _optimised(file: Any, threads: int) -> OnnxGraph:
    """Return the graph that onnxruntime makes of a model."""
    import onnx

    options = session_options(threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        entry = "session.optimized_model_external_initializers_file_name"
        options.add_session_config_entry(entry, "weights.bin")
        open_session(file, options)
        return OnnxGraph(onnx.load(str(path), load_external_data=False).graph)


def _kernel(optimised: OnnxGraph, layer: Any, weight: str) -> str:
    """Return the op of the node that computes a layer: the one of its name, or with its weight."""
    nodes = [node for node in optimised.proto.node if node.op_type in WEIGHTS]
    by_name = [node for node in nodes if layer.name and _plain(node.name) == layer.name]
    by_weight = [node for node in nodes if _reads(optimised, node, weight)]
    found = by_name or by_weight
    return str(found[0].op_type) if found else ""


def _plain(name: str) -> str:
    """Return a name without what onnxruntime adds, which may be several things."""
    while (shorter := ADDED.sub("", name)) != name:
        name = shorter
    return name


def _reads(graph: OnnxGraph, node: Any, weight: str) -> bool:
    found = layer_weight(graph, node)
    return found is not None and (found == weight or found.startswith(f"{weight}_"))
