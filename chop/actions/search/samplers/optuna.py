"""Optuna's samplers, with a different seed for every trial."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from chop.actions.search.samplers.base import Chosen, SamplerContext, Strategy, register_strategy
from chop.actions.search.space.choices import Choice, Choices, OneOf, Range
from chop.options import options_of_class

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

logger = logging.getLogger(__name__)

VIOLATIONS = "violations"
PLAIN: dict[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str)}
RESERVED = ("seed", "constraints_func", "independent_sampler")  # arguments that are not options
# Private: the keys that all trials have in common, which a new sampler would compute from all
# trials (with 1,000 trials that is most of the time of tpe)
SHARED = ("_search_space", "_intersection_search_space")


class OptunaStrategy(Strategy):
    """A sampler of Optuna over a study in memory.

    Each trial gets a new sampler with the seed of that trial: its design depends only on the
    earlier trials, so that a resumed search continues as if it had not stopped.
    """

    sampler: str  # its class in optuna.samplers
    several: ClassVar[bool] = True  # whether it supports more than one objective
    constrains: ClassVar[bool] = True  # whether it takes constraints into account
    one_seed: ClassVar[bool] = False  # whether all trials share a seed, as points of one sequence
    replays: ClassVar[bool] = False  # whether it has more state than the trials

    def __init__(self, context: SamplerContext, **options: Any) -> None:
        super().__init__(context)
        import optuna

        if len(context.directions) > 1 and not self.several:
            raise ValueError(
                f"{self.sampler} supports one objective, not {len(context.directions)}; set "
                f"sum_scaled_metrics = true, or use tpe or nsgaii"
            )
        self._options = options
        self._shared: dict[str, Any] = {}
        self._sampler(0)  # refuses invalid options
        self._storage = optuna.storages.InMemoryStorage()
        directions: Any = context.directions
        self._study = study_in_memory(storage=self._storage, directions=directions)
        self._study_id = self._storage.get_study_id_from_name(self._study.study_name)
        self._asked: set[int] = set()

    @classmethod
    def options(cls) -> dict[str, Any]:
        import optuna

        parameters = inspect.signature(getattr(optuna.samplers, cls.sampler)).parameters
        kinds = {k: _kind(p.annotation) for k, p in parameters.items() if k not in RESERVED}
        own = options_of_class(cls, Strategy)[0]
        return kinds | {name: option.hint for name, option in own.items()}

    def _sampler(self, number: int) -> BaseSampler:
        import optuna

        options = self._options | self._more_arguments(number)
        if self.constrains and self.context.constrained:
            options["constraints_func"] = _violations
        seed = self.context.seed if self.one_seed else self.context.seed_of(number)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about experimental arguments
                sampler: BaseSampler = getattr(optuna.samplers, self.sampler)(seed=seed, **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"search.strategy.setup.sampler_options: {error}") from error
        for name in SHARED:
            if hasattr(sampler, name):
                setattr(sampler, name, self._shared.setdefault(name, getattr(sampler, name)))
        return sampler

    def _more_arguments(self, number: int) -> dict[str, Any]:
        """Return arguments of the sampler that no file can hold."""
        return {}

    def ask(self, number: int) -> Chosen | None:
        self._study.sampler = self._sampler(number)
        with quiet():
            if number < len(self.context.uniform):
                design = self.context.uniform[number]
                self._study.enqueue_trial(self.context.choices.encoded(design))
            trial = self._study.ask()
            self._asked.add(number)
            assert trial.number == number, "trials are asked for in their order"
            return self.context.choices.suggest(trial)

    def notes(self, number: int) -> Mapping[str, Any]:
        if number not in self._asked or self.replays:
            return {}
        return dict(self._storage.get_trial(self._trial_id(number)).system_attrs)

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)

    def adopt(self, number: int, chosen: Chosen, notes: Mapping[str, Any]) -> None:
        from optuna.trial import TrialState, create_trial

        if not self.replays:
            numbers, known = encoded(self.context.choices, chosen)
            facts: Any = {"params": numbers, "distributions": known, "system_attrs": dict(notes)}
            template = create_trial(state=TrialState.RUNNING, **facts)
            self._storage.create_new_trial(self._study_id, template)
        elif self.ask(number) != chosen:
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
            state = TrialState.FAIL if values is None else TrialState.COMPLETE
            study.tell(number, None if values is None else list(values), state)
        self._asked.discard(number)
        finished = storage.get_trial(trial_id)  # not a copy: it does not change any more
        finished.distributions = _shared(self.context.choices, finished.params)


def _kind(annotation: str) -> Any:
    """Return the type of an argument, Any if a file cannot hold it."""
    first, *others = annotation.split(" | ")
    if first not in PLAIN or others not in ([], ["None"]):
        return Any
    return PLAIN[first] | None if others else PLAIN[first]


def _violations(trial: FrozenTrial) -> Sequence[float]:
    violations: Sequence[float] = trial.user_attrs.get(VIOLATIONS, ())
    return violations


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Ignore Optuna's warnings, which do not apply to a study in memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def study_in_memory(**arguments: Any) -> Study:
    """Return a new study of Optuna, which would be announced as if it were the user's."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with quiet():
            return optuna.create_study(**arguments)
    finally:
        optuna.logging.set_verbosity(verbosity)


def hide_messages() -> None:
    """Hide what Optuna's samplers log, but not its warnings."""
    import optuna

    if not logger.isEnabledFor(logging.DEBUG):
        optuna.logging.set_verbosity(optuna.logging.WARNING)


def encoded(choices: Choices, chosen: Chosen) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a design as suggested numbers, and the distributions of these."""
    numbers = choices.encoded(chosen)
    return numbers, _shared(choices, numbers)


def _shared(choices: Choices, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the distributions of the keys of a design, one object for designs with all keys."""
    known = distributions(choices)
    return known if len(numbers) == len(known) else {key: known[key] for key in numbers}


@functools.lru_cache(maxsize=8)  # a handful of spaces are alive at a time
def distributions(choices: Choices) -> dict[str, Any]:
    """Return the choices as distributions of Optuna, by key."""
    return {p.key: _distribution(p.choice) for p in choices.open}


def _distribution(choice: Choice) -> Any:
    from optuna.distributions import FloatDistribution, IntDistribution

    if isinstance(choice, OneOf):
        return IntDistribution(0, len(choice.values) - 1)
    assert isinstance(choice, Range)
    if choice.whole:
        low, high, step = int(choice.low), int(choice.high), int(choice.step or 1)
        return IntDistribution(low, high, log=choice.log, step=step)
    return FloatDistribution(choice.low, choice.high, log=choice.log, step=choice.step)


class UserSampler(OptunaStrategy):
    """An Optuna sampler that the user has made; it can be resumed if it has a seed."""

    constrains = False
    replays = True

    def __init__(self, context: SamplerContext, *, instance: BaseSampler, **options: Any) -> None:
        self._instance, self.sampler = instance, type(instance).__name__
        if options:
            raise ValueError(
                f"search.strategy.setup.sampler_options is only for samplers given by name; "
                f"pass {', '.join(options)} to {self.sampler} itself"
            )
        super().__init__(dataclasses.replace(context, uniform=()))  # the user's alone
        self._exhausted = False
        self._study.stop = self._stop  # type: ignore[method-assign]

    def _stop(self) -> None:
        """Take the call of a sampler that has no more designs."""
        self._exhausted = True

    def _sampler(self, number: int) -> BaseSampler:
        return self._instance

    def ask(self, number: int) -> Chosen | None:
        return None if self._exhausted else super().ask(number)


@register_strategy("tpe")
class TPE(OptunaStrategy):
    """Tree-structured Parzen estimator: the labs' default."""

    sampler = "TPESampler"


@register_strategy("nsgaii")
class NSGAII(OptunaStrategy):
    """Generations of designs, for several objectives."""

    sampler = "NSGAIISampler"
    replays = True  # the parents of a generation


@register_strategy("nsgaiii")
class NSGAIII(NSGAII):
    """Generations of designs, for three objectives and more."""

    sampler = "NSGAIIISampler"


@register_strategy("qmc")
class QMC(OptunaStrategy):
    """Quasi-Monte Carlo: points that fill the space evenly."""

    sampler = "QMCSampler"
    constrains = False
    one_seed = True
    replays = True

    def _more_arguments(self, number: int) -> dict[str, Any]:
        import optuna

        # for keys that only some designs have, which are not part of the sequence
        others = optuna.samplers.RandomSampler(self.context.seed_of(number))
        # a sequence that is not scrambled begins with the narrowest design, whatever the seed
        scrambled = {"scramble": True} if self.context.uniform else {}
        return {"independent_sampler": others, **scrambled, **self._options}


@register_strategy("gp")
class GP(OptunaStrategy):
    """A Gaussian process over the trials so far, for few, expensive trials."""

    sampler = "GPSampler"

    def _sampler(self, number: int) -> BaseSampler:
        from chop.actions.search.space.rounded import LongRangeSampler, is_long

        sampler, ranges = super()._sampler(number), distributions(self.context.choices).values()
        return LongRangeSampler(sampler) if any(map(is_long, ranges)) else sampler


@register_strategy("cmaes")
class CmaEs(OptunaStrategy):
    """Covariance matrix adaptation, for numbers and one objective."""

    sampler = "CmaEsSampler"
    several = False
    constrains = False
    replays = True
