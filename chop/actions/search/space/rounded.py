"""A wrapper for samplers that would list the values of long ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from optuna import Study
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

MAX_LISTED = 10**6  # values of a range

Distributions = dict[str, BaseDistribution]


class LongRangeSampler(BaseSampler):
    """Another sampler, which sees long ranges of integers as ranges of fractions."""

    def __init__(self, sampler: BaseSampler) -> None:
        self._sampler = sampler

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Distributions:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Distributions
    ) -> dict[str, Any]:
        continuous = {
            name: FloatDistribution(known.low, known.high, log=known.log)
            if is_long(known)
            else known
            for name, known in search_space.items()
        }
        numbers = self._sampler.sample_relative(study, trial, continuous)
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
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._sampler.after_trial(study, trial, state, values)


def is_long(known: BaseDistribution) -> TypeGuard[IntDistribution]:
    """Return whether a range has more values than should be listed."""
    whole = known if isinstance(known, IntDistribution) else None
    return whole is not None and (whole.high - whole.low) // whole.step >= MAX_LISTED


def _nearest(known: BaseDistribution, number: Any) -> Any:
    if not is_long(known):
        return number
    steps = round((number - known.low) / known.step)
    return min(max(known.low + steps * known.step, known.low), known.high)
