"""The table of a Pareto front: a column for each metric, then each layer that differs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.results.page.numbers import ABSENT, decimals
from chop.actions.search.samplers.base import Chosen
from chop.passes.graph.transforms.quantize.config import OPERANDS

WIDTH = 100  # characters of a line
LONGEST = 20  # of a metric that is text
LONGEST_NAME = 15  # of a layer
SHORTEST = 8  # of a column that is cut
LEVEL = "/config/"  # between the name of a layer and an option, in keys of designs
GAP = "  "
PARENT = "parent"

Column = list[str]  # the heading, then a cell for each row
Metrics = Mapping[str, Any]
Operands = Mapping[str, Collection[str]]  # of each layer; those of others are not known


def front_table(
    trials: Sequence[Outcome],
    designs: Mapping[int, Chosen],
    objectives: Sequence[str],
    parent: Metrics | None = None,
    operands: Operands | None = None,
) -> str:
    """Return the table, at most 100 characters wide, with the metrics of the `parent` first.

    Where there is no room, metrics that are not objectives and layers are left out; designs get
    half of the line, if they need it. `operands` are those that each layer has.
    """
    measured: list[Metrics] = [{**trial.software, **trial.hardware} for trial in trials]
    measured = [*([] if parent is None else [parent]), *measured]
    labels = [*([] if parent is None else [PARENT]), *(str(trial.number) for trial in trials)]
    names = dict.fromkeys(name for metrics in measured for name in metrics)
    chosen = [*([] if parent is None else [{}]), *(designs[trial.number] for trial in trials)]
    columns: list[Column] = [["trial", *labels]]
    goals = [_metric(name, measured) for name in objectives if name in names]
    columns += _fitted_headings(goals, WIDTH - _width(columns))
    keys = _differing([design for design in chosen if design], operands or {})
    others = _other_columns([key for key in keys if LEVEL not in key], chosen)
    layers = _LayerColumns([key for key in keys if LEVEL in key], chosen, operands or {})
    needed = sum(len(GAP) + _width([column]) for column in (*others, *layers.columns))
    room = WIDTH - min(needed, WIDTH // 2)
    for name in (name for name in names if name not in objectives):
        column = _metric(name, measured)
        if _width([*columns, column]) <= room:
            columns.append(column)
    differing = _fitted(others, WIDTH - _width(columns))
    layers.fit(WIDTH - _width([*columns, *differing]))
    aligned = [_aligned(column, str.rjust) for column in columns]
    aligned += [_aligned(column, str.ljust) for column in (*differing, *layers.columns)]
    lines = [GAP.join(row).rstrip() for row in zip(*aligned, strict=True)]
    return "\n".join([*lines, *filter(None, [layers.legend])])


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


def _differing(designs: Sequence[Chosen], operands: Operands) -> list[str]:
    """Return the keys that differ between designs, without operands that a layer does not have."""
    keys = dict.fromkeys(key for design in designs for key in design)
    return [
        key
        for key in keys
        if any(design.get(key, ABSENT) != designs[0].get(key, ABSENT) for design in designs)
        and not _is_lacking(key, operands)
    ]


def _is_lacking(key: str, operands: Operands) -> bool:
    """Whether a key is for an operand that its layer does not have, as the weight of a relu."""
    path, _, option = key.partition(LEVEL)
    own = operands.get(path.rpartition("/")[2])
    named = next((operand for operand in OPERANDS if option.startswith(f"{operand}_")), None)
    return own is not None and named is not None and named not in own


def _other_columns(keys: Sequence[str], designs: Sequence[Chosen]) -> list[Column]:
    """Return a column for each kind of key that is not of a layer, such as `sparsity`."""
    kinds: dict[str, list[str]] = {}
    for key in keys:
        kinds.setdefault(key.rpartition("/")[2], []).append(key)
    return [
        [kind, *(" ".join(_choice(d, key) for key in own) if d else "" for d in designs)]
        for kind, own in kinds.items()
    ]


class _LayerColumns:
    """A column for each layer, with its values of all options that differ in any layer."""

    def __init__(self, keys: Sequence[str], designs: Sequence[Chosen], operands: Operands) -> None:
        paths = [key.partition(LEVEL)[0] for key in keys]
        self._operands, names = operands, short_names(dict.fromkeys(paths))
        self._options = sorted({key.partition(LEVEL)[2] for key in keys}, key=_rank)
        self.left_out = 0
        self.columns: list[Column] = [
            [name, *(self._cell(path, design) if design else "" for design in designs)]
            for path, name in names.items()
        ]

    def fit(self, room: int) -> None:
        """Leave out the last layers for which there is no room."""
        while self.columns and len(GAP) + _width(self.columns) > room:
            self.columns.pop()
            self.left_out += 1

    def _cell(self, path: str, design: Chosen) -> str:
        """Return `8/4`, or `integer 8/4` if the formats differ too."""
        chosen = {o: f"{path}{LEVEL}{o}" for o in self._options}
        if design.get(chosen.get("name", ""), ABSENT) is None:
            return "NA"
        values = [
            ABSENT if _is_lacking(key, self._operands) else _choice(design, key)
            for option, key in chosen.items()
            if option != "name"
        ]
        known = "/".join(values) if any(value != ABSENT for value in values) else ""
        return f"{_choice(design, chosen['name'])} {known}".strip() if "name" in chosen else known

    @property
    def legend(self) -> str:
        """What the values of a layer are; empty without columns."""
        if not self.columns:
            return ""
        named = [option for option in self._options if option != "name"]
        parts = ["format"] * ("name" in self._options)
        if named:
            unit = " width" if all(option.endswith("_width") for option in named) else ""
            unit += "s" if unit and len(named) > 1 else ""
            parts.append("/".join(o.removesuffix("_width") for o in named) + unit)
        several = "layers do" if self.left_out > 1 else "layer does"
        rest = f" ({self.left_out} more {several} not fit)" if self.left_out else ""
        return f"Of each layer: {' and '.join(parts)}{rest}"


def _rank(option: str) -> tuple[int, str]:
    """Return the place of an option: the format, the widths of operands, then all others."""
    first = ["name", *(f"{operand}_width" for operand in OPERANDS)]
    return (first.index(option) if option in first else len(first), option)


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Return the last words of each path that no other one ends with; long ones are cut inside."""
    words = {path: re.split("[/_.]", path) for path in paths}
    ends = Counter(tuple(own[-n:]) for own in words.values() for n in range(1, len(own) + 1))
    names = {}
    for path, own in words.items():
        lengths = (n for n in range(1, len(own)) if not own[-n][:1].isdigit())
        count = next((n for n in lengths if ends[tuple(own[-n:])] == 1), len(own))
        names[path] = _cut_inside(path[-len("_".join(own[-count:])) :])
    return names


def _cut_inside(name: str) -> str:
    half = (LONGEST_NAME - 1) // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


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
