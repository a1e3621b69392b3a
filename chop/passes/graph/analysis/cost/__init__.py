"""The one home of cost numbers: rules per op, the pass, and the audit."""

from chop.passes.graph.analysis.cost.audit import MacCounter
from chop.passes.graph.analysis.cost.cost import call_of, cost_analysis_pass, cost_of
from chop.passes.graph.analysis.cost.flops import (
    calculate_flops_analysis_pass,
    calculate_flops_pass,
    calculate_modules,
)
from chop.passes.graph.analysis.cost.rules import RULES, Call, Count, Product, count, rule

__all__ = [
    "RULES",
    "Call",
    "Count",
    "MacCounter",
    "Product",
    "calculate_flops_analysis_pass",
    "calculate_flops_pass",
    "calculate_modules",
    "call_of",
    "cost_analysis_pass",
    "cost_of",
    "count",
    "rule",
]
