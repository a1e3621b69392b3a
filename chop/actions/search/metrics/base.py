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
    """Raised through a runner when its trial can no longer reach the Pareto front."""


@dataclass(frozen=True)
class RungScore:
    """The metrics of a trial at a rung."""

    metrics: Metrics
    costs: tuple[float, ...] | None = None  # its objectives, None if a metric is missing yet

    @property
    def loss(self) -> float:
        return self.metrics["loss"]


def _never_stop(step: int, metrics: Metrics) -> None:
    """Accept a report without stopping the trial."""


def _unknown_costs(metrics: Metrics) -> None:
    """Return no costs, for a trial without objectives."""


def _uncompared(rung: int, metrics: Metrics) -> tuple[RungScore, tuple[RungScore, ...]]:
    """Return the score of a trial that is compared with no other."""
    return RungScore(metrics), ()


@dataclass
class Trial:
    """One candidate, to be looked at by the runners one after the other."""

    number: int
    config: dict[str, Any]  # as it is saved: node -> {"config": {...}}
    seed: int
    make_graph: Callable[[], MaseGraph] = field(repr=False)
    model: nn.Module = field(repr=False)  # the candidate's; metadata need not be up to date
    fresh: tuple[str, ...] = ()  # layers with untrained weights
    # a runner that trains reports its metrics after each epoch; raises `Stopped` to end the trial
    report: Callable[[int, Metrics], None] = field(default=_never_stop, repr=False)
    found: dict[str, float] = field(default_factory=dict)  # metrics of the runners before
    # the objectives of the trial with these metrics, None while a metric is missing
    costs: Callable[[Metrics], tuple[float, ...] | None] = field(default=_unknown_costs, repr=False)
    # stores the score of the trial at a rung; returns it and the scores of the trials before it
    mark: Callable[[int, Metrics], tuple[RungScore, Sequence[RungScore]]] = field(
        default=_uncompared, repr=False
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


class PopulationRunner(Runner):
    """A runner that can measure several trials at once."""

    population: int  # trials that are measured together
    rungs: tuple[int, ...] = ()  # epochs after which they are compared

    def together(self, trials: Sequence[Trial]) -> dict[int, Metrics | Exception]:
        """Return the result of each trial by number; missing trials have to be run alone."""
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
