"""How an operator is read: by a function of its own, or as the op of the table that it is."""

from __future__ import annotations

from inspect import signature

from chop.ir.op_spec import OPS, op_of_onnx
from chop.onnx.reading.lowering import PRODUCTS
from chop.onnx.reading.ops.arithmetic import wrapped
from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OPERATORS, OnnxNode, Operator
from chop.onnx.reading.rounded import rounded_layer
from chop.onnx.reading.values import OnnxValue

__all__ = ["known_operators", "operator_of"]


def operator_of(name: str) -> Operator | None:
    """Return how an operator is read, or None if it cannot be."""
    op = op_of_onnx(name)
    is_layer = op is not None and bool(op.modules)
    as_op = Operator(_layer, takes_grids=True) if is_layer else Operator(_function)
    return OPERATORS.get(name) or (as_op if op is not None else None)


def _layer(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a layer without weights, with settings from the attributes."""
    op = op_of_onnx(node.op)
    assert op is not None
    assert op.onnx is not None
    cls = op.modules[0]
    defaults = signature(cls).parameters
    layer = cls(**{s: node.attribute(a, defaults[s].default) for a, s in op.onnx.settings})
    if node[0].is_known:
        return reader.call(layer, reader.settled(node[0]))  # type: ignore[no-any-return]
    return rounded_layer(reader, layer, node[0])


def _function(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a function of one number."""
    op = op_of_onnx(node.op)
    assert op is not None
    return wrapped(reader, node, reader.call(op.functions[0], node[0]))


def known_operators() -> list[str]:
    """Return the names of all operators that can be read."""
    rows = (op.onnx.name for op in OPS.values() if op.onnx is not None)
    names = (*OPERATORS, *rows, *map(".".join, PRODUCTS))
    return sorted({name.rpartition(".")[2] for name in names})
