"""The nodes of an ONNX graph by what they read and write."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

__all__ = ["OnnxGraph", "attribute", "operand"]

FINAL_OPS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid"}


@dataclass(frozen=True)
class OnnxGraph:
    """A view of an `onnx.GraphProto`, without its subgraphs."""

    proto: Any

    @cached_property
    def constants(self) -> dict[str, Any]:
        """The initialisers and the results of Constant nodes."""
        found = {tensor.name: tensor for tensor in self.proto.initializer}
        for node in self.proto.node:
            if node.op_type == "Constant":
                values = {a.name: a.t for a in node.attribute}
                if "value" in values:
                    found[node.output[0]] = values["value"]
        return found

    @cached_property
    def sources(self) -> dict[str, Any]:
        """The node that computes each value."""
        return {name: node for node in self.proto.node for name in node.output if name}

    @cached_property
    def readers(self) -> dict[str, list[Any]]:
        """The nodes that read each value."""
        found: dict[str, list[Any]] = {}
        for node in self.proto.node:
            for name in dict.fromkeys(node.input):
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def outputs(self) -> set[str]:
        return {output.name for output in self.proto.output}

    @cached_property
    def final_op(self) -> str:
        """The softmax or sigmoid over classes whose result is the first output; "" for others."""
        node = self.sources.get(self.proto.output[0].name)
        while node is not None and node.op_type == "Identity":
            node = self.sources.get(node.input[0])
        axes = (1, -1)
        if node is None or attribute(node, "axis", axes[-1]) not in axes:
            return ""
        return FINAL_OPS.get(node.op_type, "")

    def source(self, value: str, op: str) -> Any | None:
        """Return the node that computes a value if it is of this op."""
        node = self.sources.get(value)
        return node if node is not None and node.op_type == op else None

    def dtype(self, value: str) -> str:
        """Return the name of the dtype of a constant, such as int8; "" if it is none."""
        from onnx import TensorProto

        if (tensor := self.constants.get(value)) is None:
            return ""
        name = str(TensorProto.DataType.Name(tensor.data_type)).lower()
        return {"float": "float32", "double": "float64"}.get(name, name)


def operand(node: Any, place: int) -> str:
    """Return the name of an input of a node, or "" if it has none there."""
    return node.input[place] if place < len(node.input) else ""


def attribute(node: Any, name: str, default: float) -> float:
    """Return a number among the attributes of a node."""
    from onnx import helper

    found = [helper.get_attribute_value(a) for a in node.attribute if a.name == name]
    return float(found[0]) if found else default
