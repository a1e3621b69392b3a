"""A sampler that lists the values of every range of whole numbers, kept from long lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

LONGEST = 10**6  # values of a range that may be listed

Space = dict[str, BaseDistribution]


class Rounded(BaseSampler):
    """Another sampler, to which long ranges of whole numbers are ranges of fractions."""

    def __init__(self, sampler: BaseSampler) -> None:
        self._sampler = sampler

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Space:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Space
    ) -> dict[str, Any]:
        smooth = {name: _smooth(known) for name, known in search_space.items()}
        numbers = self._sampler.sample_relative(study, trial, smooth)
        return {name: _nearest(search_space[name], number) for name, number in numbers.items()}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._sampler.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        self._sampler.after_trial(study, trial, state, values)


def has_long_ranges(distributions: Mapping[str, BaseDistribution]) -> bool:
    """Whether a sampler would list more values than is sensible."""
    return any(_is_long(known) for known in distributions.values())


def _is_long(known: BaseDistribution) -> bool:
    return isinstance(known, IntDistribution) and (known.high - known.low) // known.step >= LONGEST


def _smooth(known: BaseDistribution) -> BaseDistribution:
    if not _is_long(known):
        return known
    assert isinstance(known, IntDistribution)
    return FloatDistribution(known.low, known.high, log=known.log)


def _nearest(known: BaseDistribution, number: Any) -> Any:
    if not _is_long(known):
        return number
    assert isinstance(known, IntDistribution)
    steps = round((number - known.low) / known.step)
    return min(max(known.low + steps * known.step, known.low), known.high)
