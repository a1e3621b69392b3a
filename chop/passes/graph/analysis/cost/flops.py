"""Operation counts as the labs define them: 1 per multiply-accumulate, 1 per other operation."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import module_op
from chop.passes.base import PassArgsError, graph_pass, has_metadata
from chop.passes.graph.analysis.add_metadata import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.analysis.cost.call import NOTHING, Call, Count, count, numbered, size
from chop.passes.graph.analysis.cost.cost import call_of, cost_of
from chop.passes.graph.describe.formats import operand_parameters

logger = logging.getLogger(__name__)


def calculate_modules(module: nn.Module, in_data: Any, out_data: Any) -> dict[str, int]:
    """Count what one call of a module costs, from the tensors that went in and came out.

    Returns `total_parameters`, `computations` (a multiply-accumulate is one, and so is each other
    operation), `backward_computations`, `input_buffer_size` and `output_buffer_size` in elements.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"calculate_modules takes a module first, not {type(module).__name__}")
    shapes, results = (
        [tuple(x.shape) for x in tree_leaves(data) if isinstance(x, Tensor)]
        for data in (in_data, out_data)
    )
    cls: Any = type(module)
    spec = module_op(cls)
    arithmetic = None
    if spec is not None:
        if not shapes or not results:
            raise ValueError(
                f"the cost of {type(module).__name__} depends on its tensors; "
                f"give calculate_modules(module, (input,), (output,))"
            )
        inputs = numbered(shapes)
        inputs |= {name: tuple(p.shape) for name, p in operand_parameters(module)}
        arithmetic = count(Call(spec.name, inputs, results, module))
    if arithmetic is None:
        logger.debug("no cost rule for %s: its computations count as 0", type(module).__name__)
    return {
        "total_parameters": sum(p.numel() for _, p in operand_parameters(module)),
        **_computations(arithmetic or NOTHING),
        "input_buffer_size": size(shapes[0]) if shapes else 0,
        "output_buffer_size": size(results[0]) if results else 0,
    }


calculate_flops_pass = calculate_modules  # the name that the labs use


def _computations(arithmetic: Count) -> dict[str, int]:
    return {
        "computations": arithmetic.macs + arithmetic.other,
        "backward_computations": 2 * arithmetic.macs + arithmetic.other_backward,
    }


@graph_pass("calculate_flops", "analysis")
def calculate_flops_analysis_pass(
    graph: MaseGraph, *, dummy_in: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Count operations as the labs do: per node, per module, and `total_flops`.

    `breakdown` has a row for each node, `flop_module_breakdown` one for each module. `dummy_in`
    is for a graph without metadata, or for another batch; the graph stays unchanged.
    """
    measured = _measured(graph, dummy_in)
    numbers = cost_of(measured)
    breakdown: dict[str, dict[str, Any]] = {}
    by_module: dict[nn.Module, dict[str, Any]] = {}
    for node in measured.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        row = breakdown[node.name] = _node(node, numbers["nodes"][node.name])
        if node.op == "call_module":
            module = graph.modules[str(node.target)]
            earlier = by_module.get(module, {})  # its parameters count once
            sums = {k: n + row[k] for k, n in earlier.items() if k != "total_parameters"}
            by_module[module] = {**row, **sums}
    total = numbers["total"]
    return {
        "breakdown": breakdown,
        "flop_module_breakdown": by_module,
        "total_flops": sum(row["computations"] for row in breakdown.values()),
        "total_backward_flops": sum(row["backward_computations"] for row in breakdown.values()),
        "total_parameters": total["parameters"],
        "total_macs": total["macs"],
        "total_bitops": total["bit_ops"],
        "model_size_bits": total["weight_bits"],
    }


def _measured(graph: MaseGraph, dummy_in: Mapping[str, Any] | None) -> MaseGraph:
    """Return the graph if it has metadata and no `dummy_in` came, else a copy run on `dummy_in`."""
    if dummy_in is not None:
        graph, _ = init_metadata_analysis_pass(graph.clone())
        add_common_metadata_analysis_pass(graph, {"dummy_in": dummy_in, "add_value": False})
    for node in graph.nodes:
        if not has_metadata(node, "common"):
            raise PassArgsError(
                f"node {node.name!r} has no common metadata; run add_common_metadata_analysis_pass "
                f"first, or give {{'dummy_in': {{input: tensor}}}}"
            )
    return graph


def _node(node: fx.Node, row: Mapping[str, Any]) -> dict[str, Any]:
    call, module = call_of(node), mase(node).module
    return {
        "total_parameters": sum(p.numel() for _, p in operand_parameters(module)) if module else 0,
        **_computations(count(call) or NOTHING),
        "input_buffer_size": size(call.data[0]) if call.data else 0,
        "output_buffer_size": size(call.out),
        "bit_ops": row["bit_ops"],
    }
