"""The price for a unit of cost in the course of a run, and the controller that meets a target."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from chop.training.learned.options import FrontOptions

LIMITS = (1e-12, 1e3)  # prices that a controller may set
CONTROLS = 400  # how often costs are told in a run, so that gains suit runs of any length
GAINS = (0.06, 1.0)  # of the controller: for the deviation, and for its change
AIM = 0.97  # of the target


def risen(part: float, starts: float, ends: float) -> float:
    """Return the share of a rise at a part of the run, 0 before it starts."""
    return min(max((part - starts) / (ends - starts), 0.0), 1.0)


class Prices(Protocol):
    """Sets the price of each network."""

    def at(self, part: float) -> Tensor:
        """Return the prices at a part of the run."""

    def tell(self, costs: Tensor, part: float) -> None:
        """Take the exact costs of all networks, `CONTROLS` times in a run."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All of its state."""

    def is_met(self, costs: Tensor) -> Tensor:
        """Return which networks may have their widths frozen."""


class ScheduledPrices:
    """Prices that only depend on how far the run has come."""

    def __init__(self, options: FrontOptions, device: torch.device) -> None:
        self.options, low, high = options, *options.prices
        count = options.num_members
        self.ends = torch.logspace(math.log10(low), math.log10(high), count, device=device)
        if options.way == "ramp":
            self.ends = torch.full((count,), high, device=device)
        self.tensors: dict[str, Tensor] = {}

    def at(self, part: float) -> Tensor:
        options = self.options
        if options.way == "ramp":  # in the logarithm, until widths are frozen
            share = risen(part, options.price_starts, 1 - options.freeze_last)
            low, high = options.prices
            return self.ends * ((low / high) ** (1 - share) if part >= options.price_starts else 0)
        return self.ends * risen(part, options.price_starts, options.price_ends)

    def tell(self, costs: Tensor, part: float) -> None:
        """Do nothing: the prices do not depend on costs."""

    def is_met(self, costs: Tensor) -> Tensor:
        return torch.ones_like(costs, dtype=torch.bool)


class ControlledPrices:
    """Prices that rise while a network costs more than it should, and fall while it costs less.

    What it should cost falls from its first cost to the target while the prices of other runs rise.
    """

    def __init__(self, options: FrontOptions, device: torch.device) -> None:
        self.options = options
        self.targets = torch.tensor(options.targets, device=device)
        start = sum(map(math.log, options.prices)) / 2
        self.logs = torch.full_like(self.targets, start)
        self.last = torch.zeros_like(self.targets)
        self.first = torch.zeros_like(self.targets)  # the costs when the price starts

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"logs": self.logs, "last": self.last, "first": self.first}

    def at(self, part: float) -> Tensor:
        # no price below what it should cost: a number that has lost all its bits never returns
        return self.logs.exp() * (self.last > 0)

    def tell(self, costs: Tensor, part: float) -> None:
        options = self.options
        if part < options.price_starts:
            return
        self.first.copy_(torch.where(self.first > 0, self.first, costs))
        share = risen(part, options.price_starts, options.price_ends)
        wanted = self.first ** (1 - share) * (AIM * self.targets) ** share
        deviation = (costs / wanted).clamp(min=1e-3).log().clamp(-1, 1)
        change = GAINS[0] * deviation + GAINS[1] * (deviation - self.last)
        low, high = map(math.log, LIMITS)
        self.logs.add_(change).clamp_(low, high)
        self.last.copy_(deviation)

    def is_met(self, costs: Tensor) -> Tensor:
        return costs <= self.targets


def prices_of(options: FrontOptions, device: torch.device) -> Prices:
    """Return the prices of a run."""
    is_controlled = options.way == "target"
    return (ControlledPrices if is_controlled else ScheduledPrices)(options, device)
