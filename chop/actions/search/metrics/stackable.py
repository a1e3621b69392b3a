"""Which designs can be trained as one population, and what is said of those that cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from torch import nn

from chop.dataset.tensors import TensorSplit
from chop.training.options import TrainOptions
from chop.training.population import reason_against

logger = logging.getLogger(__name__)

POPULATION = {"cpu": 16, "cuda": 256}  # networks at a time, where nothing is said


class Design(Protocol):
    """A trial and its network."""

    @property
    def number(self) -> int: ...

    @property
    def model(self) -> nn.Module: ...


D = TypeVar("D", bound=Design)
R = TypeVar("R")


class StackableGroups(Generic[D]):
    """Sorts designs into populations; why some are in none is said once a reason."""

    def __init__(self, user: str, options: TrainOptions, train_dataset: Any) -> None:
        self._user, self._options, self._data = user, options, train_dataset
        self._said: set[str] = set()

    def trained(
        self, designs: Sequence[D], train: Callable[[int, Sequence[D]], Mapping[int, R]]
    ) -> dict[int, R]:
        """What `train` makes of each family, by design; missing are those to be trained alone."""
        found: dict[int, R] = {}
        for number, family in enumerate(self.of(designs)):
            if len(family) == 1:
                continue
            try:
                found |= train(number, family)
            except (ValueError, RuntimeError) as error:  # the one at fault will say so alone
                self.say(family, str(error))
        return found

    def of(self, designs: Sequence[D]) -> list[list[D]]:
        """The designs in groups that can be stacked."""
        why = self._reason(designs)
        if why is not None:
            self.say(designs, why)
            return []
        if reason_against([design.model for design in designs], self._options) is None:
            return [list(designs)]
        return self._sorted(designs)

    def _sorted(self, designs: Sequence[D]) -> list[list[D]]:
        families: list[list[D]] = []
        for design in designs:
            why = reason_against([design.model], self._options)
            for family in families if why is None else ():
                why = reason_against([family[0].model, design.model], self._options)
                if why is None:
                    family.append(design)
                    break
            else:
                families.append([design])
                if why is not None:
                    self.say([design], why)
        return families

    def _reason(self, designs: Sequence[D]) -> str | None:
        """Why none of these can be stacked, whatever their layers."""
        if not isinstance(self._data, TensorSplit):
            return "the data set is not held in memory as tensors"
        if len({id(design.model) for design in designs}) < len(designs):
            return "the search space uses one network for all designs"
        return None

    def say(self, designs: Sequence[D], why: str) -> None:
        """Each reason once."""
        if why not in self._said:
            self._said.add(why)
            numbers = ", ".join(str(design.number) for design in designs)
            logger.warning("%s: trials %s are trained one by one: %s", self._user, numbers, why)
