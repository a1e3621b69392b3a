"""All cost rules: `RULES` has one for every op in the table that computes."""

from chop.passes.graph.analysis.cost import composed, elementwise, products
from chop.passes.graph.analysis.cost.call import RULES, Call, Count, Product, Rule, count, rule

__all__ = [
    "RULES",
    "Call",
    "Count",
    "Product",
    "Rule",
    "composed",
    "count",
    "elementwise",
    "products",
    "rule",
]
