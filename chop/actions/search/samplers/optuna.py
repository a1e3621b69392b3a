"""Optuna's samplers, each asked with a seed of its own for every trial."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from chop.actions.search.samplers.base import (
    Chosen,
    SamplerContext,
    Strategy,
    register_strategy,
)
from chop.actions.search.space.choices import Choice, Choices, OneOf, Range
from chop.options import options_of_class

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

logger = logging.getLogger(__name__)

VIOLATIONS = "violations"
PLAIN: dict[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str)}
OURS = ("seed", "constraints_func", "independent_sampler")  # arguments that we give ourselves
# Private: the keys that all trials have in common, which a sampler would otherwise find again
# from all trials whenever it is asked (with 1,000 trials that is most of the time of tpe)
REMEMBERED = ("_search_space", "_intersection_search_space")


class OptunaStrategy(Strategy):
    """A sampler of Optuna over a study in memory.

    The sampler is made anew for each trial, with the seed of that trial: what it draws depends on
    the trials before and on nothing else, so that a resumed search goes on as if nothing had
    happened.
    """

    sampler: str  # its class in optuna.samplers
    several: ClassVar[bool] = True  # whether it knows more than one objective
    constrains: ClassVar[bool] = True  # whether it takes constraints into account
    one_seed: ClassVar[bool] = False  # whether all trials share a seed, as points of one sequence
    replays: ClassVar[bool] = False  # whether it remembers more than the trials say

    def __init__(self, context: SamplerContext, **options: Any) -> None:
        super().__init__(context)
        import optuna

        if len(context.directions) > 1 and not self.several:
            raise ValueError(
                f"{self.sampler} supports one objective, not {len(context.directions)}; set "
                f"sum_scaled_metrics = true, or use tpe or nsgaii"
            )
        self._options = options
        self._remembered: dict[str, Any] = {}
        self._sampler(0)  # options that it does not take are refused now
        self._storage = optuna.storages.InMemoryStorage()
        ways: Any = context.directions
        with quiet():
            self._study = optuna.create_study(storage=self._storage, directions=ways)
        self._study_id = self._storage.get_study_id_from_name(self._study.study_name)
        self._asked: dict[int, optuna.trial.Trial] = {}

    @classmethod
    def options(cls) -> dict[str, Any]:
        import optuna

        theirs = inspect.signature(getattr(optuna.samplers, cls.sampler)).parameters
        kinds = {name: _kind(p.annotation) for name, p in theirs.items() if name not in OURS}
        ours = options_of_class(cls, Strategy)[0]
        return kinds | {name: option.hint for name, option in ours.items()}

    def _sampler(self, number: int) -> BaseSampler:
        import optuna

        options = dict(self._options) | self._further(number)
        if self.constrains and self.context.constrained:
            options["constraints_func"] = _violations
        seed = self.context.seed if self.one_seed else self.context.seed_of(number)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about experimental arguments
                made: BaseSampler = getattr(optuna.samplers, self.sampler)(seed=seed, **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"search.strategy.setup.sampler_options: {error}") from error
        for name in REMEMBERED:  # which follows from the trials, and takes long to find out
            if hasattr(made, name):
                setattr(made, name, self._remembered.setdefault(name, getattr(made, name)))
        return made

    def _further(self, number: int) -> dict[str, Any]:
        """Arguments of the sampler that no file can hold."""
        return {}

    def ask(self, number: int) -> Chosen | None:
        self._study.sampler = self._sampler(number)
        with quiet():
            trial = self._asked[number] = self._study.ask()
            assert trial.number == number, "trials are asked for in their order"
            return self.context.choices.suggest(trial)

    def notes(self, number: int) -> Mapping[str, Any]:
        trial = self._asked.get(number)
        if trial is None or self.replays:
            return {}
        return dict(self._storage.get_trial(self._trial_id(number)).system_attrs)

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)

    def adopt(self, number: int, chosen: Chosen, notes: Mapping[str, Any]) -> None:
        from optuna.trial import TrialState, create_trial

        if self.replays:
            self._check(number, chosen, self.ask(number))
            return
        params, distributions = encoded(self.context.choices, chosen)
        template = create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=distributions,
            system_attrs=dict(notes),
        )
        self._storage.create_new_trial(self._study_id, template)

    def _check(self, number: int, before: Chosen, now: Chosen | None) -> None:
        if before != now:
            raise ValueError(
                f"{self.sampler} samples another design for trial {number} than when the "
                f"study began: its options, its seed or the version of Optuna has changed; start a "
                f"new study with --study"
            )

    def tell(
        self, number: int, values: Sequence[float] | None, violations: Sequence[float] = ()
    ) -> None:
        from optuna.trial import TrialState

        storage, study, trial_id = self._storage, self._study, self._trial_id(number)
        storage.set_trial_user_attr(trial_id, VIOLATIONS, list(violations))
        study.sampler = self._sampler(number)
        with quiet():
            if values is None:
                study.tell(number, state=TrialState.FAIL)
            else:
                study.tell(number, list(values))
        self._asked.pop(number, None)
        told = storage.get_trial(trial_id)  # which nobody changes any more
        told.distributions = _shared(self.context.choices, told.params)


def _kind(annotation: str) -> Any:
    """The type of an argument, as far as a file can hold it."""
    first, *others = annotation.split(" | ")
    if first not in PLAIN or others not in ([], ["None"]):
        return Any
    return PLAIN[first] | None if others else PLAIN[first]


def _violations(trial: FrozenTrial) -> Sequence[float]:
    found: Sequence[float] = trial.user_attrs.get(VIOLATIONS, ())
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No advice of Optuna's, whose trials are not where it thinks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def hide_messages() -> None:
    """Hide what Optuna logs about studies in memory, but not its warnings."""
    import optuna

    if not logger.isEnabledFor(logging.DEBUG):
        optuna.logging.set_verbosity(optuna.logging.WARNING)


def encoded(choices: Choices, chosen: Chosen) -> tuple[dict[str, Any], dict[str, Any]]:
    """A design as the numbers that were suggested, and the distributions they come from."""
    numbers = choices.encoded(chosen)
    return numbers, _shared(choices, numbers)


def _shared(choices: Choices, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """What Optuna calls the choices of a design: one object, unless some have keys of their own."""
    known = distributions(choices)
    return known if len(numbers) == len(known) else {key: known[key] for key in numbers}


@functools.lru_cache(maxsize=8)  # a handful of spaces are alive at a time
def distributions(choices: Choices) -> dict[str, Any]:
    """What Optuna calls the choices, by key."""
    return {p.key: _distribution(p.choice) for p in choices.open}


def _distribution(choice: Choice) -> Any:
    from optuna.distributions import FloatDistribution, IntDistribution

    if isinstance(choice, OneOf):
        return IntDistribution(0, len(choice.values) - 1)
    assert isinstance(choice, Range)
    if choice.whole:
        return IntDistribution(
            int(choice.low), int(choice.high), log=choice.log, step=int(choice.step or 1)
        )
    return FloatDistribution(choice.low, choice.high, log=choice.log, step=choice.step)


class GivenSampler(OptunaStrategy):
    """An Optuna sampler of the user, as it is; one with a seed can be resumed."""

    constrains = False
    replays = True

    def __init__(self, context: SamplerContext, *, given: BaseSampler, **options: Any) -> None:
        self._given, self.sampler = given, type(given).__name__
        if options:
            raise ValueError(
                f"search.strategy.setup.sampler_options is only for samplers given by name; "
                f"pass {', '.join(options)} to {self.sampler} itself"
            )
        super().__init__(context)
        self._over = False
        self._study.stop = self._stop  # type: ignore[method-assign]

    def _stop(self) -> None:
        """What a sampler calls that has no more designs."""
        self._over = True

    def _sampler(self, number: int) -> BaseSampler:
        return self._given

    def ask(self, number: int) -> Chosen | None:
        return None if self._over else super().ask(number)


@register_strategy("tpe")
class TPE(OptunaStrategy):
    """Where good designs are denser than bad ones: the labs' default."""

    sampler = "TPESampler"


@register_strategy("nsgaii")
class NSGAII(OptunaStrategy):
    """Generations of designs, for several objectives."""

    sampler = "NSGAIISampler"
    replays = True  # who the parents of a generation are


@register_strategy("nsgaiii")
class NSGAIII(OptunaStrategy):
    """Generations of designs, for three objectives and more."""

    sampler = "NSGAIIISampler"
    replays = True  # who the parents of a generation are


@register_strategy("qmc")
class QMC(OptunaStrategy):
    """Points that fill the space evenly."""

    sampler = "QMCSampler"
    constrains = False
    one_seed = True
    replays = True

    def _further(self, number: int) -> dict[str, Any]:
        import optuna

        # keys that only some designs have are no part of the sequence
        return {"independent_sampler": optuna.samplers.RandomSampler(self.context.seed_of(number))}


@register_strategy("gp")
class GP(OptunaStrategy):
    """A Gaussian process of what is known so far; for few, dear trials."""

    sampler = "GPSampler"

    def _sampler(self, number: int) -> BaseSampler:
        from chop.actions.search.space.rounded import Rounded, has_long_ranges

        made = super()._sampler(number)
        return Rounded(made) if has_long_ranges(distributions(self.context.choices)) else made


@register_strategy("cmaes")
class CmaEs(OptunaStrategy):
    """A cloud of designs that moves; for numbers, and one objective."""

    sampler = "CmaEsSampler"
    several = False
    constrains = False
    replays = True
