"""`gradient`: the designs of a front that was trained, one trial each."""

from __future__ import annotations

from chop.actions.search.samplers.base import Chosen, SamplerContext, Strategy, register_strategy


@register_strategy("gradient")
class Gradient(Strategy):
    """Trains bit widths by their gradients; the designs of the front are the trials.

    It needs the space `graph/learned`; `[search.strategy.gradient]` has its options.
    """

    looks_back = False
    chooses = False

    def __init__(self, context: SamplerContext) -> None:
        super().__init__(context)
        if context.listed is None:
            raise ValueError(
                'gradient needs layers that learn their bits; set name = "graph/learned" in '
                "search.search_space"
            )
        self._listed = context.listed

    def ask(self, number: int) -> Chosen | None:
        designs = self._listed()
        return designs[number] if number < len(designs) else None
