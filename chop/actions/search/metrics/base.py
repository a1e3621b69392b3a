"""Runners: made once for a search, called for every trial, return metrics by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

# files of users import the types of options from here
from chop.options import NonNegativeFloat as NonNegativeFloat
from chop.options import NonNegativeInt as NonNegativeInt
from chop.options import Option, Options, options_of, options_of_class
from chop.options import PositiveFloat as PositiveFloat
from chop.options import PositiveInt as PositiveInt
from chop.options import Share as Share
from chop.registry import Registry, not_defined

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
    folder: Path | None = None  # for files of runners

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


@dataclass
class Trial:
    """One candidate, which the runners measure one after the other."""

    number: int
    config: dict[str, Any]  # as it is saved: node -> {"config": {...}}
    seed: int
    make_graph: Callable[[], MaseGraph] = field(repr=False)
    model: nn.Module = field(repr=False)  # the candidate's; metadata need not be up to date
    fresh: tuple[str, ...] = ()  # layers with untrained weights
    # a runner that trains reports its metrics after each epoch; raises `Stopped` to end the trial
    report: Callable[[int, Metrics], None] = field(default=lambda step, metrics: None, repr=False)
    found: dict[str, float] = field(default_factory=dict)  # metrics of earlier runners
    trained: bool = False  # whether a runner has trained it
    # the objectives of the trial with these metrics, None while a metric is missing
    costs: Callable[[Metrics], tuple[float, ...] | None] = field(
        default=lambda metrics: None, repr=False
    )
    # stores the score of the trial at a rung; returns it and the scores of earlier trials
    mark: Callable[[int, Metrics], tuple[RungScore, Sequence[RungScore]]] = field(
        default=lambda rung, metrics: (RungScore(metrics), ()), repr=False
    )

    @property
    def graph(self) -> MaseGraph:
        """The candidate with up-to-date metadata."""
        return self.make_graph()


class Runner:
    """Subclass, or decorate a function with `metric`; keyword-only parameters are the options."""

    name: ClassVar[str]
    side: ClassVar[Side]
    # the metrics it measures, and which direction is better; options may add to them
    metrics: Mapping[str, Direction] = {}
    trains: ClassVar[bool] = False  # whether it changes the weights of the candidate
    needs_graph: ClassVar[bool] = False  # whether it cannot measure a model without a graph
    # whether its metrics depend on the values of weights, and are measured again after training
    reads_weights: ClassVar[bool] = False

    def __init__(self, context: RunnerContext) -> None:
        self.context = context

    def available(self) -> tuple[str, ...]:
        """The names of `metrics`, for runners of users that ask for them."""
        return tuple(self.metrics)

    def __call__(self, trial: Trial) -> Metrics:
        raise not_defined(self, "__call__", "runner")

    def check(self, trial: Trial) -> None:
        """Raise what measuring an untrained design would raise, if that is known without work."""

    def parent_metrics(self, trial: Trial) -> Metrics:
        """Return the metrics of the parent as it is, which a runner must not train."""
        return {} if self.trains else self(trial)

    @classmethod
    def dependent_defaults(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults of options that depend on others, for a study to store."""
        return {}

    def samples_by_metric(self) -> dict[str, int]:
        """Return the number of samples for each metric that is a share of correct samples."""
        return {}

    @classmethod
    def metrics_for(cls, task: str) -> Mapping[str, Direction]:
        """Return the metrics for a task, which is known before the data are loaded."""
        return cls.metrics

    @classmethod
    def direction_of(cls, metric: str, options: Mapping[str, Any]) -> Direction | None:
        """Return which direction is better, None for a metric that is not measured.

        It is called before the data are loaded.
        """
        return cls.metrics.get(metric)

    @classmethod
    def compares(cls, options: Mapping[str, Any]) -> bool:
        """Return whether trials with these options depend on the results of earlier trials."""
        return False

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Return the keys of its TOML table."""
        return options_of_class(cls, Runner)[0]


RUNNERS: Registry[type[Runner]] = Registry(
    "runner", "chop.actions.search.metrics", room="runners", for_users=True
)


def register_runner(
    name: str, side: Side, **metrics: Direction
) -> Callable[[type[Runner]], type[Runner]]:
    """Register a subclass of `Runner` as `[search.strategy.sw_runner.<name>]`, or `hw_runner`.

    `metrics` are what it measures, as in `loss="minimize"`, unless the class has that attribute.
    """

    def wrap(cls: type[Runner]) -> type[Runner]:
        cls.name, cls.side = name, side
        cls.metrics = metrics or cls.metrics
        for key, value, kind in (
            ("side", side, Side),
            *((metric, better, Direction) for metric, better in cls.metrics.items()),
        ):
            if value not in get_args(kind):
                choices = " or ".join(get_args(kind))
                raise ValueError(f"runner {name!r}: {key} must be {choices}, not {value!r}")
        return RUNNERS.register(name)(cls)

    return wrap


def metric(
    name: str,
    *,
    side: Side,
    better: Direction,
    needs_graph: bool = False,
) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Register `fn(trial, *, option=default) -> float` as a runner that measures one metric.

    A metric that `needs_graph` is refused for models without one.
    """

    def wrap(fn: Callable[..., float]) -> Callable[..., float]:
        names = {key: getattr(fn, key) for key in ("__doc__", "__module__", "__qualname__")}
        members = {**names, "measure": staticmethod(fn), "needs_graph": needs_graph}
        cls = type(fn.__name__, (_FunctionRunner,), members)
        register_runner(name, side, **{name: better})(cls)
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


def check_options(cls: type[Runner], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the options of a runner's TOML table, typed; messages start with `where`."""
    return Options(where, cls.options(), "key").check(table)
