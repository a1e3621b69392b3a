"""What a linear layer with an adapter costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chop.methods.lora.rows import ADAPTED
from chop.passes.graph.analysis.cost.call import Call, Count, plain, rule, size
from chop.passes.graph.analysis.cost.composed import inside


@rule(ADAPTED)
def adapted_linear(call: Call) -> Count:
    """Cost of the layer and its adapter: down to the rank, up again, scaled and added."""
    module: Any = call.module
    x = call.required("data_in_0")
    low = (*x[:-1], module.rank)
    # the layer reads its input in its format; the input of lora_b is an intermediate value
    base = _reading(inside(call, "linear", x, call.out), f"{call.prefix}linear.data_in_0")
    up = _reading(inside(call, "lora_b", low, call.out), None)
    down = inside(call, "lora_a", x, low)
    return base + down + up + plain(2 * size(call.out), size(call.out))


def _reading(count: Count, left: str | None) -> Count:
    """Return the count with another name for the left operand of its products."""
    return replace(count, products=tuple(replace(p, left=left) for p in count.products))
