"""The nodes of a graph, read one after the other."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from chop.onnx.reading.bodies import Body, body_of
from chop.onnx.reading.errors import UnreadableModel
from chop.onnx.reading.grids import FileGrid
from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, Operator, operator_name
from chop.onnx.reading.table import operator_of
from chop.onnx.reading.tensors import stored_tensor
from chop.onnx.reading.values import OnnxValue, known

__all__ = ["Scope", "read_nodes", "uses_of"]

MAX_READ = 100_000  # nodes, with those that others stand for


@dataclass
class Scope:
    """The values that nodes may read by their names; an input that is left out is None."""

    owner: str
    values: MutableMapping[str, OnnxValue | None] = field(default_factory=dict)
    num_read: Counter[str] = field(default_factory=Counter)  # nodes, by owner


def uses_of(nodes: Iterable[Any], results: Iterable[str]) -> Counter[str]:
    """Return how often each value is read, also by the graphs inside of nodes."""
    uses = Counter(results)
    for node in nodes:
        uses.update(node.input)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                uses += uses_of(graph.node, (output.name for output in graph.output))
    return uses


def read_nodes(reader: Reader, nodes: Iterable[Any], scope: Scope) -> None:
    """Add what nodes compute to the graph, and their results to the values."""
    for proto in nodes:
        scope.num_read[scope.owner] += 1
        if scope.num_read[scope.owner] > MAX_READ:
            raise UnreadableModel(
                f"{scope.owner} has more than {MAX_READ:,} nodes; read a smaller network"
            )
        node = OnnxNode(proto, [], scope.owner)
        # masks and indices that nobody reads are not computed
        node.outputs = [name if reader.uses.get(name) else "" for name in node.outputs]
        reader.current = node
        for name, value in zip(proto.output, _results(reader, proto, node, scope), strict=False):
            if name and value is not None:
                if value.is_known:  # a view of one number can have any size
                    reader.count(max(sample.numel() for sample in value.samples))
                scope.values[name] = value


def _results(reader: Reader, proto: Any, node: OnnxNode, scope: Scope) -> list[OnnxValue | None]:
    """Return the results of a node: by its own function, or else by those that it stands for."""
    values = scope.values
    missing = [name for name in proto.input if name and name not in values]
    if missing:
        raise node.wrong(f"reads {missing[0]!r:.80}, which no node computes; export it again")
    refusal = node.wrong("has an operator that cannot be read")
    known_as = operator_of(operator_name(proto.domain, proto.op_type))
    if known_as is not None:
        try:
            return _own_results(reader, proto, node, scope, known_as)
        except UnreadableModel as error:
            refusal = error
    node.inputs = [values[name] if name else None for name in proto.input]
    body = body_of(proto, node, reader.opset)
    if body is None:
        raise refusal
    try:
        return _results_of_body(reader, body, node, scope)
    except UnreadableModel as error:
        raise (error if known_as is None else refusal) from error


def _own_results(
    reader: Reader, proto: Any, node: OnnxNode, scope: Scope, known_as: Operator
) -> list[OnnxValue | None]:
    values = scope.values
    first = values.get(proto.input[0]) if proto.input else None
    grid = _kept_grid(first, proto.op_type) if known_as.commutes else None
    is_codes = grid is not None and first is not None and first.is_codes
    for place, name in enumerate(proto.input):
        value = values[name] if name else None
        if value is not None and not known_as.takes_grids and not (grid is not None and place == 0):
            values[name] = reader.settled(value)
    inputs = [values[name] if name else None for name in proto.input]
    if grid is not None and inputs[0] is not None:
        inputs[0] = inputs[0].with_grid(None)
    node.inputs = inputs
    results = known_as.function(reader, node)
    listed = [results] if isinstance(results, OnnxValue) else list(results)
    return [
        value if value is None or grid is None else value.with_grid(grid, is_codes=is_codes)
        for value in listed
    ]


def _results_of_body(
    reader: Reader, body: Body, node: OnnxNode, scope: Scope
) -> list[OnnxValue | None]:
    """Read the nodes that a node stands for, in a scope of their own."""
    values: MutableMapping[str, OnnxValue | None]
    if body.inputs is None:
        values = ChainMap({}, scope.values)
    else:
        given = [*node.inputs, *[None] * (len(body.inputs) - len(node.inputs))]
        values = dict(zip(body.inputs, given, strict=False))
    for tensor in body.constants:
        stored = stored_tensor(tensor, node.label, None)
        values[tensor.name] = known(stored.tensor, tensor.name, stored.kind)
    before = reader.uses, reader.opset
    wanted = [name for name, out in zip(body.results, node.outputs, strict=False) if out]
    reader.uses = uses_of(body.nodes, wanted)
    reader.opset = body.opset or reader.opset
    inner = Scope(scope.owner, values, scope.num_read)
    try:
        read_nodes(reader, body.nodes, inner)
    finally:
        reader.uses, reader.opset = before
        reader.current = node
    missing = [name for name in wanted if name not in values]
    if missing:
        raise node.wrong(f"has no value for its result {missing[0]!r:.80}; export it again")
    return [values.get(name) for name in body.results]


def _kept_grid(value: OnnxValue | None, op: str) -> FileGrid | None:
    """Return the grid to which a result is rounded, as the input is; None if it is not.

    Of codes, the largest is that of the largest number; a ReLU compares them with 0, and not with
    their zero point.
    """
    if value is None or value.grid is None or value.grid.axis is not None:
        return None
    is_moved = op == "Relu" and value.is_codes and any(value.grid.zero_points)
    return None if is_moved else value.grid
