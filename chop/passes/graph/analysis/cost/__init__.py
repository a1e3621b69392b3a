"""Cost of a graph: one rule per op, and the pass that applies them."""

from typing import TYPE_CHECKING

from chop import lazy

# importing these registers their rules
from chop.passes.graph.analysis.cost import composed, elementwise, products  # noqa: F401

if TYPE_CHECKING:
    from chop.passes.graph.analysis.cost.call import (
        RULES,
        Call,
        Count,
        Product,
        count,
        rule,
        rule_of,
    )
    from chop.passes.graph.analysis.cost.cost import call_of, cost_analysis_pass, cost_of
    from chop.passes.graph.analysis.cost.flops import (
        calculate_flops_analysis_pass,
        calculate_flops_pass,
        calculate_modules,
    )

__all__ = [
    "RULES",
    "Call",
    "Count",
    "Product",
    "calculate_flops_analysis_pass",
    "calculate_flops_pass",
    "calculate_modules",
    "call_of",
    "cost_analysis_pass",
    "cost_of",
    "count",
    "rule",
    "rule_of",
]

__getattr__ = lazy.importer(__name__, __file__)
