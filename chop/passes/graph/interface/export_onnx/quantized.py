"""The operands of quantised nodes, rounded in the file as the nodes round them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from chop.ir.ops import has_trait
from chop.numerics import NumberFormat
from chop.numerics.grid import ElementGrid, Grid
from chop.onnx.targets import ExportFormat
from chop.passes.graph.describe.formats import FormattedFunction, FormattedLayer
from chop.passes.graph.describe.moves import moved, source
from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.formats import check_format
from chop.passes.graph.interface.export_onnx.grids import coded_constant, codes_arrays
from chop.passes.graph.interface.export_onnx.observe import KnownGraph
from chop.passes.graph.interface.export_onnx.qdq import Qdq
from chop.passes.graph.interface.export_onnx.qonnx import QonnxNodes
from chop.passes.graph.interface.export_onnx.refusals import REFUSALS
from chop.passes.graph.interface.export_onnx.rounding import FloatOperands, tensor_of
from chop.passes.graph.interface.export_onnx.values import ExportError, TensorFacts
from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized

__all__ = ["FloatReader", "QuantizedOperands", "formats_of_node", "quantizing_nodes"]

Nodes = Qdq | QonnxNodes


def quantizing_nodes(target: ExportFormat) -> Nodes:
    """Return what writes formats in files of a kind."""
    return QonnxNodes() if target == "qonnx" else Qdq(clip=target == "qcdq")


def formats_of_node(node: fx.Node, layer: Any) -> dict[str, NumberFormat]:
    """Return the formats of a node by operand; empty for a float node."""
    if isinstance(layer, FormattedLayer):
        return layer.current_formats()
    if isinstance(node.target, FormattedFunction):
        return node.target.formats(node.kwargs["config"])
    return {}


class QuantizedOperands(FloatOperands):
    """Rounds the operands of one node."""

    def __init__(
        self, nodes: Nodes, target: ExportFormat, formats: dict[str, NumberFormat], layer: Any
    ) -> None:
        self.nodes, self.target, self.formats, self.layer = nodes, target, formats, layer
        self.step: Any = None  # of the activation, if it has one
        self.weight_step: Any = None

    def operand(self, call: OpCall, place: int, names: Any, value: Any) -> str | None:
        if call.module is not None:
            return "data_in" if place == 0 and "data_in" in self.formats else None
        function: Any = call.node.target
        if function.composed is not None:
            raise call.refusal(REFUSALS["inside"].reason)
        if place < len(function.names) and place < len(call.args):
            found = function.operands[function.names[place]]
        elif place < len(call.args):
            last = len(function.spec.quantized) - 1
            found = function.spec.quantized[min(place - len(function.names), last)]
        else:
            found = next((function.operands[n] for n in names if n in function.operands), None)
        return found if found in self.formats else None

    def activation(self, call: OpCall, name: str, operand: str | None, facts: TensorFacts) -> str:
        if operand is None or not facts.dtype.is_floating_point:
            return name
        fmt = self.formats[operand]
        self._check(call, fmt, operand)
        if not fmt.rounds:
            return name
        to = self._codes(call, operand, fmt)
        if isinstance(to, ElementGrid):
            name, cover = self.nodes.by_element(call, name, to)
            if cover is None:
                return name
            to = cover
        if operand == "data_in":
            self.step = codes_arrays(to)[0] if isinstance(to, Grid) and to.axis is None else None
        return self.nodes.activation(call, name, to, facts)

    def constant(self, call: OpCall, value: Tensor, operand: str | None) -> str:
        fmt = self.formats.get(operand or "")
        if fmt is None or not value.is_floating_point():
            return super().constant(call, value, operand)
        with torch.no_grad():
            rounded = fmt(value)
        name = call.writer.names.get(id(value)) or f"{call.node.name}.{operand}"
        return self._stored(call, rounded, operand or "", fmt, name)

    def parameter(self, call: OpCall, name: str, operand: str) -> str | None:
        rounded = self._rounded(call, name, operand)
        if rounded is None:
            return super().parameter(call, name, operand)
        stored = f"{call.node.target}.{name}"
        return self._stored(call, rounded, operand, self._weight_format(operand), stored)

    def turned(self, call: OpCall, name: str) -> str | None:
        rounded = self._rounded(call, name, name)
        if rounded is None:
            return super().turned(call, name)
        fmt = self._weight_format(name)
        stored = f"{call.node.target}.{name}"
        return self._stored(call, rounded, name, fmt, stored, turned=True)

    def _rounded(self, call: OpCall, name: str, operand: str) -> Tensor | None:
        """Return a parameter as the layer computes with it, if the layer rounds it."""
        if operand not in self.formats or tensor_of(call, name) is None:
            return None
        with torch.no_grad():
            found: Tensor = self.layer.q_parameter(name)
        if bool(found.isnan().any()):
            raise ExportError(f"{call.node.target}.{name} has NaN; train or load it again")
        return found

    def _weight_format(self, operand: str) -> NumberFormat:
        return self.formats[operand]

    def _stored(
        self, call: OpCall, rounded: Tensor, operand: str, fmt: NumberFormat, name: str,
        *, turned: bool = False,
    ) -> str:  # fmt: skip
        """Return a rounded constant."""
        array = rounded.detach().cpu().float().numpy()
        if not fmt.rounds:
            return call.builder.constant(array.T if turned else array, name)
        self._check(call, fmt, operand)
        if operand == "bias":
            stored, self.bias_apart = self.nodes.bias(call, array, self._product(), name)
            return stored
        if fmt.dtype is not None and isinstance(self.nodes, Qdq):
            return self.nodes.float_constant(call, array.T if turned else array, fmt, name)
        try:
            coded = coded_constant(rounded, fmt, blocks=self.nodes.blocks)
        except ExportError as error:
            raise call.refusal(str(error)) from error
        grid = coded.grid
        self.weight_step = None if grid.block or grid.has_zero_point else codes_arrays(grid)[0]
        return self.nodes.constant(call, coded.turned() if turned else coded, name)

    def _product(self) -> Any:
        """Return the step of the products of input and weight, in float32."""
        if self.step is None or self.weight_step is None:
            return None
        return np.asarray(self.step * self.weight_step, dtype=np.float32)

    def number(self, value: Any, operand: str) -> Any:
        fmt = self.formats.get(operand)
        return fmt(value) if fmt is not None and isinstance(value, float) else value

    def result(self, call: OpCall, name: str, facts: TensorFacts) -> str:
        if "data_out" not in self.formats or not facts.dtype.is_floating_point:
            return name
        return self.activation(call, name, "data_out", facts)

    def is_non_negative(self, operand: str) -> bool:
        return is_non_negative(self.formats.get(operand))

    def check_whole(self, call: OpCall) -> None:
        raise call.refusal(REFUSALS["inside"].reason)

    def _codes(self, call: OpCall, operand: str, fmt: NumberFormat) -> Grid | NumberFormat:
        """Return the codes of an activation, or its format where a file has numbers like it."""
        grid = fmt.grid()
        if grid is None and isinstance(self.layer, Quantized):
            grid = self.layer.grid_of(operand)
        grid = grid or fmt.uniform().grid()
        if isinstance(grid, ElementGrid) and grid.overflow == "wrap":
            raise call.refusal(REFUSALS["wrap"].say(operand=operand))
        return grid or fmt

    def _check(self, call: OpCall, fmt: NumberFormat, operand: str) -> None:
        try:
            check_format(fmt, self.target, operand)
        except ExportError as error:
            raise call.refusal(str(error)) from error


class FloatReader(FloatOperands):
    """A float node of a quantised network: a ReLU before layers with one format is on codes."""

    def __init__(self, nodes: Nodes, known: KnownGraph) -> None:
        self.nodes, self.known = nodes, known

    def relu(self, call: OpCall, x: str) -> str | None:
        formats = self._readers(call.node)
        first = formats[0] if formats else None
        if first is None or any(fmt != first for fmt in formats):
            return None
        grid = first.grid()
        return None if grid is None else self.nodes.relu(call, x, grid, call.out)

    def result(self, call: OpCall, name: str, facts: TensorFacts) -> str:
        """Return a result; padded codes are codes again, as runtimes would go on in float."""
        if call.op != "pad" or moved(call.node) is None or not isinstance(self.nodes, Qdq):
            return name
        node = source(call.node)
        layer = (
            self.known.model.get_submodule(str(node.target)) if node.op == "call_module" else None
        )
        formats = formats_of_node(node, layer)
        rounds = has_trait(self.known.op(node), "rectifier") and is_non_negative(
            formats.get("data_in")
        )
        fmt = formats.get("data_in" if rounds else "data_out")
        grid = None if fmt is None else fmt.grid()
        if grid is None or grid.axis is not None:
            return name  # the axis of the channels may have moved
        return self.nodes.activation(call, name, grid, facts)

    def _readers(self, node: fx.Node) -> list[NumberFormat | None]:
        """Return the formats to which all that read a value round it; None: not rounded."""
        found: list[NumberFormat | None] = []
        for user in node.users:
            is_layer = user.op == "call_module"
            layer = self.known.model.get_submodule(str(user.target)) if is_layer else None
            formats = {} if user.op == "output" else formats_of_node(user, layer)
            if not formats and moved(user) is node:
                found += self._readers(user)
            else:
                found.append(formats.get("data_in") if is_layer else None)
        return found


def is_non_negative(fmt: NumberFormat | None) -> bool:
    """Return whether a format has no negative numbers."""
    return fmt is not None and fmt.range[0] >= 0 and fmt.grid() is not None
