"""The `[search]` tables of a file, checked as a whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from chop.actions.config import ConfigError
from chop.actions.search.metrics.base import (
    RUNNERS,
    Direction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Runner,
    Side,
    check_options,
    checked,
)
from chop.actions.search.metrics.objectives import Constraint, Objective, Objectives
from chop.actions.search.samplers.base import STRATEGIES, MakeStrategy, Strategy, strategy_named
from chop.registry import UnknownName, nearest

TABLES = ("search_space", "strategy", "train_parent", "retrain")
SPACE_KEYS = ("name", "setup", "seed", "passes", "options")
STRATEGY_KEYS = (
    "name",
    "eval_mode",
    "sw_runner",
    "hw_runner",
    "setup",
    "metrics",
    "constraints",
    "early_stopping",
)
SIDES: dict[str, Side] = {"sw_runner": "software", "hw_runner": "hardware"}
STRATEGY_NAMES = ("optuna",)
# keys of older files that have no effect: every trial is saved, and one process runs a study
IGNORED = ("model_parallel", "runner_style", "save_every_n_trials", "heartbeat")
DIRECTIONS = get_args(Direction)
IN_FLIGHT = 8


@dataclass(frozen=True)
class EarlyStopping:
    """A trial in training is stopped if `margin` better than now would still be dominated."""

    margin: Mapping[str, float]  # by metric, unscaled: how much better it may yet become
    warmup: int = 1  # reports before which nothing is stopped


@dataclass(frozen=True)
class Retrain:
    """What is trained to the end after the search, and how."""

    designs: Literal["front", "best"] | PositiveInt = "best"
    max_epochs: PositiveInt = 50
    early_stopping: PositiveInt | None = None  # epochs without a lower validation loss
    learning_rate: PositiveFloat = 1e-3
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: NonNegativeFloat = 0.0
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: NonNegativeInt = 0
    gradient_clip: PositiveFloat | None = None


@dataclass(frozen=True)
class Settings:
    """What `[search]` says."""

    space: Mapping[str, Any]
    runners: tuple[tuple[type[Runner], Mapping[str, Any]], ...]
    objectives: Objectives
    sampler: str
    strategy: MakeStrategy
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    n_trials: int = 20
    n_jobs: int = 1
    timeout: float | None = None
    trial_timeout: float | None = None
    in_flight: int = IN_FLIGHT
    fail_fast: bool = False
    retries: int = 2
    threads: int = 1
    cpus_per_trial: float = 1
    gpus_per_trial: float | None = None  # one if the parent is on a GPU
    early_stopping: EarlyStopping | None = None
    retrain: Retrain | None = None

    @property
    def trains(self) -> bool:
        return any(cls.trains for cls, _ in self.runners)

    @property
    def compares(self) -> bool:
        """Whether what comes of a trial depends on those before it."""
        runners = any(cls.compares(options) for cls, options in self.runners)
        return runners or self.early_stopping is not None


# keys of search.strategy.setup: name -> (type, least value)
SETUP: dict[str, tuple[Any, float | None]] = {
    "n_jobs": (int, 1),
    "n_trials": (int, 1),
    "timeout": (float, 0),
    "trial_timeout": (float, 0),
    "in_flight": (int, 1),
    "fail_fast": (bool, None),
    "retries": (int, 0),
    "threads": (int, 1),
    "cpus_per_trial": (float, 0),
    "gpus_per_trial": (float, 0),
    "sampler": (str, None),
    "sampler_options": (dict, None),
    "sum_scaled_metrics": (bool, None),
    "direction": (str, None),
    "honour_directions": (bool, None),
    "pkl_ckpt": (str, None),
}


GIVEN = ("sampler", "sampler_options")


def settings_of(
    search: Mapping[str, Any], where: str = "", own: MakeStrategy | None = None
) -> Settings:
    """All that is wrong with the tables is said at once; `where` they stand.

    With a strategy of one's `own`, the sampler may have any name.
    """
    problems: list[str] = []

    def attempt(read: Any, *args: Any) -> Any:
        try:
            return read(*args)
        except (ValueError, UnknownName, TypeError) as error:
            if f"{where}{error}" not in problems:
                problems.append(f"{where}{error}")
            return None

    attempt(_check_keys, search, TABLES, "search")
    space = attempt(_table, search, "search_space", "search") or {}
    strategy = attempt(_table, search, "strategy", "search") or {}
    attempt(_check_keys, space, SPACE_KEYS, "search.search_space")
    attempt(_check_keys, strategy, STRATEGY_KEYS, "search.strategy")
    attempt(_check_name, strategy)
    runners = [r for key in SIDES for r in attempt(_runners, strategy, key) or ()]
    setup = attempt(_setup, strategy) or {}
    objectives = attempt(_goals, strategy, setup, runners) if not problems else None
    sampler = str(setup.get("sampler", "tpe"))
    chosen = own or attempt(strategy_named, sampler)
    options = attempt(_sampler_options, chosen, setup.get("sampler_options", {}))
    stopping = attempt(_early_stopping, strategy, objectives, runners)
    retrain = attempt(_retrain, search)
    if problems or objectives is None:
        raise ConfigError(*problems)
    fields = [key for key in SETUP if key in Settings.__dataclass_fields__ and key not in GIVEN]
    return Settings(
        space=space,
        runners=tuple(runners),
        objectives=objectives,
        sampler=sampler.lower(),
        strategy=chosen,
        sampler_options=options,
        early_stopping=stopping,
        retrain=retrain,
        **{key: setup[key] for key in fields if setup.get(key) is not None},
    )


def check_tables(search: Mapping[str, Any], where: str = "") -> None:
    """Refuse anything but tables where the space and the strategy are read before they are made."""
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
            raise ConfigError(f"{where}search.{path} is a table, not {table!r:.80}")


def _table(tables: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    found = tables.get(key)
    if not isinstance(found, Mapping):
        raise ValueError(f"{where}.{key} is missing; add a table [{where}.{key}]")
    return dict(found)


def _check_keys(table: Mapping[str, Any], known: Any, where: str) -> None:
    for key in table:
        if key not in known:
            near = nearest(key, known)
            hint = f"; did you mean {near!r}?" if near else f" (keys: {', '.join(known)})"
            raise ValueError(f"{where} has no key {key!r}{hint}")


def _check_name(strategy: Mapping[str, Any]) -> None:
    name = strategy.get("name", "optuna")
    if name not in STRATEGY_NAMES and str(name).lower() not in STRATEGIES:  # or a sampler
        raise UnknownName("strategy in search.strategy.name", name, [*STRATEGY_NAMES, *STRATEGIES])


def _runners(strategy: Mapping[str, Any], key: str) -> list[tuple[type[Runner], Mapping[str, Any]]]:
    tables = strategy.get(key, {})
    if not isinstance(tables, Mapping):
        raise ValueError(f"search.strategy.{key} holds tables of runners, not {tables!r}")
    found: list[tuple[type[Runner], Mapping[str, Any]]] = []
    for name, options in tables.items():
        where = f"search.strategy.{key}.{name}"
        cls = RUNNERS[name]
        if cls.side != SIDES[key]:
            right = next(k for k, side in SIDES.items() if side == cls.side)
            raise ValueError(f"{where}: {name} is a {right}; move it to search.strategy.{right}")
        if not isinstance(options, Mapping):
            raise ValueError(f"{where} is a table of options, not {options!r}")
        found.append((cls, check_options(cls, options, where)))
    return found


def _setup(strategy: Mapping[str, Any]) -> dict[str, Any]:
    setup = strategy.get("setup", {})
    if not isinstance(setup, Mapping):
        raise ValueError(f"search.strategy.setup is a table, not {setup!r}")
    _check_keys(setup, [*SETUP, *IGNORED], "search.strategy.setup")
    found: dict[str, Any] = {}
    if str(strategy.get("name", "optuna")).lower() in STRATEGIES:
        found["sampler"] = strategy["name"]
    for key, value in setup.items():
        if key in IGNORED or value is None:
            continue
        found[key] = _checked(key, value)
    if found.get("pkl_ckpt"):
        raise ValueError(
            "search.strategy.setup.pkl_ckpt names a pickle, which could run any code when it is "
            "read; studies are stored elsewhere: continue one with --resume, or give its --storage"
        )
    return found


def _sampler_options(chosen: MakeStrategy | None, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a sampler, typed; one that somebody has made sees to its own."""
    if not given or not (isinstance(chosen, type) and issubclass(chosen, Strategy)):
        return given
    where, known = "search.strategy.setup.sampler_options", chosen.options()
    if known is None:
        return given
    if "seed" in given and "seed" not in known:
        raise ValueError(
            f"{where} has no key 'seed'; set the seed of the search with --seed or seed"
        )
    _check_keys(given, known, where)
    return {key: checked(known[key], value, f"{where}.{key}") for key, value in given.items()}


def _checked(key: str, value: Any) -> Any:
    kind, least = SETUP[key]
    where = f"search.strategy.setup.{key}"
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise ValueError(f"{where} is {names.get(kind, 'a table')}, not {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{where} is at least {least:g}, not {value}")
    return value


def _goals(strategy: Mapping[str, Any], setup: Mapping[str, Any], runners: list[Any]) -> Objectives:
    made = _Made(runners)
    tables = strategy.get("metrics", {})
    if not isinstance(tables, Mapping) or not tables:
        raise ValueError(
            "search.strategy.metrics has no objectives; add for example accuracy.scale = 1.0"
        )
    objectives = tuple(_goal(name, tables[name], made) for name in sorted(tables))
    direction = setup.get("direction", "maximize")
    if direction not in DIRECTIONS:
        raise ValueError(
            f"search.strategy.setup.direction is maximize or minimize, not {direction!r}"
        )
    summed = direction if setup.get("sum_scaled_metrics") else None
    texts = strategy.get("constraints", [])
    if not isinstance(texts, list):
        raise ValueError(
            f"search.strategy.constraints must be a list of texts such as 'bitops < 2e6', "
            f"not {texts!r}"
        )
    constraints = tuple(Constraint.parse(t, "search.strategy.constraints") for t in texts)
    for constraint in constraints:
        _check_produced(constraint.metric, made, "search.strategy.constraints")
    _check_together(constraints)
    return Objectives(objectives, summed, constraints, setup.get("honour_directions", True))


def _check_together(constraints: Sequence[Constraint]) -> None:
    for upper, lower in itertools.product(constraints, constraints):
        if upper.contradicts(lower):
            raise ValueError(
                f"search.strategy.constraints: {upper} and {lower} contradict each other; "
                f"change one of the bounds"
            )


class _Made(Mapping[str, Direction]):
    """What the runners of a file give, with their options, and which way is better."""

    def __init__(self, runners: list[tuple[type[Runner], Mapping[str, Any]]]) -> None:
        self._runners = runners

    def __getitem__(self, name: str) -> Direction:
        for cls, options in self._runners:
            if (found := cls.direction_of(name, options)) is not None:
                return found
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for cls, _ in self._runners for name in cls.metrics))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _goal(name: str, table: Any, made: Mapping[str, Direction]) -> Objective:
    where = f"search.strategy.metrics.{name}"
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} is a table with scale and direction, not {table!r}")
    _check_keys(table, ("scale", "direction"), where)
    _check_produced(name, made, "search.strategy.metrics")
    scale, direction = table.get("scale", 1.0), table.get("direction", made[name])
    number = isinstance(scale, int | float) and type(scale) is not bool
    if not number or scale == 0 or not math.isfinite(scale):
        raise ValueError(f"{where}.scale is a number other than 0, not {scale!r}")
    if direction not in DIRECTIONS:
        raise ValueError(f"{where}.direction is maximize or minimize, not {direction!r}")
    return Objective(name, direction, float(scale))


def _check_produced(name: str, made: Mapping[str, Direction], where: str) -> None:
    if name in made:
        return
    makers = sorted(cls.name for cls in RUNNERS.values() if name in cls.metrics)
    near = None if makers else nearest(name, made)
    fix = f"; {makers[0]} does: add its table" if makers else ""
    fix = f"; did you mean {near!r}?" if near else fix
    raise ValueError(
        f"{where}: no runner measures {name!r}{fix} "
        f"(measured: {', '.join(made) or 'nothing; add [search.strategy.sw_runner.…]'})"
    )


def _retrain(search: Mapping[str, Any]) -> Retrain | None:
    table = search.get("retrain")
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise ValueError(f"search.retrain is a table with designs and max_epochs, not {table!r}")
    _check_keys(table, Retrain.__dataclass_fields__, "search.retrain")
    designs = table.get("designs", "best")
    if designs not in ("front", "best") and not (type(designs) is int and designs > 0):
        raise ValueError(
            f"search.retrain.designs must be 'front', 'best' or a number, not {designs!r}"
        )
    hints = get_type_hints(Retrain, include_extras=True)
    return Retrain(**{k: checked(hints[k], v, f"search.retrain.{k}") for k, v in table.items()})


def _early_stopping(
    strategy: Mapping[str, Any], objectives: Objectives | None, runners: list[Any]
) -> EarlyStopping | None:
    table = strategy.get("early_stopping")
    if table is None or table is False:
        return None
    where = "search.strategy.early_stopping"
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} is a table with margin and warmup, not {table!r}")
    _check_keys(table, ("margin", "warmup"), where)
    margin, warmup = table.get("margin", {}), table.get("warmup", 1)
    if not isinstance(margin, Mapping) or not all(
        isinstance(m, int | float) and m >= 0 for m in margin.values()
    ):
        raise ValueError(
            f"{where}.margin must give the possible improvement of each metric, "
            f"as in margin.accuracy = 0.02; not {margin!r}"
        )
    if objectives is not None:
        _check_keys(margin, [objective.name for objective in objectives.members], f"{where}.margin")
    if not isinstance(warmup, int) or warmup < 1:
        raise ValueError(f"{where}.warmup must be a positive whole number, not {warmup!r}")
    if objectives is not None and not any(cls.trains for cls, _ in runners):
        raise ValueError(
            f"{where} is for candidates that are trained, but no runner trains; add a table "
            f"[search.strategy.sw_runner.basic_train], or omit early_stopping"
        )
    return EarlyStopping(dict(margin), warmup)
