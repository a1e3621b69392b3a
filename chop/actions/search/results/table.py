"""The table of a Pareto front: a column for each metric, then what differs between the designs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.results.page.numbers import ABSENT, decimals
from chop.actions.search.samplers.base import Chosen

WIDTH = 100  # characters of a line
LONGEST = 20  # of a metric that is text
SHORTEST = 8  # of a column that is cut
GAP = "  "
PARENT = "parent"

Column = list[str]  # the heading, then a cell for each row
Metrics = Mapping[str, Any]


def front_table(
    trials: Sequence[Outcome],
    designs: Mapping[int, Chosen],
    objectives: Sequence[str],
    parent: Metrics | None = None,
) -> str:
    """Return the table, at most 100 characters wide, with the metrics of the `parent` first.

    Where there is no room, metrics that are not objectives are left out, and designs are cut.
    """
    measured: list[Metrics] = [{**trial.software, **trial.hardware} for trial in trials]
    measured = [*([] if parent is None else [parent]), *measured]
    labels = [*([] if parent is None else [PARENT]), *(str(trial.number) for trial in trials)]
    names = dict.fromkeys(name for metrics in measured for name in metrics)
    chosen = [*([] if parent is None else [{}]), *(designs[trial.number] for trial in trials)]
    columns: list[Column] = [["trial", *labels]]
    goals = [_metric(name, measured) for name in objectives if name in names]
    columns += _fitted_headings(goals, WIDTH - _width(columns))
    for name in (name for name in names if name not in objectives):
        column = _metric(name, measured)
        if _width([*columns, column]) <= WIDTH:
            columns.append(column)
    differing = _fitted(_differences(chosen), WIDTH - _width(columns))
    aligned = [_aligned(column, str.rjust) for column in columns]
    aligned += [_aligned(column, str.ljust) for column in differing]
    return "\n".join(GAP.join(row).rstrip() for row in zip(*aligned, strict=True))


def spread(trials: Sequence[Outcome], most: int | None) -> list[Outcome]:
    """Return `most` of the trials, evenly spread from the first to the last."""
    if most is None or len(trials) <= most:
        return list(trials)
    steps = max(most - 1, 1)
    return [trials[i * (len(trials) - 1) // steps] for i in range(most)]


def _metric(name: str, measured: Sequence[Metrics]) -> Column:
    """Return the column of a metric, its numbers with as many decimals as the largest needs."""
    values = [metrics.get(name) for metrics in measured]
    finite = [v for v in values if isinstance(v, int | float) and math.isfinite(v)]
    digits = decimals(finite)
    return [name, *(_written(value, digits) for value in values)]


def _written(value: Any, digits: int) -> str:
    if isinstance(value, int | float):
        return f"{value:,.{digits}f}" if math.isfinite(value) else str(value)
    return ABSENT if value is None else _cut(str(value), LONGEST)


def _differences(designs: Sequence[Chosen]) -> list[Column]:
    """Return a column for each kind of key that differs, with the values of all such keys.

    The keys `fc1/config/weight_width` and `fc2/config/weight_width` are one kind, `weight`.
    """
    known = [design for design in designs if design]
    keys = dict.fromkeys(key for design in known for key in design)
    kinds: dict[str, list[str]] = {}
    for key in keys:
        if any(design.get(key, ABSENT) != known[0].get(key, ABSENT) for design in known):
            kinds.setdefault(key.rpartition("/")[2].removesuffix("_width"), []).append(key)
    return [
        [kind, *(" ".join(_choice(d, key) for key in own) if d else "" for d in designs)]
        for kind, own in kinds.items()
    ]


def _choice(design: Chosen, key: str) -> str:
    value = design.get(key, ABSENT)
    return "NA" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _fitted_headings(columns: Sequence[Column], room: int) -> list[Column]:
    """Return the columns with headings that are cut if all of them need more than `room`."""
    most = room // max(len(columns), 1) - len(GAP)
    if _width(columns) + len(GAP) <= room:
        return list(columns)
    return [[_cut(head, max(most, SHORTEST)), *cells] for head, *cells in columns]


def _fitted(columns: Sequence[Column], room: int) -> list[Column]:
    """Return the columns that fit, the last of them cut."""
    fitted: list[Column] = []
    for column in columns:
        width = len(GAP) + max(map(len, column))
        if room < min(width, SHORTEST):
            break
        fitted.append([_cut(cell, room - len(GAP)) for cell in column])
        room -= width
    return fitted


def _aligned(column: Column, justify: Callable[[str, int], str]) -> Column:
    """Return the cells in one width, with a rule under the heading."""
    width = max(map(len, column))
    head, *cells = (justify(cell, width) for cell in column)
    return [head, "-" * width, *cells]


def _width(columns: Sequence[Column]) -> int:
    return sum(max(map(len, column)) for column in columns) + len(GAP) * (len(columns) - 1)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
