"""Layers of tables on edges in ONNX files of float networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chop.methods.edge_tables import FrozenEdgeTable
from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.registry import writes


@writes("edge_table")
def edge_table(call: OpCall) -> str:
    """A sum of tables: each edge rounds its input to a code and looks an entry up."""
    layer: Any = call.module
    frozen: FrozenEdgeTable = layer.frozen()
    if frozen.overflow == "wrap":
        raise call.refusal("wraps its inputs around; use saturate")
    width, frac = frozen.in_width.cpu().double(), frozen.in_frac.cpu().double()
    live = width > 0
    steps = torch.where(live, torch.exp2(frac), 0.0).float()
    low = -torch.exp2(width - 1) if frozen.signed else torch.zeros_like(width)
    high = torch.exp2(width - 1) - 1 if frozen.signed else torch.exp2(width) - 1
    if frozen.signed and frozen.overflow == "symmetric":
        low = -high
    low, high = (torch.where(live, x, 0.0).float() for x in (low, high))
    x = call.add("Unsqueeze", call.x(), call.ints(-1))  # [.., n_in, 1]
    codes = call.rounded(call.add("Mul", x, call.constant(steps)), frozen.rounding)
    codes = call.add("Min", call.add("Max", codes, call.constant(low)), call.constant(high))
    entries = frozen.entries.cpu()  # [n_in, n_out, codes]
    start = _starts(frozen, entries)
    places = call.add("Add", call.cast(codes, torch.float32, torch.int64), call.constant(start))
    step = torch.exp2(-frozen.out_frac.cpu().double())
    values = (entries.double() * step.unsqueeze(-1)).float()
    name = f"{call.node.target}.tables"
    table = call.builder.constant(values.flatten().numpy(), name)
    found = call.add("Gather", table, places, axis=0)
    total = call.add("ReduceSum", found, call.ints(-2), keepdims=0)
    bias = frozen.bias_codes.cpu().double() * 2.0 ** -float(frozen.bias_frac)
    return call.add("Add", total, call.constant(bias.float()))


def _starts(frozen: FrozenEdgeTable, entries: Tensor) -> Tensor:
    """Return the place of code 0 of each edge in the flat table."""
    n_in, n_out, size = entries.shape
    edges = torch.arange(n_in * n_out).view(n_in, n_out) * size
    if not frozen.signed:
        return edges
    half = torch.exp2(frozen.in_width.cpu().double() - 1).long()
    return edges + torch.where(frozen.in_width.cpu() > 0, half, 0)
