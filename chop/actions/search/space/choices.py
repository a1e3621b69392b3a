"""Choices: lists, ranges, and keys that exist only for some values of another key."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chop.registry import UnknownName

RANGE_KEYS = {"min", "max", "step", "log"}
SEPARATOR = "/"
TOLERANCE = 1e-9  # of a step: 0.7 / 0.1 is a little less than 7
EXACT = 2**53  # float64, and so a storage of Optuna, is exact up to this integer


class Suggester(Protocol):
    """Suggests values: a trial of Optuna, or a random generator."""

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int: ...

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...


@dataclass(frozen=True)
class OneOf:
    """A list; indices are suggested, so that neighbours in the list are neighbours."""

    values: tuple[Any, ...]

    @property
    def count(self) -> int:
        """The number of values."""
        return len(self.values)

    def suggest(self, trial: Suggester, key: str) -> Any:
        """Return a suggested value."""
        if len(self.values) == 1:
            return self.values[0]
        return self.values[trial.suggest_int(key, 0, len(self.values) - 1)]

    def nth(self, index: int) -> Any:
        return self.values[index]

    def number(self, value: Any) -> int:
        """Return the number that stands for a value; `value` is the inverse."""
        return next(i for i, candidate in enumerate(self.values) if _same(candidate, value))

    def value(self, number: Any) -> Any:
        return self.values[int(number)]

    def index(self, value: Any) -> int:
        """Return the index of a value, the inverse of `nth`."""
        return self.number(value)

    def plain(self) -> list[Any]:
        """Return the choice as a report shows it."""
        return list(self.values)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def count(self) -> int | None:
        """The number of values, None for a continuous range."""
        if self.whole:
            return int((self.high - self.low) // (self.step or 1)) + 1
        if self.step is None:
            return 1 if self.low == self.high else None
        return math.floor((self.high - self.low) / self.step + TOLERANCE) + 1

    def suggest(self, trial: Suggester, key: str) -> Any:
        if self.whole:
            low, high, step = int(self.low), int(self.high), int(self.step or 1)
            # as a storage would return it
            return int(float(trial.suggest_int(key, low, high, step=step, log=self.log)))
        return trial.suggest_float(key, self.low, self.high, step=self.step, log=self.log)

    def nth(self, index: int) -> Any:
        return min(self.low + index * (self.step or 1), self.high)

    def index(self, value: Any) -> int:
        steps: float = (value - self.low) / (self.step or 1)
        return round(steps)

    def number(self, value: Any) -> Any:
        return value

    def value(self, number: Any) -> Any:
        return int(number) if self.whole else number

    def plain(self) -> dict[str, Any]:
        shown = {"min": self.low, "max": self.high, "step": self.step, "log": self.log or None}
        return {key: value for key, value in shown.items() if value is not None}


Choice = OneOf | Range


def choice_of(value: Any, where: str, *, tables: bool = True) -> Choice:
    """Return the list or range in a leaf of a seed; `tables` are allowed as values, or not."""
    if isinstance(value, Mapping) and {"min", "max"} <= value.keys():
        for key in value:
            if key not in RANGE_KEYS:
                raise UnknownName(f"key of the range {where}", key, sorted(RANGE_KEYS))
        return _range(value, where)
    if not isinstance(value, list | tuple):
        raise ValueError(
            f"{where} must be a list of choices, [{value!r}], or a range, {{min = 2, max = 8}}"
        )
    if not value:
        raise ValueError(f"{where} is an empty list; give at least one choice")
    for item in value:
        _check_value(item, where, tables)
    if any(_same(v, other) for i, v in enumerate(value) for other in value[:i]):
        raise ValueError(f"{where} offers a value twice: {list(value)}")
    return OneOf(tuple(value))


def _check_value(value: Any, where: str, tables: bool) -> None:
    """Refuse a choice that a file cannot hold, or that does not equal itself when it is read."""
    if not _is_plain(value, tables):
        raise ValueError(
            f"{where} offers {value!r:.80}; choices are numbers, text, true, false, or lists "
            f"{'and tables ' if tables else ''}of these"
        )
    if _has_nan(value):
        raise ValueError(
            f"{where} offers {value!r:.80}, which is not equal to itself; leave nan out"
        )


def _is_plain(value: Any, tables: bool) -> bool:
    if isinstance(value, Mapping):
        return tables and all(isinstance(k, str) and _is_plain(v, tables) for k, v in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(item, tables) for item in value)
    return isinstance(value, bool | int | float | str | None)


def _has_nan(value: Any) -> bool:
    if isinstance(value, Mapping | list | tuple):
        return any(map(_has_nan, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, float) and math.isnan(value)


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are the same choice: true is not 1."""
    return type(a) is type(b) and bool(a == b)


def _range(value: Mapping[str, Any], where: str) -> Range:
    low, high, step, log = value["min"], value["max"], value.get("step"), value.get("log")
    for key, number in (("min", low), ("max", high), ("step", 1 if step is None else step)):
        if not _is_number(number):
            raise ValueError(f"{where}.{key} must be a number, not {number!r}")
    whole = isinstance(low, int) and isinstance(high, int)
    if high < low:
        raise ValueError(f"{where} goes from {low} down to {high}; swap min and max")
    if step is not None and step <= 0:
        raise ValueError(f"{where}.step must be positive, not {step}")
    if whole and isinstance(step, float):
        raise ValueError(f"{where}.step must be an integer like min and max, not {step}")
    if log not in (None, True, False):
        raise ValueError(f"{where}.log must be true or false, not {log!r}")
    if log and (low <= 0 or step is not None):
        raise ValueError(f"{where}: a logarithmic range must start above 0 and cannot have a step")
    if whole:
        _check_exact(low, high, step, where)
    return Range(low, high, step, bool(log))


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and type(value) is not bool


def _check_exact(low: int, high: int, step: int | None, where: str) -> None:
    """Refuse integers that a storage, which holds them as float64, would change."""
    for key, number in (("min", low), ("max", high)):
        if not _is_exact(number):
            raise ValueError(
                f"{where}.{key} = {number!r:.40} is not exact as a float64, as which studies store "
                f"it; use a number of at most 2**53"
            )
    if step not in (None, 1) and max(abs(low), abs(high)) > EXACT:
        raise ValueError(
            f"{where}: the steps of a range beyond 2**53 are not all exact; leave step out, or set "
            f"max to at most 2**53"
        )


def _is_exact(number: int) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False


@dataclass(frozen=True)
class Parameter:
    """One key of the flattened space; with `when`, it exists only for those values of `parent`."""

    key: str
    choice: Choice
    parent: str | None = None
    when: tuple[Any, ...] = ()

    def exists(self, chosen: Mapping[str, Any]) -> bool:
        return self.parent is None or chosen[self.parent] in self.when


class Choices:
    """All parameters, in an order in which parents come before what depends on them."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        groups: dict[str, list[Parameter]] = {}
        for parameter in parameters:
            groups.setdefault(parameter.parent or parameter.key, []).append(parameter)
        self._groups = list(groups.values())

    def suggest(self, trial: Suggester) -> dict[str, Any]:
        """Return a design of suggested values."""
        chosen: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.exists(chosen):
                chosen[parameter.key] = parameter.choice.suggest(trial, parameter.key)
        return chosen

    def encoded(self, chosen: Mapping[str, Any]) -> dict[str, float]:
        """Return a design as the suggested numbers; keys with one value are left out."""
        present = (p for p in self.open if p.key in chosen and p.exists(chosen))
        return {p.key: p.choice.number(chosen[p.key]) for p in present}

    def decoded(self, numbers: Mapping[str, float]) -> dict[str, Any]:
        """Return the design that was encoded as these numbers."""
        chosen: dict[str, Any] = {}
        for p in self.parameters:
            if p.exists(chosen):
                one = p.choice.count == 1
                chosen[p.key] = p.choice.nth(0) if one else p.choice.value(numbers[p.key])
        return chosen

    @property
    def size(self) -> int | None:
        """The number of designs; None if they cannot be counted."""
        return _size(self._groups)

    @functools.cached_property
    def open(self) -> list[Parameter]:
        """The parameters with more than one value."""
        return [p for p in self.parameters if p.choice.count != 1]

    def nth(self, index: int) -> dict[str, Any]:
        """Return the design at an index of the complete enumeration."""
        chosen = _decode(self._groups, index)
        return {p.key: chosen[p.key] for p in self.parameters if p.key in chosen}

    def index(self, chosen: Mapping[str, Any]) -> int:
        """Return the index of a design in the complete enumeration, the inverse of `nth`."""
        return _encode(self._groups, chosen)


def shown_size(size: int) -> str:
    """Return all digits up to a billion, then a power of ten: Python writes at most 4300."""
    return f"{size:,}" if size < 10**9 else f"about 10^{math.floor(math.log10(size))}"


Group = Sequence[Parameter]  # a parameter, and those that depend on it


def _size(groups: Sequence[Group]) -> int | None:
    """Return the number of combinations of all groups."""
    counts: list[Any] = [_count(group) for group in groups]
    return None if None in counts else math.prod(counts)


def _count(group: Group) -> int | None:
    if len(group) == 1:  # a range may have more values than any list
        return group[0].choice.count
    counts: list[Any] = [_size(dependents) for _, dependents in _alternatives(group)]
    return None if None in counts else sum(counts)


def _alternatives(group: Group) -> Iterator[tuple[Any, list[Group]]]:
    """Yield each value of the first parameter, and the groups of those that exist with it."""
    head, *rest = group
    assert isinstance(head.choice, OneOf), "what others depend on is a list, and never long"
    for value in head.choice.values:
        yield value, [(p,) for p in rest if p.exists({head.key: value})]


def _decode(groups: Sequence[Group], index: int) -> dict[str, Any]:
    """Return the combination at an index; the last group varies fastest."""
    chosen: dict[str, Any] = {}
    for group in reversed(groups):
        count = _count(group)
        assert count is not None
        index, position = divmod(index, count)
        chosen |= _decode_group(group, position)
    return chosen


def _decode_group(group: Group, index: int) -> dict[str, Any]:
    head = group[0]
    if len(group) == 1:
        return {head.key: head.choice.nth(index)}
    for value, dependents in _alternatives(group):
        count = _size(dependents)
        assert count is not None
        if index < count:
            return {head.key: value} | _decode(dependents, index)
        index -= count
    raise IndexError(index)


def _encode(groups: Sequence[Group], chosen: Mapping[str, Any]) -> int:
    """Return the index of a combination, the inverse of `_decode`."""
    index = 0
    for group in groups:
        count = _count(group)
        assert count is not None
        index = index * count + _encode_group(group, chosen)
    return index


def _encode_group(group: Group, chosen: Mapping[str, Any]) -> int:
    head, index = group[0], 0
    if len(group) == 1:
        return head.choice.index(chosen[head.key])
    for value, dependents in _alternatives(group):
        if _same(value, chosen[head.key]):
            return index + _encode(dependents, chosen)
        count = _size(dependents)
        assert count is not None
        index += count
    raise ValueError(f"{head.key} has no choice {chosen[head.key]!r}")


def flatten_dict(
    nested: Mapping[str, Any],
    flattened: dict[str, Any] | None = None,
    parent_key: str | None = None,
    separator: str = SEPARATOR,
) -> dict[str, Any]:
    """Return `{"a": {"b": 1}}` as `{"a/b": 1}`, added to `flattened` if it is not None."""
    flat = {} if flattened is None else flattened
    for key, value in nested.items():
        path = key if parent_key is None else f"{parent_key}{separator}{key}"
        if isinstance(value, Mapping):
            flatten_dict(value, flat, path, separator)
        else:
            flat[path] = value
    return flat


def unflatten_dict(flat: Mapping[str, Any], separator: str = SEPARATOR) -> dict[str, Any]:
    """Return the nested form of a flat dictionary, the inverse of `flatten_dict`."""
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split(separator)
        table = nested
        for parent in parents:
            table = table.setdefault(parent, {})
        table[last] = value
    return nested
