"""Constraints that no design can meet, as far as that can be proven before the first trial."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError
from chop.actions.search.goals import SIGNS, Constraint
from chop.actions.search.search_space.choices import Parameter
from chop.actions.search.strategies.base import Chosen
from chop.passes.graph.transforms.quantize.config import OPERANDS

if TYPE_CHECKING:
    from chop.actions.search.worker import Worker

WHERE = "search.strategy.constraints"
PATIENCE = 1.0  # seconds of our own: what is refused does not depend on who else computes
LARGEST = 10_000  # designs that may be counted within that
ROUNDING = 1e-9  # of a bound: two orders of one sum may differ by less


class _Unknown(Exception):
    """Whether a design meets the constraints cannot be said, or not in time."""


def refuse_hopeless(worker: Worker, patience: float | None = None) -> None:
    """Refuse constraints that no design meets; what cannot be proven soon is left to the search."""
    makers = {name: runner for runner in worker.counting for name in runner.available()}
    constraints = [c for c in worker.goals.constraints if c.metric in makers]
    proof = _Proof(worker, time.thread_time() + (PATIENCE if patience is None else patience))
    for constraint in constraints:
        if makers[constraint.metric].additive and worker.space.adds_up:
            proof.refuse_by_extremes(constraint)
    if constraints:
        proof.refuse_by_all(constraints)


class _Proof:
    """Counts designs until it is late."""

    def __init__(self, worker: Worker, until: float) -> None:
        self.worker, self.until = worker, until
        self.choices = worker.space.choices

    def _metrics(self, chosen: Chosen) -> Mapping[str, float]:
        if time.thread_time() > self.until:
            raise _Unknown
        try:
            return self.worker.counted(chosen)
        except Exception as error:  # its trial will say so
            raise _Unknown from error

    # --- designs that are extreme

    def refuse_by_extremes(self, constraint: Constraint) -> None:
        """A metric that is a sum over nodes is least where each node's part of it is."""
        try:
            value = self._extreme(constraint)
        except _Unknown:
            return
        if _broken(constraint, value):
            most = "least" if constraint.sign in ("<", "<=") else "greatest"
            raise ConfigError(
                f"{WHERE}: no design meets {constraint}, as the {most} {constraint.metric} of any "
                f"is {value:.6g}; change the bound, or add choices to search.search_space.seed"
            )

    def _extreme(self, constraint: Constraint) -> float:
        """The value of the design that is nearest to meeting a constraint, or of one that does."""
        if self.choices.size is None:
            raise _Unknown
        design = self.choices.nth(0)
        value = self._metrics(design)[constraint.metric]
        for own in _by_node(self.choices.parameters):
            if not _broken(constraint, value):
                break
            design = self._best(constraint, list(self._alternatives(constraint, design, own)))
            value = self._metrics(design)[constraint.metric]
        return value

    def _alternatives(
        self, constraint: Constraint, design: Chosen, own: Sequence[Parameter]
    ) -> Iterator[Chosen]:
        """The best design for each format of a node, the other nodes left as they are."""
        head, *rest = own
        others = {k: v for k, v in design.items() if k not in {p.key for p in own}}
        for name in _values(head):
            there = [p for p in rest if p.exists({head.key: name})]
            best = others | {head.key: name} | {p.key: p.choice.nth(0) for p in there}
            for keys in _by_operand(there):
                combined = itertools.product(*(_values(p) for p in keys))
                given = [dict(zip((p.key for p in keys), row, strict=True)) for row in combined]
                best = self._best(constraint, [best | values for values in given])
            yield best

    def _best(self, constraint: Constraint, designs: Sequence[Chosen]) -> Chosen:
        if len(designs) == 1:
            return designs[0]
        sign, metric = SIGNS[constraint.sign], constraint.metric
        return min(designs, key=lambda chosen: sign * self._metrics(chosen)[metric])

    # --- all of them

    def refuse_by_all(self, constraints: Sequence[Constraint]) -> None:
        """Look at every design, as long as none is found that meets all constraints."""
        size = self.choices.size
        if size is None or size > LARGEST:
            return
        found: dict[str, list[float]] = {}
        try:
            for number in range(size):
                metrics = self._metrics(self.choices.nth(number))
                if not any(_broken(c, metrics[c.metric]) for c in constraints):
                    return
                for name, value in metrics.items():
                    found.setdefault(name, []).append(value)
        except _Unknown:
            return
        wanted = " and ".join(str(c) for c in constraints)
        reached = ", ".join(
            f"{name} from {min(found[name]):.6g} to {max(found[name]):.6g}"
            for name in dict.fromkeys(c.metric for c in constraints)
        )
        raise ConfigError(
            f"{WHERE}: none of the {size} designs meets {wanted}, as they have {reached}; change "
            f"the bound, or add choices to search.search_space"
        )


def _broken(constraint: Constraint, value: float) -> bool:
    """Whether a value is beyond the bound by more than rounding may explain."""
    if value == constraint.bound:
        return constraint.sign in ("<", ">")
    slack = ROUNDING * max(1.0, abs(constraint.bound))
    return constraint.violation({constraint.metric: value}) > slack


def _values(parameter: Parameter) -> list[Any]:
    count = parameter.choice.count
    if count is None or count > LARGEST:
        raise _Unknown
    return [parameter.choice.nth(i) for i in range(count)]


def _by_node(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    """The parameters of each node, its `name` first."""
    found: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        found.setdefault(parameter.key.partition("/config/")[0], []).append(parameter)
    return list(found.values())


def _by_operand(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    """The keys of each operand; one that is of none and has a choice may mean anything."""
    found: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        key = parameter.key.rpartition("/")[2]
        operand = next((name for name in OPERANDS if key.startswith(f"{name}_")), "")
        if not operand and parameter.choice.count != 1:
            raise _Unknown
        found.setdefault(operand, []).append(parameter)
    return [found[operand] for operand in found if operand]
