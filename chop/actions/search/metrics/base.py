"""What a runner is: made once for a search, called for every trial, gives numbers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

# files of users import the types of options from here
from chop.options import NonNegativeFloat as NonNegativeFloat
from chop.options import NonNegativeInt as NonNegativeInt
from chop.options import Option, Options, options_of, options_of_class
from chop.options import PositiveFloat as PositiveFloat
from chop.options import PositiveInt as PositiveInt
from chop.options import Share as Share
from chop.registry import Registry

if TYPE_CHECKING:
    import torch
    from torch import nn

    from chop.actions.search.metrics.rungs import RungScore
    from chop.ir.graph.mase_graph import MaseGraph

Side = Literal["software", "hardware"]
Direction = Literal["maximize", "minimize"]
Metrics = Mapping[str, float]


@dataclass(frozen=True)
class RunnerContext:
    """What stays the same over a search: the parent network, its data, and where it runs."""

    graph: MaseGraph  # the parent as it was loaded, on `device`; never changed
    model_info: Any
    task: str
    data_module: Any  # prepared and set up
    dataset_info: Any
    device: torch.device
    seed: int = 0
    folder: Path | None = None  # for what a runner wants to keep

    @property
    def model(self) -> nn.Module:
        return self.graph.model


class Stopped(Exception):
    """Raised through a runner when its trial cannot get onto the front any more."""


def _never(step: int, metrics: Metrics) -> None:
    """The watch of a trial that is never stopped early."""


def _unknown(metrics: Metrics) -> None:
    """The costs of a trial that nobody has objectives for."""


def _alone(rung: int, metrics: Metrics) -> tuple[RungScore, tuple[RungScore, ...]]:
    """The mark of a trial that is compared with no other."""
    from chop.actions.search.metrics.rungs import RungScore

    return RungScore(metrics), ()


@dataclass
class Trial:
    """One candidate, to be looked at by the runners one after the other."""

    number: int
    config: dict[str, Any]  # as it is saved: node -> {"config": {...}}
    seed: int
    make_graph: Callable[[], MaseGraph] = field(repr=False)
    model: nn.Module = field(repr=False)  # the candidate's; metadata need not be up to date
    fresh: tuple[str, ...] = ()  # layers whose weights nobody has trained
    # a runner that learns tells its metrics after each epoch; raises `Stopped` where that is all
    report: Callable[[int, Metrics], None] = field(default=_never, repr=False)
    found: dict[str, float] = field(default_factory=dict)  # metrics of the runners before
    # what the objectives would make of the trial with these metrics, None if more has to be known
    costs: Callable[[Metrics], tuple[float, ...] | None] = field(default=_unknown, repr=False)
    # notes down what it has come to at a rung; that, and what the trials before it had come to
    mark: Callable[[int, Metrics], tuple[RungScore, Sequence[RungScore]]] = field(
        default=_alone, repr=False
    )

    @property
    def graph(self) -> MaseGraph:
        """The candidate with metadata that are up to date."""
        return self.make_graph()


class Runner:
    """Subclass, or decorate a function with `metric`; keyword-only parameters are the options."""

    name: ClassVar[str]
    side: ClassVar[Side]
    # what it gives, and which way is better; options may add to it
    metrics: Mapping[str, Direction]
    trains: ClassVar[bool] = False  # whether it changes the weights of the candidate
    measures_time: bool = False  # whether two calls may give two numbers

    def __init__(self, context: RunnerContext) -> None:
        self.context = context

    @property
    def scene(self) -> RunnerContext:
        """The former name of `context`."""
        return self.context

    def __call__(self, trial: Trial) -> Metrics:
        raise NotImplementedError

    def available(self) -> tuple[str, ...]:
        """The metrics that this runner gives with its options."""
        return tuple(self.metrics)

    @classmethod
    def direction_of(cls, metric: str, options: Mapping[str, Any]) -> Direction | None:
        """Which way a metric is better, None if it is not given with these options.

        Asked before there are data; a runner whose metrics depend on them answers as best it can.
        """
        return cls.metrics.get(metric)

    @classmethod
    def compares(cls, options: Mapping[str, Any]) -> bool:
        """Whether, with these options, a trial depends on what those before it have come to."""
        return False

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The keys of its TOML table."""
        return options_of_class(cls, Runner)[0]


class Together(Runner):
    """A runner that takes several trials at once; one alone, too."""

    population: int  # trials that belong together
    rungs: tuple[int, ...] = ()  # epochs after which they are compared

    def together(self, trials: Sequence[Trial]) -> dict[int, Metrics | Exception]:
        """What came of each trial, by number; missing are those that have to be run alone."""
        raise NotImplementedError


RUNNERS: Registry[type[Runner]] = Registry("runner", package="chop.actions.search.metrics")


def register_runner(name: str, side: Side) -> Callable[[type[Runner]], type[Runner]]:
    """File a subclass of `Runner` under `[search.strategy.sw_runner.<name>]`, or `hw_runner`."""

    def wrap(cls: type[Runner]) -> type[Runner]:
        cls.name, cls.side = name, side
        return RUNNERS.register(name)(cls)

    return wrap


def metric(
    name: str, *, side: Side, better: Direction, counted: bool = False
) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Register `fn(trial, *, option=default) -> float` as a runner that gives one metric.

    `counted` has no effect; files that were written for an earlier version give it.
    """

    def wrap(fn: Callable[..., float]) -> Callable[..., float]:
        class Single(_FunctionRunner):
            measure = staticmethod(fn)
            metrics: Mapping[str, Direction] = {name: better}

        Single.__doc__, Single.__module__, Single.__qualname__ = (
            fn.__doc__,
            fn.__module__,
            fn.__qualname__,
        )
        register_runner(name, side)(Single)
        return fn

    return wrap


class _FunctionRunner(Runner):
    measure: ClassVar[Callable[..., float]]

    def __init__(self, context: RunnerContext, **options: Any) -> None:
        super().__init__(context)
        self._options = options

    def __call__(self, trial: Trial) -> Metrics:
        return {self.name: float(type(self).measure(trial, **self._options))}

    @classmethod
    def options(cls) -> dict[str, Option]:
        return dict([*options_of(cls.measure).items()][1:])


def check_options(cls: type[Runner], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the options of a runner's TOML table, typed; `where` begins the messages."""
    return Options(where, cls.options(), "key").check(given)
