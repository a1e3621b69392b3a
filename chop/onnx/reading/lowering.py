"""Rewriting of a parsed file before it is read: old opsets, its functions, products of codes.

A product of codes, such as QLinearConv, is the product of numbers between DequantizeLinear nodes
and a QuantizeLinear node, which the reader knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from chop.onnx.reading.errors import UnreadableModel

__all__ = ["FIXES", "PRODUCTS", "inlined", "lowered", "upgraded", "without_weights"]

MAX_INLINED = 100_000  # nodes
MAX_FUNCTIONS = 500  # which may call each other, one in the next
STATIC = (
    "quantise the network statically, with QDQ or QLinear operators, so that its scales are "
    "constants"
)
# operators that cannot be read -> what to do instead
FIXES = dict.fromkeys(("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"), STATIC)


def without_weights(model: Any) -> Any:
    """Return a model with the structure of another one, and tensors without numbers.

    Sparse tensors are left out.
    """
    import onnx

    bare = onnx.ModelProto(ir_version=model.ir_version)
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    bare.metadata_props.extend(model.metadata_props)
    whole, graph = model.graph, bare.graph
    graph.name = whole.name or "network"
    graph.node.extend(whole.node)
    graph.input.extend(whole.input)
    graph.output.extend(whole.output)
    for tensor in whole.initializer:
        graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=[0])
    return bare


# --- old opsets


def upgraded(model: Any, opset: int, owner: str) -> Any:
    """Return a model of at least an opset; newer ones as they are."""
    from onnx import version_converter

    own = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not own or max(own) >= opset:
        return model
    try:
        return version_converter.convert_version(model, opset)
    except Exception as error:  # of the C++ converter, which has several classes
        reason = " ".join(str(error).split()).rpartition("failed: ")[2][:200]
        raise UnreadableModel(
            f"{owner} has opset {max(own)}, which cannot be converted to {opset} ({reason}); "
            f"export the network with opset {opset} or later"
        ) from error


# --- functions


def inlined(model: Any, owner: str) -> Any:
    """Return a model whose nodes call no functions of the file; without functions, itself.

    A new model has no numbers in its tensors.
    """
    if not model.functions:
        return model
    import onnx.inliner

    try:
        _check_size(model, owner)
        return onnx.inliner.inline_local_functions(without_weights(model))
    except UnreadableModel:
        raise
    except Exception as error:  # of the C++ inliner, which has no class of its own
        raise UnreadableModel(
            f"{owner} has functions that cannot be inlined ({str(error)[:100]}); export the "
            f"network without functions"
        ) from error


def _check_size(model: Any, owner: str) -> None:
    """Refuse functions that call themselves, or that become very many nodes."""
    functions = {(each.domain, each.name): each for each in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Any, outer: frozenset[tuple[str, str]]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in outer:
                raise UnreadableModel(f"{owner}: the function {key[1]!r:.80} calls itself")
            if key in functions and key not in sizes:
                sizes[key] = size(functions[key].node, outer | {key})
            total += sizes.get(key, 1)
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += size(graph.node, outer)
        if total > MAX_INLINED:
            raise UnreadableModel(
                f"{owner} has functions of more than {MAX_INLINED:,} nodes in all; read a "
                f"smaller network"
            )
        return total

    if len(functions) > MAX_FUNCTIONS:
        raise UnreadableModel(f"{owner} has more than {MAX_FUNCTIONS} functions; inline them first")
    size(model.graph.node, frozenset())


# --- products of codes


@dataclass(frozen=True)
class CodeProduct:
    """The operator of numbers that an operator of codes stands for.

    `operands` are the places of codes, each followed by scale and zero point; `result` is the place
    of the scale of the result. `axis` is the dimension along which the second operand may have
    scales.
    """

    op: str
    operands: tuple[int, ...]
    result: int
    bias: int | None = None
    axis: int = 0


PRODUCTS: Mapping[tuple[str, str], CodeProduct] = {
    ("", "QLinearConv"): CodeProduct("Conv", (0, 3), 6, bias=8),
    ("", "QLinearMatMul"): CodeProduct("MatMul", (0, 3), 6, axis=-1),
    ("com.microsoft", "QGemm"): CodeProduct("Gemm", (0, 3), 7, bias=6),
    ("com.microsoft", "QLinearAdd"): CodeProduct("Add", (0, 3), 6),
    ("com.microsoft", "QLinearMul"): CodeProduct("Mul", (0, 3), 6),
}


def lowered(model: Any) -> Any:
    """Return a model without products of codes; without any, itself.

    A new model has no numbers in its tensors.
    """
    nodes = model.graph.node
    if not any(_product(node) for node in nodes):
        return model
    names = _free_names(model)
    result = without_weights(model)
    del result.graph.node[:]
    for node in nodes:
        product = _product(node)
        result.graph.node.extend([node] if product is None else _parts(node, product, names))
    return result


def _product(node: Any) -> CodeProduct | None:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return PRODUCTS.get((domain, node.op_type))


def _free_names(model: Any) -> Callable[[str], str]:
    used = {name for node in model.graph.node for name in (*node.input, *node.output)}
    used |= {tensor.name for tensor in model.graph.initializer}

    def free(name: str) -> str:
        while name in used:
            name += "_"
        used.add(name)
        return name

    return free


def _parts(node: Any, product: CodeProduct, free: Callable[[str], str]) -> Iterator[Any]:
    """Yield the nodes of numbers that a product of codes stands for."""
    from onnx import helper

    inputs = [*node.input, *[""] * (product.result + 3 - len(node.input))]
    label = node.name or node.output[0]
    terms = []
    for place in product.operands:
        terms.append(free(f"{inputs[place]}_numbers"))
        axis = product.axis
        if product.op == "Gemm":
            axis = 0 if _attribute(node, "transB") else 1
        yield helper.make_node(
            "DequantizeLinear", inputs[place : place + 3], terms[-1:], name=label, axis=axis
        )
    if product.bias is not None and inputs[product.bias]:
        step, bias = free(f"{label}_bias_step"), free(f"{label}_bias")
        scales = [inputs[place + 1] for place in product.operands]
        yield helper.make_node("Mul", scales, [step], name=label)
        yield helper.make_node(
            "DequantizeLinear", [inputs[product.bias], step], [bias], name=label, axis=0
        )
        terms.append(bias)
    rounded = bool(inputs[product.result])  # QGemm may return numbers
    sums = free(f"{label}_sum") if rounded else node.output[0]
    number = helper.make_node(product.op, terms, [sums], name=label)
    number.attribute.extend(a for a in node.attribute)
    yield number
    if rounded:
        ends = inputs[product.result : product.result + 2]
        yield helper.make_node("QuantizeLinear", [sums, *ends], node.output[:1], name=label)


def _attribute(node: Any, name: str) -> int:
    return next((a.i for a in node.attribute if a.name == name), 0)
