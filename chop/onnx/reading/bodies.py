"""Nodes that stand for others: functions of ONNX's own schemas, and branches that are chosen.

ONNX defines Attention, RotaryEmbedding, losses and more by nodes of simpler operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chop.onnx.reading.lowering import FIXES
from chop.onnx.reading.registry import OnnxNode
from chop.onnx.reading.table import operator_of
from chop.onnx.reading.tensors import kind_of_type
from chop.onnx.reading.values import OnnxValue, is_constant

__all__ = ["Body", "body_of", "function_operators", "has_body"]


@dataclass(frozen=True)
class Body:
    """The nodes that a node stands for, and the names of their results.

    `inputs` are the names in the body of the node's inputs; a branch (None) sees all values of the
    graph around it.
    """

    nodes: Sequence[Any]
    results: Sequence[str]
    inputs: Sequence[str] | None = None
    constants: Sequence[Any] = ()
    opset: int | None = None


def has_body(domain: str, op: str, opset: int) -> bool:
    """Whether nodes of an operator may stand for others."""
    schema = _schema(domain, op, opset)
    is_function = schema is not None and bool(_versions(schema, opset))
    return is_function or (domain in ("", "ai.onnx") and op == "If")


def function_operators() -> list[str]:
    """Return the operators that are read by the functions by which ONNX defines them."""
    import onnx.defs

    schemas = [schema for schema in onnx.defs.get_all_schemas() if schema.domain == ""]
    names = {schema.name for schema in schemas if _versions(schema, schema.since_version)}
    return sorted(name for name in names if operator_of(name) is None and name not in FIXES)


def body_of(proto: Any, node: OnnxNode, opset: int) -> Body | None:
    """Return the nodes that a node stands for; None if there are none."""
    if node.domain == "" and node.op == "If":
        return _branch(proto, node)
    schema = _schema(node.domain, node.op, opset)
    if schema is None or any(value is not None and value.is_codes for value in node.inputs):
        return None
    function = _function(schema, proto, node, opset)
    if function is None:
        return None
    given = {name: each.default_value for name, each in schema.attributes.items()}
    given = {name: default for name, default in given.items() if default.type}
    given |= {attribute.name: attribute for attribute in proto.attribute}
    nodes = [_bound(each, given) for each in function.node]
    for place, each in enumerate(nodes):
        each.name = f"{node.name}/{each.name or f'{each.op_type}_{place}'}"
    versions = [each.version for each in function.opset_import if each.domain in ("", "ai.onnx")]
    opset = versions[0] if versions else opset
    return Body(nodes, list(function.output), list(function.input), opset=opset)


def _branch(proto: Any, node: OnnxNode) -> Body:
    """Return the branch that a constant chooses."""
    condition = node[0]
    # a condition on free sizes may hold in trials only
    if not is_constant(condition) or condition.samples[0] is not condition.samples[1]:
        raise node.wrong("chooses its branch while it runs; only constants can be read")
    wanted = "then_branch" if bool(condition.tensor.any()) else "else_branch"
    graphs = [attribute.g for attribute in proto.attribute if attribute.name == wanted]
    if not graphs:
        raise node.wrong(f"has no {wanted}; export the network again")
    graph = graphs[0]
    results = [output.name for output in graph.output]
    return Body(graph.node, results, constants=graph.initializer)


def _schema(domain: str, op: str, opset: int) -> Any | None:
    import onnx.defs

    if domain not in ("", "ai.onnx"):
        return None
    try:
        return onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None


def _versions(schema: Any, opset: int) -> list[int]:
    """Return the opsets, up to one, for which a schema defines a function."""
    both = (*schema.function_opset_versions, *schema.context_dependent_function_opset_versions)
    return sorted(version for version in both if version <= opset)


def _function(schema: Any, proto: Any, node: OnnxNode, opset: int) -> Any | None:
    """Return the function of a schema for the types and shapes of a node's inputs."""
    from onnx import FunctionProto

    versions = _versions(schema, opset)
    if not versions:
        return None
    if versions[-1] in schema.function_opset_versions:
        data = schema.get_function_with_opset_version(versions[-1])
    else:
        types = [_type(value).SerializeToString() for value in node.inputs]
        try:
            data = schema.get_context_dependent_function_with_opset_version(
                versions[-1], proto.SerializeToString(), types
            )
        except Exception:  # of C++ code, for attributes that do not fit
            return None
    function = FunctionProto()
    function.ParseFromString(data)
    return function


def _type(value: OnnxValue | None) -> Any:
    """Return the type of a value as ONNX writes it, with its fixed sizes."""
    from onnx import TensorProto, TypeProto, helper

    if value is None:
        return TypeProto()
    sizes = [first if first == second else None for first, second in value.sizes]
    kind = value.kind or kind_of_type(value.dtype)
    return helper.make_tensor_type_proto(TensorProto.DataType.Value(kind), sizes)


def _bound(node: Any, given: dict[str, Any]) -> Any:
    """Return a node of a function with the attributes of the call in place of their names."""
    from onnx import NodeProto

    bound = NodeProto()
    bound.CopyFrom(node)
    del bound.attribute[:]
    for attribute in node.attribute:
        name = attribute.ref_attr_name
        if not name:
            bound.attribute.append(attribute)
        elif name in given:
            bound.attribute.append(given[name])
            bound.attribute[-1].name = attribute.name
    for attribute in bound.attribute:
        for graph in (attribute.g, *attribute.graphs):
            inner = [_bound(each, given) for each in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
    return bound
