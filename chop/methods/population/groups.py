"""Groups of designs that can be trained as one population."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from chop.actions.search.metrics.groups import Design, OneByOne
from chop.dataset.tensors import TensorSplit
from chop.methods.population.train import reason_against
from chop.training.options import TrainOptions
from chop.training.tasks import CLASSIFICATION, TrainingTask

POPULATION = {"cpu": 16, "cuda": 256}  # default number of networks at a time


D = TypeVar("D", bound=Design)
R = TypeVar("R")


class StackableGroups(OneByOne, Generic[D]):
    """Sorts designs into groups that can be stacked; each reason against is logged once."""

    def __init__(
        self, user: str, options: TrainOptions, train_dataset: Any, task: TrainingTask
    ) -> None:
        super().__init__(user)
        self._options, self._data, self._task = options, train_dataset, task

    def trained(
        self, designs: Sequence[D], train: Callable[[int, Sequence[D]], Mapping[int, R]]
    ) -> dict[int, R]:
        """Return the results of `train` by design; designs that are trained alone are missing."""
        results: dict[int, R] = {}
        for number, group in enumerate(self._grouped(designs)):
            if len(group) == 1:
                continue
            try:
                results |= train(number, group)
            except (ValueError, RuntimeError) as error:  # one design will raise it again alone
                self.warn(group, str(error))
        return results

    def _grouped(self, designs: Sequence[D]) -> list[list[D]]:
        if not isinstance(self._data, TensorSplit):
            self.warn(designs, "the data set is not held in memory as tensors")
            return []
        if self._task is not CLASSIFICATION:
            self.warn(designs, f"populations support classification, not {self._task.name}")
            return []
        if not isinstance(self._data.x, Tensor):
            self.warn(designs, "the data set has several inputs")
            return []
        if len({id(design.model) for design in designs}) < len(designs):
            self.warn(designs, "the search space uses one network for all designs")
            return []
        if reason_against([design.model for design in designs], self._options) is None:
            return [list(designs)]
        groups: list[list[D]] = []
        for design in designs:
            why = reason_against([design.model], self._options)
            for group in groups if why is None else ():
                why = reason_against([group[0].model, design.model], self._options)
                if why is None:
                    group.append(design)
                    break
            else:
                groups.append([design])
                if why is not None:
                    self.warn([design], why)
        return groups
