"""`ch search`: spaces, samplers, metrics and engines that do not know each other.

Users' own code imports the names in `__all__` from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.actions.search.compat.lab_runners import get_hw_runner, get_sw_runner
    from chop.actions.search.compat.labs import (
        SEARCH_STRATEGY_MAP,
        SearchStrategyBase,
        SearchStrategyOptuna,
    )
    from chop.actions.search.metrics.base import (
        Direction,
        Metrics,
        Runner,
        RunnerContext,
        Trial,
        metric,
        register_runner,
    )
    from chop.actions.search.samplers.base import SamplerContext, Strategy, register_strategy
    from chop.actions.search.space.base import Parent, Space
    from chop.actions.search.space.hooks import SearchSpaceBase
    from chop.actions.search.space.registry import register_search_space

__all__ = [
    "SEARCH_STRATEGY_MAP",
    "Direction",
    "Metrics",
    "Parent",
    "Runner",
    "RunnerContext",
    "SamplerContext",
    "SearchSpaceBase",
    "SearchStrategyBase",
    "SearchStrategyOptuna",
    "Space",
    "Strategy",
    "Trial",
    "get_hw_runner",
    "get_sw_runner",
    "metric",
    "register_runner",
    "register_search_space",
    "register_strategy",
]

__getattr__ = lazy.importer(__name__, __file__)
