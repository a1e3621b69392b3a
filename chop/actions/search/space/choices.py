"""What can be chosen: lists, ranges, and keys that exist only where another choice allows them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chop.registry import UnknownName

RANGE_KEYS = {"min", "max", "step", "log"}
SEPARATOR = "/"
CLOSE = 1e-9  # of a step: 0.7 / 0.1 is a little less than 7
EXACT = 2**53  # up to which every whole number is one that a storage of Optuna can hold


class Suggester(Protocol):
    """What asks for values: a trial of Optuna, or a counter through all designs."""

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int: ...

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...


@dataclass(frozen=True)
class OneOf:
    """A list; what is suggested is the index, so that neighbours in the list are neighbours."""

    values: tuple[Any, ...]

    @property
    def count(self) -> int:
        """The number of values."""
        return len(self.values)

    def suggest(self, trial: Suggester, key: str) -> Any:
        """Have a value suggested."""
        if len(self.values) == 1:
            return self.values[0]
        return self.values[trial.suggest_int(key, 0, len(self.values) - 1)]

    def nth(self, index: int) -> Any:
        return self.values[index]

    def number(self, value: Any) -> int:
        """Return the number that is suggested for a value, which is the inverse of `value`."""
        return next(i for i, mine in enumerate(self.values) if _same(mine, value))

    def value(self, number: Any) -> Any:
        return self.values[int(number)]

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
        return math.floor((self.high - self.low) / self.step + CLOSE) + 1

    def suggest(self, trial: Suggester, key: str) -> Any:
        if self.whole:
            low, high, step = int(self.low), int(self.high), int(self.step or 1)
            # as a storage would give it back
            return int(float(trial.suggest_int(key, low, high, step=step, log=self.log)))
        return trial.suggest_float(key, self.low, self.high, step=self.step, log=self.log)

    def nth(self, index: int) -> Any:
        return min(self.low + index * (self.step or 1), self.high)

    def number(self, value: Any) -> float:
        number: float = value
        return number

    def value(self, number: Any) -> Any:
        return int(number) if self.whole else number

    def plain(self) -> dict[str, Any]:
        shown = {"min": self.low, "max": self.high, "step": self.step, "log": self.log or None}
        return {key: value for key, value in shown.items() if value is not None}


Choice = OneOf | Range


def choice_of(value: Any, where: str, *, tables: bool = True) -> Choice:
    """What a leaf of a seed offers: a list of values, `tables` among them or not, or a range."""
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
    for offered in value:
        _check_offered(offered, where, tables)
    if any(_same(v, other) for i, v in enumerate(value) for other in value[:i]):
        raise ValueError(f"{where} offers a value twice: {list(value)}")
    return OneOf(tuple(value))


def _check_offered(value: Any, where: str, tables: bool) -> None:
    """Refuse a choice that could not be written to a file and found again in it."""
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
    """Whether two values are one choice: true is not 1."""
    return type(a) is type(b) and bool(a == b)


def _range(value: Mapping[str, Any], where: str) -> Range:
    low, high, step, log = (value.get(k) for k in ("min", "max", "step", "log"))
    for key, number in (("min", low), ("max", high), ("step", step)):
        optional = key == "step" and number is None
        if not optional and not _is_number(number):
            raise ValueError(f"{where}.{key} is a number, not {number!r}")
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if high < low:
        raise ValueError(f"{where} goes from {low} down to {high}; swap min and max")
    if step is not None and step <= 0:
        raise ValueError(f"{where}.step is positive, not {step}")
    if isinstance(low, int) and isinstance(high, int) and isinstance(step, float):
        raise ValueError(f"{where}.step is a whole number like min and max, not {step}")
    if log not in (None, True, False):
        raise ValueError(f"{where}.log is true or false, not {log!r}")
    if log and (low <= 0 or step is not None):
        raise ValueError(f"{where}: a logarithmic range must start above 0 and cannot have a step")
    if isinstance(low, int) and isinstance(high, int):
        _check_exact(low, high, step, where)
    return Range(low, high, step, bool(log))


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and type(value) is not bool


def _check_exact(low: int, high: int, step: int | None, where: str) -> None:
    """Refuse whole numbers that a storage, which holds them as float64, would change."""
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
        self._groups = _groups(self.parameters)

    def suggest(self, trial: Suggester) -> dict[str, Any]:
        """One design."""
        chosen: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.exists(chosen):
                chosen[parameter.key] = parameter.choice.suggest(trial, parameter.key)
        return chosen

    def encoded(self, chosen: Mapping[str, Any]) -> dict[str, float]:
        """A design as the numbers that were suggested; keys without a choice have none."""
        return {p.key: p.choice.number(chosen[p.key]) for p in self.open if p.key in chosen}

    def decoded(self, numbers: Mapping[str, float]) -> dict[str, Any]:
        """The inverse of `encoded`."""
        chosen: dict[str, Any] = {}
        for p in self.parameters:
            if p.exists(chosen):
                one = p.choice.count == 1
                chosen[p.key] = p.choice.nth(0) if one else p.choice.value(numbers[p.key])
        return chosen

    @property
    def size(self) -> int | None:
        """How many designs there are; None if they cannot be counted."""
        counts = [_count(group) for group in self._groups]
        return None if None in counts else math.prod(c for c in counts if c is not None)

    @functools.cached_property
    def open(self) -> list[Parameter]:
        """Those in which there is something to choose."""
        return [p for p in self.parameters if p.choice.count != 1]

    def nth(self, index: int) -> dict[str, Any]:
        """The design at a place of the complete enumeration."""
        chosen: dict[str, Any] = {}
        for group in reversed(self._groups):
            count = _count(group)
            assert count is not None
            index, here = divmod(index, count)
            chosen |= _decode(group, here)
        return {p.key: chosen[p.key] for p in self.parameters if p.key in chosen}


def shown_size(size: int) -> str:
    """All digits up to a billion, then a power of ten: Python itself writes no more than 4300."""
    return f"{size:,}" if size < 10**9 else f"about 10^{math.floor(math.log10(size))}"


Group = tuple[Parameter, ...]  # a parameter, and those that depend on it


def _groups(parameters: Sequence[Parameter]) -> list[Group]:
    groups: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.parent or parameter.key, []).append(parameter)
    return [tuple(group) for group in groups.values()]


def _alternatives(group: Group) -> list[tuple[Any, list[Parameter], int | None]]:
    """Each value of the first parameter, the others that exist with it, and their number."""
    head, *rest = group
    assert isinstance(head.choice, OneOf), "what others depend on is a list, and never long"
    found = []
    for value in head.choice.values:
        there = [p for p in rest if p.exists({head.key: value})]
        counts = [p.choice.count for p in there]
        product = None if None in counts else math.prod(c for c in counts if c is not None)
        found.append((value, there, product))
    return found


def _count(group: Group) -> int | None:
    if len(group) == 1:  # a range may have more values than any list
        return group[0].choice.count
    counts = [count for *_, count in _alternatives(group)]
    return None if None in counts else sum(c for c in counts if c is not None)


def _decode(group: Group, index: int) -> dict[str, Any]:
    head = group[0]
    if len(group) == 1:
        return {head.key: head.choice.nth(index)}
    for value, there, count in _alternatives(group):
        assert count is not None
        if index >= count:
            index -= count
            continue
        chosen = {head.key: value}
        for parameter in reversed(there):
            number = parameter.choice.count
            assert number is not None
            index, here = divmod(index, number)
            chosen[parameter.key] = parameter.choice.nth(here)
        return chosen
    raise IndexError(index)


def flatten_dict(
    nested: Mapping[str, Any],
    flattened: dict[str, Any] | None = None,
    parent_key: str | None = None,
    separator: str = SEPARATOR,
) -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a/b": 1}`; added to `flattened` if that is given."""
    found = {} if flattened is None else flattened
    for key, value in nested.items():
        path = key if parent_key is None else f"{parent_key}{separator}{key}"
        if isinstance(value, Mapping):
            flatten_dict(value, found, path, separator)
        else:
            found[path] = value
    return found


def unflatten_dict(flat: Mapping[str, Any], separator: str = SEPARATOR) -> dict[str, Any]:
    """The inverse of `flatten_dict`."""
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split(separator)
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested
