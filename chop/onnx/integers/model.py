"""An integer graph as an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chop.integers import Codes, IntegerGraph, IntegerNode, QuantizeInput
from chop.integers.digest import graph_digest
from chop.onnx.builder import ModelBuilder
from chop.onnx.integers.registry import WRITERS
from chop.onnx.integers.writer import DOUBLE, INT64, SINGLE, Writer, WrittenValue
from chop.onnx.metadata import CODES_SUFFIX, FORMAT_KEY, NETWORK_KEY, NOTES_KEY, VERSION_KEY
from chop.version import __version__

__all__ = ["check_supported", "integer_model", "output_names"]


def integer_model(
    graph: IntegerGraph,
    *,
    name: str = "network",
    metadata: Mapping[str, str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Any:
    """Return the `onnx.ModelProto` of an integer graph, equal to it bit for bit.

    Inputs are float32 and are rounded in the model; those that nothing reads are left out. Each
    output has its values in float32 and, as `<output>_codes`, its codes in int64. `outputs` names
    them; the default is `output`, or `output_0`, `output_1`, ….
    """
    check_supported(graph)
    names = output_names(graph) if outputs is None else list(outputs)
    if len(names) != len(graph.outputs):
        raise ValueError(f"the graph has {len(graph.outputs)} outputs; {len(names)} names came")
    builder = ModelBuilder(name)
    known = _inputs(builder, graph)
    # reserved before the values between, so that these give way
    pairs = [(builder.unique(name), builder.unique(f"{name}{CODES_SUFFIX}")) for name in names]
    w = Writer(builder)
    for node in graph.nodes.values():
        known[node.name] = _written(w, graph, node, known)
    for pair, value in zip(pairs, graph.outputs, strict=True):
        _declare(w, *pair, known[value], graph.codes(value))
    facts = {FORMAT_KEY: "integer", VERSION_KEY: __version__, NETWORK_KEY: graph_digest(graph)}
    facts |= {NOTES_KEY: "; ".join(graph.notes)} if graph.notes else {}
    return builder.model({**facts, **(metadata or {})})


def output_names(graph: IntegerGraph) -> list[str]:
    """Return the default names of the outputs of a model."""
    count = len(graph.outputs)
    return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]


def check_supported(graph: IntegerGraph) -> None:
    """Refuse ops without a function, and layers in float before the rounding, all at once."""
    nodes = graph.nodes.values()
    wrong = [
        f"{node.name} ({type(node.op).__name__}) has no function for it: register one in "
        f"chop/onnx/integers/ops"
        for node in nodes
        if type(node.op) not in WRITERS
    ]
    wrong += [
        f"{node.name} computes {type(node.op.before).__name__} in float before it rounds the "
        f"input: let a layer with the format integer come first"
        for node in nodes
        if isinstance(node.op, QuantizeInput) and node.op.before is not None
    ]
    if wrong:
        raise NotImplementedError(f"the format `integer` cannot be written: {'; '.join(wrong)}")


def _inputs(builder: ModelBuilder, graph: IntegerGraph) -> dict[str, WrittenValue]:
    shapes = {
        node.inputs[0]: node.op.shape
        for node in graph.nodes.values()
        if isinstance(node.op, QuantizeInput)
    }
    return {
        name: WrittenValue(builder.input(name, SINGLE, ["batch", *shapes[name]]), SINGLE)
        for name in graph.inputs
        if name in shapes
    }


def _written(
    w: Writer, graph: IntegerGraph, node: IntegerNode, known: Mapping[str, WrittenValue]
) -> WrittenValue:
    w.node = node.name
    codes = [graph.codes(i) for i in node.inputs if i in graph.nodes]
    write = WRITERS[type(node.op)]
    result = write(w, node.op, [known[i] for i in node.inputs], [*codes, node.codes])
    return w.finished(result, node.name)


def _declare(w: Writer, floats: str, whole: str, value: WrittenValue, codes: Codes) -> None:
    """Make the values and the codes of a node outputs of the model."""
    w.node = floats
    shape: list[int | str] = ["batch", *codes.shape]
    w.builder.add("Cast", value.name, result=whole, to=_type(INT64))
    steps = w.op("Mul", w.cast(value, DOUBLE), w.constant(codes.scale.value, DOUBLE))
    w.builder.add("Cast", steps.name, result=floats, to=_type(SINGLE))
    w.builder.output(floats, floats, SINGLE, shape)
    w.builder.output(whole, whole, INT64, shape)


def _type(dtype: Any) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(dtype))
