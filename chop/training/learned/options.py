"""How a front of learned bit widths is trained: names, types and defaults."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from annotated_types import Interval

from chop.numerics.learned import Cost
from chop.options import (
    NonNegativeFloat,
    NonNegativeInt,
    Option,
    Options,
    PositiveFloat,
    PositiveInt,
    Says,
    Share,
    did_you_mean,
    options_of,
)

Way = Literal["population", "ramp", "target"]
PartOfRun = Annotated[float, Interval(ge=0, lt=1)]
COSTS: tuple[str, ...] = get_args(Cost)
SUM = "cost"  # the name of a weighted sum of costs
STEPS = 4000  # where neither steps nor epochs are given
TARGET = re.compile(r"\s*(\w+)\s*<=\s*([0-9.eE+_]+)\s*")
Costs = Annotated[
    str | dict[str, PositiveFloat],
    Says(f"must be one of {', '.join(COSTS)}, or a weighted sum such as {{lut = 1.0}}"),
]
Targets = Annotated[
    str | PositiveFloat | list[PositiveFloat],
    Says("must be a limit such as 'lut <= 500', a number, or a list of numbers"),
]
Prices = Annotated[
    list[PositiveFloat],
    Says("must be the lowest and the highest price for a unit of cost, such as [3e-6, 1e-3]"),
]


@dataclass(frozen=True, kw_only=True)
class FrontOptions:
    """How to train a front: the networks minimise loss + price · cost.

    `population` trains `members` networks at once, with prices from the first to the second of
    `price`; `ramp` a network, or `ramps` of them, whose price rises from the first to the second;
    `target` a network for each target, with a price that a controller sets.
    """

    way: Way = "population"
    # ebops, lut, bitops or model_size, or a weighted sum of them
    cost: Costs = "lut"
    price: Prices | None = None  # None: by the cost
    members: PositiveInt = 12
    ramps: PositiveInt = 1  # networks of a ramp
    target: Targets | None = None
    steps: PositiveInt | None = None
    epochs: PositiveInt | None = None
    batch_size: PositiveInt | None = None  # None: that of the data
    learning_rate: PositiveFloat = 5e-3
    # of numbers of bits; None: as that of weights. Trained weights need a low rate, widths do not
    width_rate: PositiveFloat | None = None
    eta_min: NonNegativeFloat = 1e-5  # the rate of weights at the end of the cosine
    # parts of the run after which the price begins to rise, and has risen
    price_starts: PartOfRun = 0.05
    price_ends: PartOfRun = 0.6
    freeze_last: PartOfRun = 0.1  # part of the run at its end in which widths do not change
    retrain: NonNegativeInt = 0  # further steps for the designs, with their widths
    distill: Share = 0.0  # share of the loss that is the distance from the float parent
    temperature: PositiveFloat = 2.0
    checkpoints: PositiveInt = 20  # how often all networks are scored
    num_val_samples: PositiveInt | None = None  # None: the whole validation split
    max_designs: PositiveInt | None = None  # None: all that nothing dominates
    # the minimum and maximum integer bits, and fraction bits
    bounds: tuple[float, float] = (-16.0, 16.0)
    fresh: bool = False  # whether each network starts from new random weights
    seed: int = 0
    compile: bool = False

    def __post_init__(self) -> None:
        checked = Options("", front_options(), "key", finite=True).check(vars(self))
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        problem = self._problem()
        if problem is not None:
            raise ValueError(problem)

    @classmethod
    def of(cls, owner: str, values: Mapping[str, Any]) -> FrontOptions:
        """Return the options of a table; messages name the `owner`."""
        checked = Options(owner, front_options(), "key", finite=True).check(values)
        try:
            return cls(**checked)
        except ValueError as error:
            raise ValueError(f"{owner}.{error}") from error

    def _problem(self) -> str | None:
        """Return what is wrong with values that have the right types."""
        if not self.weights:
            return "cost is an empty sum; add a weight for one of " + ", ".join(COSTS)
        for name in self.weights:
            if name not in COSTS:
                known = ", ".join(COSTS)
                return f"cost: {name!r} is not a cost{did_you_mean(name, COSTS)} (costs: {known})"
        if self.price is not None and (len(self.price) != 2 or self.price[0] > self.price[1]):
            return f"price must be the lowest and the highest price, not {self.price}"
        if self.bounds[0] >= self.bounds[1]:
            return f"bounds must be the minimum and maximum bits, not {list(self.bounds)}"
        if self.steps is not None and self.epochs is not None:
            return "steps and epochs both set the length of the run; omit one of them"
        if self.ramps > 1 and self.way != "ramp":
            instead = {
                "population": "use members for the networks of a population",
                "target": "omit it, as each target has a network",
            }
            return f"ramps is for way = 'ramp'; {instead[self.way]}"
        if self.price_starts >= self.price_ends:
            return f"price_starts must be less than price_ends = {self.price_ends:g}"
        if self.way == "ramp" and self.price_starts + self.freeze_last >= 1:
            return (
                f"price_starts and freeze_last leave no steps in which the price of a ramp could "
                f"rise; their sum must be less than 1, not {self.price_starts + self.freeze_last:g}"
            )
        return self._problem_of_target()

    def _problem_of_target(self) -> str | None:
        if self.way != "target":
            unused = "target is for way = 'target'; set it, or omit target"
            return None if self.target is None else unused
        if self.target is None or self.target == []:
            return "target is missing; add a limit such as target = 'lut <= 500'"
        if not isinstance(self.target, str):
            return None
        match = TARGET.fullmatch(self.target)
        if match is None:
            return f"target must be a limit such as 'lut <= 500', not {self.target!r}"
        if match[1] != self.cost_name:
            return f"target limits {match[1]}, but cost is {self.cost_name}; use the same for both"
        try:
            return None if 0 < float(match[2]) < math.inf else "target must be a positive number"
        except ValueError:
            return f"target must be a limit such as 'lut <= 500', not {self.target!r}"

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each cost."""
        return {self.cost: 1.0} if isinstance(self.cost, str) else dict(self.cost)

    @property
    def cost_name(self) -> str:
        """The name of what is priced."""
        return next(iter(self.weights)) if len(self.weights) == 1 else SUM

    @property
    def targets(self) -> tuple[float, ...]:
        """The limits of `way = "target"`, one for each network."""
        if self.target is None:
            return ()
        if isinstance(self.target, str):
            match = TARGET.fullmatch(self.target)
            assert match is not None, "checked"
            return (float(match[2]),)
        return tuple(self.target) if isinstance(self.target, list) else (self.target,)

    @property
    def prices(self) -> tuple[float, float]:
        """The lowest and the highest price for a unit of cost."""
        if self.price is not None:
            return self.price[0], self.price[1]
        low, high = PRICES[self.cost_name]
        return low, high

    @property
    def num_members(self) -> int:
        """The number of networks that are trained at once."""
        return {"population": self.members, "ramp": self.ramps, "target": len(self.targets)}[
            self.way
        ]

    @property
    def width_factor(self) -> float:
        """The learning rate of numbers of bits for each unit of that of weights."""
        return (self.width_rate or self.learning_rate) / self.learning_rate

    def num_steps(self, samples: int, batch_size: int) -> int:
        """Return the steps of the run on so many samples."""
        if self.epochs is not None:
            return self.epochs * math.ceil(samples / batch_size)
        return self.steps or STEPS


# by default, from almost free to the smallest networks that still work on jets
PRICES = {
    "lut": (3e-6, 1e-3),
    "ebops": (1e-6, 3e-4),
    "bitops": (1e-6, 3e-4),
    "model_size": (1e-5, 1e-2),
    SUM: (3e-6, 1e-3),
}


def front_options() -> Mapping[str, Option]:
    """Return the fields of `FrontOptions` as options."""
    return options_of(FrontOptions)
