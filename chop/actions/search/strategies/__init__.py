"""Strategies: which design is tried next; one file each."""

from chop.actions.search.lab_names import from_labs

__getattr__ = from_labs(
    __name__,
    "SEARCH_STRATEGY_MAP",
    "SearchStrategyBase",
    "SearchStrategyOptuna",
    "get_search_strategy_cls",
)
