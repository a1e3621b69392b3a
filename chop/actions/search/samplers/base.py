"""Strategies, which choose designs and get the outcomes, both in the order of trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from chop.actions.search.space.choices import Choices
from chop.options import options_of_class
from chop.registry import Registry, not_defined

Chosen = dict[str, Any]


@dataclass(frozen=True)
class SamplerContext:
    """The facts of a search that a strategy knows: never models, data or devices."""

    choices: Choices
    directions: tuple[str, ...]  # "maximize" or "minimize", one for each objective
    n_trials: int
    seed: int
    constrained: bool = False
    uniform: tuple[Chosen, ...] = ()  # designs that built-in strategies ask for first
    # returns the designs of a space that makes them itself; None for spaces with choices
    listed: Callable[[], Sequence[Chosen]] | None = None

    def seed_of(self, number: int) -> int:
        """Return the seed of a trial, the same in every process and after every resume."""
        return int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])


class Strategy:
    """Subclass and register; keyword-only parameters are keys of `setup.sampler_options`.

    `ask(n)` is called after `tell` of exactly the trials up to `n - in_flight`, so that a search
    gives the same table with any number of workers.
    """

    looks_back: ClassVar[bool] = True  # whether designs depend on earlier outcomes
    chooses: ClassVar[bool] = True  # whether it chooses among the designs of any space

    def __init__(self, context: SamplerContext) -> None:
        self.context = context

    @classmethod
    def options(cls) -> dict[str, Any] | None:
        """Return the keys of `setup.sampler_options` and their types; None if any key is valid."""
        options, takes_any = options_of_class(cls, Strategy)
        return None if takes_any else {name: option.hint for name, option in options.items()}

    def ask(self, number: int) -> Chosen | None:
        """Return the design of trial `number`; None if all designs were tried."""
        raise not_defined(self, "ask", "sampler")

    def tell(
        self, number: int, values: Sequence[float] | None, violations: Sequence[float] = ()
    ) -> None:
        """Take the objectives of a trial, None if it failed, and the violations of constraints."""

    def notes(self, number: int) -> Mapping[str, Any]:
        """Return what `adopt` needs besides the design of a trial."""
        return {}

    def adopt(self, number: int, chosen: Chosen, notes: Mapping[str, Any]) -> None:
        """Take a trial of the study before it was resumed, in place of `ask`."""


MakeStrategy = Callable[..., Strategy]  # takes a context and options
STRATEGIES: Registry[type[Strategy]] = Registry(
    "sampler", "chop.actions.search.samplers", for_users=True
)


def register_strategy(*names: str) -> Callable[[type[Strategy]], type[Strategy]]:
    """Register a strategy by the names that `setup.sampler` accepts."""
    return STRATEGIES.register(*names)


def strategy_named(name: str) -> type[Strategy]:
    """Return the strategy of a name in any case."""
    return STRATEGIES[name.lower()]
