"""What a strategy is: it is asked for designs and told outcomes, both in the order of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from chop.actions.search.space.choices import Choices
from chop.options import options_of_class
from chop.registry import Registry

Chosen = dict[str, Any]


@dataclass(frozen=True)
class SamplerContext:
    """What a strategy knows of a search: never models, data or devices."""

    choices: Choices
    directions: tuple[str, ...]  # "maximize" or "minimize", one for each objective
    n_trials: int
    seed: int
    constrained: bool = False

    def seed_of(self, number: int) -> int:
        """A seed for one trial, whichever process asks, and however often it was resumed."""
        return int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])


class Strategy:
    """Subclass and register; keyword-only parameters are keys of `setup.sampler_options`.

    Trial `n` is asked for when exactly the trials up to `n - in_flight` have been told, so that a
    search gives the same table with any number of workers.
    """

    looks_back: ClassVar[bool] = True  # whether what it asks depends on what it was told

    def __init__(self, context: SamplerContext) -> None:
        self.context = context

    @property
    def quest(self) -> SamplerContext:
        """The former name of `context`."""
        return self.context

    @classmethod
    def options(cls) -> dict[str, Any] | None:
        """The keys of `setup.sampler_options`, with their types; None if it takes any."""
        options, takes_any = options_of_class(cls, Strategy)
        return None if takes_any else {name: option.hint for name, option in options.items()}

    def ask(self, number: int) -> Chosen | None:
        """The design of trial `number`; None when there is none left."""
        raise NotImplementedError

    def tell(
        self, number: int, values: Sequence[float] | None, violations: Sequence[float] = ()
    ) -> None:
        """What came of a trial: its objectives, None if it failed; violations above 0 are bad."""

    def notes(self, number: int) -> Mapping[str, Any]:
        """What `adopt` needs to know of a trial besides its design."""
        return {}

    def adopt(self, number: int, chosen: Chosen, notes: Mapping[str, Any]) -> None:
        """A trial that was asked before the search was resumed, in place of `ask`."""


MakeStrategy = Callable[..., Strategy]  # a class, or what else takes a context and options
STRATEGIES: Registry[type[Strategy]] = Registry("sampler", package="chop.actions.search.samplers")


def register_strategy(*names: str) -> Callable[[type[Strategy]], type[Strategy]]:
    """File a strategy under the names that `setup.sampler` may have."""
    return STRATEGIES.register(*names)


def strategy_named(name: str) -> type[Strategy]:
    """The strategy that a file means, whatever its case."""
    return STRATEGIES[name.lower()]
