"""What a graph costs: arithmetic, bits and memory, per node and in total."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import TensorMeta, mase
from chop.passes.base import graph_pass
from chop.passes.graph.analysis.cost.call import NOTHING, Call, Count, Product, count, spelt
from chop.passes.graph.analysis.cost.liveness import lifetimes, peak, shares_memory
from chop.passes.graph.analysis.cost.tensors import (
    Place,
    element_width,
    format_of,
    nonzero,
    operand_format,
    parameters_of,
    place_of,
    real_tensors,
    result_bits,
    result_tensors,
    stored_bits,
    weights_of,
)
from chop.passes.graph.describe.formats import layer_operand, node_formats
from chop.passes.graph.describe.left_out import counts_operations
from chop.passes.graph.transforms.quantize.quantized_modules.widths import LearnsWidths
from chop.passes.options import OutputPath, check_picture

logger = logging.getLogger(__name__)

Row = dict[str, Any]
# the keys that scale with the batch
PER_BATCH = spelt(
    "macs flops backward_flops bit_ops bit_ops_multiply bit_ops_accumulate activation_bits"
)
SUMMED = ("parameters", *PER_BATCH, "weight_bits", "moved_bits")


@graph_pass("cost", "analysis", needs=("common",))
def cost_analysis_pass(
    graph: MaseGraph,
    *,
    sparse: bool = False,
    per_sample: bool = False,
    file_name: OutputPath | None = None,
    picture: OutputPath | None = None,
    silent: bool = False,
) -> Row:
    """Parameters, MACs, FLOPs, BitOPs and memory of each node, of each op, and in total.

    `sparse` counts only the weights that are not zero. `per_sample` divides by the batch size of
    the metadata. The table goes to the log unless `silent`, the numbers as JSON to
    `file_name`, and bars as SVG to `picture`.
    """
    from chop.passes.graph.analysis.cost.report import report

    info = cost_of(graph, sparse=sparse, per_sample=per_sample)
    report(info, silent, file_name, picture)
    return info


cost_analysis_pass.law(check_picture)


def cost_of(graph: MaseGraph, *, sparse: bool = False, per_sample: bool = False) -> Row:
    """Return the numbers of `cost_analysis_pass` without a report."""
    nodes = list(graph.nodes)
    counts, unknown = counts_of(nodes)
    sizes = [_activation_bits(node) for node in nodes]
    counted: set[Place] = set()
    rows = {
        node.name: _row(node, arithmetic, size, sparse, counted)
        for node, arithmetic, size in zip(nodes, counts, sizes, strict=True)
    }
    total = _sum(rows.values())
    total["peak_activation_bits"], busiest = peak(sizes, lifetimes(nodes))
    total["peak_node"] = nodes[busiest].name if total["peak_activation_bits"] else ""
    batch = batch_size(nodes)
    by_type = _by_type(rows)
    if per_sample:
        for row in (total, *by_type.values(), *rows.values()):
            _divide(row, batch)
    return {
        "total": total,
        "by_type": by_type,
        "nodes": rows,
        "unknown": unknown,
        "batch_size": batch,
        "per_sample": per_sample,
        "sparse": sparse,
    }


def counts_of(nodes: Iterable[fx.Node]) -> tuple[list[Count], dict[str, list[str]]]:
    """Return the arithmetic of each node, and the nodes of each op without a rule, with a warning.

    Those count as 0.
    """
    unknown: dict[str, list[str]] = defaultdict(list)
    counts = []
    for node in nodes:
        arithmetic = count(call_of(node))
        if arithmetic is None:
            unknown[mase(node).common.mase_op].append(node.name)
        counts.append(arithmetic or NOTHING)
    if unknown:
        logger.warning(
            "no cost rule for these, so they count as 0 (%s); give them one with "
            "chop.passes.graph.analysis.cost.rule",
            "; ".join(f"{op}: {', '.join(names)}" for op, names in unknown.items()),
        )
    return counts, dict(unknown)


@counts_operations
def operations_of(node: fx.Node) -> int | None:
    """Return the operations of a node; None for an op without a rule."""
    arithmetic = count(call_of(node))
    return None if arithmetic is None else arithmetic.flops


def call_of(node: fx.Node) -> Call:
    """Describe a node's call in the form that cost rules take."""
    common = mase(node).common
    inputs = {name: tuple(tensor.shape) for name, tensor in real_tensors(common.args)}
    outputs = [tuple(tensor.shape) for tensor in result_tensors(node)]
    arguments = {k: v for k, v in common.args.items() if not isinstance(v, TensorMeta)}
    function = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    return Call(common.mase_op, inputs, outputs, mase(node).module, arguments, function=function)


def _row(node: fx.Node, arithmetic: Count, stored: int, sparse: bool, counted: set[Place]) -> Row:
    own = own_bit_ops(mase(node).module, arithmetic, sparse)
    if sparse:
        arithmetic = _without_zeros(node, arithmetic)
    multiply, accumulate = own or _bit_ops(node, arithmetic)
    parameters, weight_bits = _parameters(node, sparse, counted)
    moved = _moved_bits(node, stored, computes=arithmetic.flops > 0)
    return {
        "op": mase(node).common.mase_op,
        "parameters": parameters,
        "macs": arithmetic.macs,
        "flops": arithmetic.flops,
        "backward_flops": arithmetic.backward_flops,
        "bit_ops": multiply + accumulate,
        "bit_ops_multiply": multiply,
        "bit_ops_accumulate": accumulate,
        "weight_bits": weight_bits,
        "activation_bits": stored,
        "moved_bits": moved,
        "arithmetic_intensity": _intensity(arithmetic.flops, moved),
    }


def _intensity(flops: float, moved_bits: float) -> float:
    """Return the operations per byte that is read or written."""
    return flops / (moved_bits / 8) if moved_bits else 0.0


def whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def per_sample(total: int | float, batch: int) -> int | float:
    """Return the share of one sample in the total of a batch; an integer if it is one."""
    return whole(total / batch) if total % batch else total // batch


def _bit_ops(node: fx.Node, arithmetic: Count) -> tuple[int | float, int | float]:
    """BitOPs of the multiplications, and of the sums in a register that cannot overflow."""
    multiply = accumulate = 0.0
    for product in arithmetic.products:
        left, right = (_width(node, name) for name in (product.left, product.right))
        multiply += product.macs * left * right
        accumulate += product.macs * (left + right + guard_bits(product))
    return whole(multiply), whole(accumulate)


def own_bit_ops(
    module: Any, arithmetic: Count, sparse: bool = False
) -> tuple[int | float, int | float] | None:
    """Return the BitOPs of a layer whose widths differ within an operand; None for others."""
    if not isinstance(module, LearnsWidths) or not (each := module.num_products()):
        return None
    calls = arithmetic.macs / each
    multiply, accumulate = module.bit_operations(sparse=sparse)
    return whole(calls * multiply), whole(calls * accumulate)


def guard_bits(product: Product) -> int:
    """Extra bits that a register needs beyond a product's width so that the whole sum fits."""
    return max(product.depth - 1, 0).bit_length()


def _width(node: fx.Node, name: str | None) -> float:
    # a value inside a quantized layer, as a hidden state, may have the format of an operand
    fmt = node_formats(node).get(layer_operand(mase(node).common.mase_op, name or "") or "")
    if fmt is not None and node.op == "call_module":
        return element_width(fmt)
    if name is not None and _is_known(node, name):
        return element_width(operand_format(node, name))
    results = result_tensors(node)  # intermediate values inside an op are as wide as its results
    return element_width(format_of(results[0])) if results else 32.0


def _is_known(node: fx.Node, name: str) -> bool:
    """Whether the metadata lists an operand, also that of a submodule, as linear.data_in_0."""
    args = mase(node).common.args
    return name in args or name.rpartition(".")[2] in args or name in parameters_of(node)


def _without_zeros(node: fx.Node, arithmetic: Count) -> Count:
    """The count without zero weights; every weight is used equally often, so this is exact."""
    if not arithmetic.products:
        return arithmetic
    weights = weights_of(node)
    products = []
    for product in arithmetic.products:
        macs = product.macs
        for name in {product.left, product.right} & weights.keys():
            tensor = weights[str(name)]
            if name == product.right and product.part[1] > 1:
                tensor = tensor.chunk(product.part[1])[product.part[0]]
            if tensor.numel():
                macs = macs * nonzero(tensor) // tensor.numel()
        products.append(replace(product, macs=macs))
    return replace(arithmetic, products=tuple(products))


def _parameters(node: fx.Node, sparse: bool, counted: set[Place]) -> tuple[int, int]:
    """Number of parameters and their bits; shared ones, and those of repeated calls, count once."""
    new = {n: p for n, p in parameters_of(node).items() if place_of(p) not in counted}
    counted.update(place_of(p) for p in new.values())
    number = bits = 0
    for name, parameter in new.items():
        elements = parameter.numel()
        if node.op == "get_attr":
            stored = result_bits(node)
        else:
            stored = stored_bits(operand_format(node, name), list(parameter.shape))
        if sparse and elements:
            left = nonzero(weights_of(node).get(name, parameter.detach()))
            stored, elements = stored * left // elements, left
        number, bits = number + elements, bits + stored
    return number, bits


def _activation_bits(node: fx.Node) -> int:
    """Bits of a node's results if they are activations with memory of their own, else 0."""
    if node.op in ("get_attr", "output") or shares_memory(node):
        return 0
    return result_bits(node)


def _moved_bits(node: fx.Node, result: int, computes: bool) -> int:
    """Bits that a node reads and writes; a view moves nothing, a lookup reads only its rows."""
    if not node.op.startswith("call_") or not (result or computes):
        return 0
    written = result or result_bits(node)
    lookup = mase(node).common.mase_op == "embedding"
    return (2 if lookup else 1) * written + sum(
        stored_bits(operand_format(node, name), tensor.shape)
        for name, tensor in real_tensors(mase(node).common.args)
        if not (lookup and name == "weight")
    )


def _sum(rows: Iterable[Mapping[str, Any]]) -> Row:
    rows = list(rows)
    total = {key: sum(row[key] for row in rows) for key in SUMMED}
    total["arithmetic_intensity"] = _intensity(total["flops"], total["moved_bits"])
    return total


def _by_type(rows: Mapping[str, Row]) -> dict[str, Row]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows.values():
        groups[row["op"]].append(row)
    return {op: {"nodes": len(group), **_sum(group)} for op, group in groups.items()}


def batch_size(nodes: Iterable[fx.Node]) -> int:
    """The first dimension of the first input that has one."""
    inputs = (node for node in nodes if node.op == "placeholder")
    shapes = (t.shape for node in inputs for t in result_tensors(node))
    return next((shape[0] for shape in shapes if shape and shape[0]), 1)


def _divide(row: Row, batch: int) -> None:
    for key in (*PER_BATCH, "peak_activation_bits"):
        if key in row:
            row[key] = per_sample(row[key], batch)
