"""The `[search]` tables of a file, checked as a whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar, cast

from annotated_types import Predicate
from pydantic import BaseModel, ConfigDict, InstanceOf

from chop.actions.config import ConfigError
from chop.actions.search.metrics.base import RUNNERS, Direction, Runner, Side, check_options
from chop.actions.search.metrics.objectives import Constraint, Objective, Objectives
from chop.actions.search.samplers.base import STRATEGIES, MakeStrategy, Strategy, strategy_named
from chop.actions.search.space.learned_names import LEARNED, MAX_DESIGNS
from chop.actions.search.space.untraced import is_module_style
from chop.hardware.estimate import CLOCK_PERIOD
from chop.hardware.synth_options import SynthOptions, Target
from chop.options import (
    NonNegativeFloat,
    NonNegativeInt,
    Option,
    Options,
    PositiveFloat,
    PositiveInt,
    Says,
    WrongOptions,
    did_you_mean,
    options_of,
)
from chop.registry import IF_YOURS, UnknownName
from chop.training.learned.options import FrontOptions, front_options
from chop.training.options import RETRAIN, TrainOptions, table_options

TABLES = ("search_space", "strategy", "train_parent", "retrain", "synthesize", "emit")
SPACE_KEYS = ("name", "style", "setup", "seed", "passes", "options", "calibrate")
STRATEGY_KEYS = (
    *("name", "setup", "metrics", "constraints", "early_stopping", "eval_mode"),
    "gradient",
)
SIDES: dict[str, Side] = {"sw_runner": "software", "hw_runner": "hardware"}
# keys of older files that have no effect: every trial is saved, and one process runs a study
IGNORED = ("model_parallel", "runner_style", "save_every_n_trials", "heartbeat")


class _Table(BaseModel):
    """A checked table, which cannot be changed."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)


class EarlyStopping(_Table):
    """A trial in training is stopped if it would be dominated even if `margin` better."""

    # the possible improvement by metric, unscaled
    margin: Annotated[
        dict[str, NonNegativeFloat],
        Says("must give the possible improvement of each metric, as in margin.accuracy = 0.02"),
    ] = {}
    # reports before which nothing is stopped
    warmup: Annotated[PositiveInt, Says("must be a positive integer")] = 1


Designs = Annotated[
    Literal["front", "best"] | PositiveInt, Says("must be 'front', 'best' or a number")
]


class Retrain(_Table):
    """`[search.retrain]`: the designs that are trained after the search, and how."""

    designs: Designs
    training: InstanceOf[TrainOptions]


class Synthesize(_Table):
    """`[search.synthesize]`: the designs whose circuits are synthesised after the search."""

    designs: Designs = "front"
    target: Target = "xilinx"
    clock_period: PositiveFloat = CLOCK_PERIOD  # ns; that of the other table if only it has one
    timeout: PositiveFloat = SynthOptions.timeout  # seconds for each design


class Emit(_Table):
    """`[search.emit]`: the designs whose circuits are written, and simulated on validation data."""

    designs: Designs = "best"
    clock_period: PositiveFloat = CLOCK_PERIOD  # ns; that of the other table if only it has one
    simulate: bool = True
    num_samples: PositiveInt = 1000


CircuitsT = TypeVar("CircuitsT", Synthesize, Emit)


class GradientTable(_Table):
    """`[search.strategy.gradient]`: how the front is trained, and from which teacher it learns."""

    front: InstanceOf[FrontOptions]
    teacher: str | None = None  # a saved graph; by default the parent


class Goal(_Table):
    """`[search.strategy.metrics.<name>]`; the default direction is that of the metric."""

    scale: Annotated[
        float, Predicate(lambda x: 0 < abs(x) < math.inf), Says("must be a number other than 0")
    ] = 1.0
    direction: Annotated[Direction, Says("must be maximize or minimize")] | None = None


class Setup(_Table):
    """`[search.strategy.setup]`."""

    n_jobs: PositiveInt = 1
    n_trials: PositiveInt = 20
    timeout: NonNegativeFloat | None = None
    trial_timeout: NonNegativeFloat | None = None
    in_flight: PositiveInt = 8
    fail_fast: bool = False
    retries: NonNegativeInt = 2
    threads: PositiveInt = 1
    cpus_per_trial: NonNegativeFloat = 1
    gpus_per_trial: NonNegativeFloat | None = None  # one if the parent is on a GPU
    sampler: str = "tpe"
    sampler_options: dict[str, Any] = {}
    uniform_first: bool = True
    sum_scaled_metrics: bool = False
    direction: Annotated[Direction, Says("must be maximize or minimize")] = "maximize"
    honour_directions: bool = True
    pkl_ckpt: str | None = None


class Settings(Setup):
    """`[search]`."""

    space: Mapping[str, Any]
    runners: tuple[tuple[type[Runner], Mapping[str, Any]], ...]
    objectives: InstanceOf[Objectives]
    strategy: MakeStrategy
    early_stopping: EarlyStopping | None = None
    retrain: Retrain | None = None
    synthesize: Synthesize | None = None
    emit: Emit | None = None
    gradient: GradientTable | None = None

    @property
    def trains(self) -> bool:
        return any(cls.trains for cls, _ in self.runners)

    @property
    def compares(self) -> bool:
        """Whether the outcome of a trial depends on earlier trials."""
        compared = any(cls.compares(options) for cls, options in self.runners)
        return compared or self.early_stopping is not None


def settings_of(
    search: Mapping[str, Any], where: str = "", own: MakeStrategy | None = None
) -> Settings:
    """Return the settings, or raise all problems at once, each starting with `where`.

    With the user's `own` strategy, the sampler may have any name.
    """
    problems: list[str] = []

    def attempt(read: Callable[..., Any], *args: Any) -> Any:
        try:
            return read(*args)
        except (ValueError, UnknownName, TypeError) as error:
            texts = error.problems if isinstance(error, WrongOptions) else [str(error)]
            problems.extend(t for t in (f"{where}{t}" for t in texts) if t not in problems)
            return None

    attempt(Options.named("search", TABLES).check, search)
    space = attempt(_table, search, "search_space", "search") or {}
    strategy = attempt(_table, search, "strategy", "search") or {}
    attempt(Options.named("search.search_space", SPACE_KEYS).check, space)
    attempt(is_module_style, space)
    attempt(Options.named("search.strategy", (*STRATEGY_KEYS, *SIDES)).check, strategy)
    attempt(_check_name, strategy)
    runners = [r for key in SIDES for r in attempt(_runners, strategy, key) or ()]
    setup = attempt(_setup, strategy) or Setup()
    objectives = attempt(_goals, strategy, setup, runners) if not problems else None
    chosen = own or attempt(strategy_named, setup.sampler)
    options = attempt(_sampler_options, chosen, setup.sampler_options)
    stopping = attempt(_early_stopping, strategy, objectives, runners)
    retrain = attempt(_retrain, search.get("retrain"))
    gradient = attempt(_gradient, search, setup, runners) if not problems else None
    synthesize, emit = (attempt(_circuits, search, kind) for kind in (Synthesize, Emit))
    if problems or objectives is None:
        raise ConfigError(*problems)
    values = {**vars(setup), "sampler": setup.sampler.lower(), "sampler_options": options}
    if gradient is not None:  # every design is a trial, unless a number is given
        limited = "n_trials" in setup.model_fields_set
        values |= {"uniform_first": False} | ({} if limited else {"n_trials": MAX_DESIGNS})
    return Settings(
        **values,
        space=space,
        runners=tuple(runners),
        objectives=objectives,
        strategy=chosen,
        early_stopping=stopping,
        retrain=retrain,
        synthesize=_with_clock_of(synthesize, emit),
        emit=_with_clock_of(emit, synthesize),
        gradient=gradient,
    )


def check_tables(search: Mapping[str, Any], where: str = "") -> None:
    """Refuse values that are not tables, in the tables that are read before they are checked."""
    for key in ("search_space", "strategy"):
        try:
            _table(search, key, "search")
        except ValueError as error:
            raise ConfigError(f"{where}{error}") from error
    space = search["search_space"]
    inner = {f"search_space.{key}": space.get(key) for key in ("seed", "passes")}
    seeds = space["seed"] if isinstance(space.get("seed"), Mapping) else {}
    for name, seed in seeds.items():
        if isinstance(seed, Mapping):
            inner[f"search_space.seed.{name}.config"] = seed.get("config")
    for path, table in inner.items():
        if not isinstance(table, Mapping | None):
            raise ConfigError(f"{where}search.{path} must be a table, not {table!r:.80}")


def _table(tables: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    table = tables.get(key)
    if not isinstance(table, Mapping):
        raise ValueError(f"{where}.{key} is missing; add a table [{where}.{key}]")
    return dict(table)


def _check_name(strategy: Mapping[str, Any]) -> None:
    name = strategy.get("name", "optuna")
    if name != "optuna" and str(name).lower() not in STRATEGIES:
        raise UnknownName(
            "strategy in search.strategy.name", name, ["optuna", *STRATEGIES], IF_YOURS
        )


def _runners(strategy: Mapping[str, Any], key: str) -> list[tuple[type[Runner], Mapping[str, Any]]]:
    tables = strategy.get(key, {})
    if not isinstance(tables, Mapping):
        raise ValueError(f"search.strategy.{key} holds tables of runners, not {tables!r}")
    runners: list[tuple[type[Runner], Mapping[str, Any]]] = []
    for name, options in tables.items():
        where = f"search.strategy.{key}.{name}"
        cls = RUNNERS[name]
        if cls.side != SIDES[key]:
            right = next(k for k, side in SIDES.items() if side == cls.side)
            raise ValueError(f"{where}: {name} is a {right}; move it to search.strategy.{right}")
        runners.append((cls, check_options(cls, options, where)))
    return runners


def _setup(strategy: Mapping[str, Any]) -> Setup:
    """Return the checked table; a strategy may also have the name of a sampler."""
    where, table = "search.strategy.setup", strategy.get("setup", {})
    if isinstance(table, Mapping):
        table = {k: v for k, v in table.items() if v is not None and k not in IGNORED}
    values = Options(where, options_of(Setup), "key").check(table)
    if values.get("pkl_ckpt"):
        raise ValueError(
            f"{where}.pkl_ckpt names a pickle, which could run any code when it is "
            f"read; studies are stored elsewhere: continue one with --resume, or give its --storage"
        )
    name = strategy.get("name", "optuna")
    is_sampler = name != "optuna" and str(name).lower() in STRATEGIES
    return Setup(**({"sampler": name} if is_sampler else {}) | values)


def _sampler_options(chosen: MakeStrategy | None, table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the typed options of a sampler; those of other objects are not checked."""
    known = chosen.options() if isinstance(chosen, type) and issubclass(chosen, Strategy) else None
    if not table or known is None:
        return table
    where = "search.strategy.setup.sampler_options"
    if "seed" in table and "seed" not in known:
        raise ValueError(
            f"{where} has no key 'seed'; set the seed of the search with --seed or seed"
        )
    options = {name: Option(name, hint, None) for name, hint in known.items()}
    return Options(where, options, "key").check(table)


def _goals(strategy: Mapping[str, Any], setup: Setup, runners: list[Any]) -> Objectives:
    tables = strategy.get("metrics", {})
    if not isinstance(tables, Mapping) or not tables:
        raise ValueError(
            "search.strategy.metrics has no objectives; add for example accuracy.scale = 1.0"
        )
    objectives = tuple(_goal(name, tables[name], runners) for name in sorted(tables))
    summed = setup.direction if setup.sum_scaled_metrics else None
    texts = strategy.get("constraints", [])
    if not isinstance(texts, list):
        raise ValueError(
            f"search.strategy.constraints must be a list of texts such as 'bitops < 2e6', "
            f"not {texts!r}"
        )
    constraints = tuple(Constraint.parse(t, "search.strategy.constraints") for t in texts)
    for constraint in constraints:
        _direction(constraint.metric, runners, "search.strategy.constraints")
    for upper, lower in itertools.product(constraints, constraints):
        if upper.contradicts(lower):
            raise ValueError(
                f"search.strategy.constraints: {upper} and {lower} contradict each other; "
                f"change one of the bounds"
            )
    return Objectives(objectives, summed, constraints, setup.honour_directions)


def _direction(name: str, runners: list[Any], where: str) -> Direction:
    """Return which direction of a metric is better; metrics without a runner are refused."""
    for cls, options in runners:
        if (direction := cls.direction_of(name, options)) is not None:
            return cast(Direction, direction)
    measured = dict.fromkeys(metric for cls, _ in runners for metric in cls.metrics)
    makers = sorted(cls.name for cls in RUNNERS.values() if name in cls.metrics)
    fix = f"; {makers[0]} does: add its table" if makers else did_you_mean(name, measured)
    raise ValueError(
        f"{where}: no runner measures {name!r}{fix} "
        f"(measured: {', '.join(measured) or 'nothing; add [search.strategy.sw_runner.…]'})"
        f"{'' if makers else IF_YOURS}"
    )


def _goal(name: str, table: Any, runners: list[Any]) -> Objective:
    usual = _direction(name, runners, "search.strategy.metrics")
    where = f"search.strategy.metrics.{name}"
    goal = Goal(**Options(where, options_of(Goal), "key").check(table))
    return Objective(name, goal.direction or usual, goal.scale)


def _retrain(table: Any) -> Retrain | None:
    if table is None:
        return None
    designs = replace(options_of(Retrain)["designs"], default="best")
    known = {"designs": designs} | table_options("search.retrain", RETRAIN)
    values = {name: option.default for name, option in known.items()}
    values |= Options("search.retrain", known, "key", finite=True).check(table)
    return Retrain(designs=values.pop("designs"), training=TrainOptions(**values))


def _circuits(search: Mapping[str, Any], kind: type[Synthesize | Emit]) -> Any:
    """Return the table of a kind, or None."""
    key = kind.__name__.lower()
    if search.get(key) is None:
        return None
    return kind(**Options(f"search.{key}", options_of(kind), "key", finite=True).check(search[key]))


def _with_clock_of(table: CircuitsT | None, other: Synthesize | Emit | None) -> CircuitsT | None:
    """Return a table with the clock period of the other one if it has none of its own."""
    if table is None or other is None or "clock_period" in table.model_fields_set:
        return table
    return table.model_copy(update={"clock_period": other.clock_period})


def _gradient(search: Mapping[str, Any], setup: Setup, runners: list[Any]) -> GradientTable | None:
    """Return the checked table of the strategy `gradient`, None for other strategies."""
    where, strategy = "search.strategy.gradient", dict(search.get("strategy") or {})
    table = strategy.get("gradient")
    space = (search.get("search_space") or {}).get("name")
    if setup.sampler.lower() != "gradient":
        if space == LEARNED:
            raise ValueError(
                f'the space {LEARNED} is trained as a whole; set name = "gradient" in '
                f"search.strategy"
            )
        if table is not None:
            raise ValueError(f'{where} is for name = "gradient"; set it, or omit the table')
        return None
    if space != LEARNED:
        raise ValueError(f'gradient needs search.search_space.name = "{LEARNED}", not {space!r}')
    for key, fix in {
        "retrain": f"set retrain = 1000 in [{where}], which trains designs with their widths",
        "early_stopping": "omit it: a front is trained as a whole",
    }.items():
        if (search if key == "retrain" else strategy).get(key):
            raise ValueError(f"search.{key} has no use with gradient; {fix}")
    training = [cls.name for cls, _ in runners if cls.trains]
    if training:
        raise ValueError(
            f"{training[0]} trains designs, which gradient has trained; use basic_evaluation"
        )
    known = {k: o for k, o in front_options().items() if k != "seed"}
    known["teacher"] = Option("teacher", str | None, None)
    checked = Options(where, known, "key", finite=True).check({} if table is None else table)
    teacher = checked.pop("teacher", None)
    return GradientTable(front=FrontOptions.of(where, checked), teacher=teacher)


def _early_stopping(
    strategy: Mapping[str, Any], objectives: Objectives | None, runners: list[Any]
) -> EarlyStopping | None:
    table = strategy.get("early_stopping")
    if table is None or table is False:
        return None
    where = "search.strategy.early_stopping"
    stopping = EarlyStopping(**Options(where, options_of(EarlyStopping), "key").check(table))
    if objectives is None:
        return stopping
    metrics = [objective.name for objective in objectives.members]
    Options.named(f"{where}.margin", metrics).check(stopping.margin)
    if not any(cls.trains for cls, _ in runners):
        raise ValueError(
            f"{where} is for candidates that are trained, but no runner trains; add a table "
            f"[search.strategy.sw_runner.basic_train], or omit early_stopping"
        )
    return stopping
