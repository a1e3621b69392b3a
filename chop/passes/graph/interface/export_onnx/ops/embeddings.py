"""Embeddings and layers of tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from chop.layers import EdgeTable
from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.registry import writes


@writes("embedding")
def embedding(call: OpCall) -> str:
    if call.module is not None:
        if getattr(call.module, "max_norm", None) is not None:
            raise call.refusal("has max_norm, which changes its table; normalise it once")
        return call.add("Gather", call.parameter("weight"), call.x(), axis=0)  # type: ignore[arg-type]
    if call.kwargs.get("max_norm") is not None:
        raise call.refusal("has max_norm, which changes its table; normalise it once")
    return call.add("Gather", call.x(1, "weight"), call.x(), axis=0)


@writes("one_hot")
def one_hot(call: OpCall) -> str:
    count = call.out.shape[-1]
    if count is None or call.arg(1, "num_classes", default=-1) == -1:
        raise call.refusal("counts the classes in its input; give num_classes")
    values = call.constant(np.array([0, 1], dtype=np.int64))
    return call.add("OneHot", call.x(), call.ints(count), values, axis=-1)


@writes("edge_table")
def edge_table(call: OpCall) -> str:
    """A sum of tables: each edge rounds its input to a code and looks an entry up."""
    layer: Any = call.module
    frozen = layer.frozen() if isinstance(layer, EdgeTable) else layer
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


def _starts(frozen: Any, entries: torch.Tensor) -> torch.Tensor:
    """Return the place of code 0 of each edge in the flat table."""
    n_in, n_out, size = entries.shape
    edges = torch.arange(n_in * n_out).view(n_in, n_out) * size
    if not frozen.signed:
        return edges
    half = torch.exp2(frozen.in_width.cpu().double() - 1).long()
    return edges + torch.where(frozen.in_width.cpu() > 0, half, 0)
