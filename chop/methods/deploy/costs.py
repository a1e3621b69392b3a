"""What deployed layers cost."""

from __future__ import annotations

from typing import Any

from chop.methods.deploy.rows import DEPLOYED
from chop.passes.graph.analysis.cost.call import Call, Count, Product, rule, size


@rule(DEPLOYED)
def deployed_linear(call: Call) -> Count:
    """Cost of the layer that was deployed; zeros that its kernel adds are not counted."""
    module: Any = call.module
    depth, added = module.in_features, 0 if call.shape("bias") is None else size(call.out)
    product = Product(size(call.out) * depth, "data_in_0", f"{call.prefix}weight", depth)
    return Count((product,), added, added)
