"""Checks, before the first trial, that every choice is possible in some design."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from chop.actions.search.space.choices import Parameter, Range

MAX_CHECKED = 16  # choices of a key, from the first to the last

# raises ValueError if the pass would refuse the design
Check = Callable[[Mapping[str, Any]], Any]


def refuse_choices(
    parameters: Sequence[Parameter], check: Check, where: str, head: Parameter | None = None
) -> None:
    """Refuse a choice if the pass refuses all designs with it that are tried.

    In these, all other keys have their first value, or all but one, as two keys may have to fit
    each other. `head` is the key that decides which other keys exist.
    """
    for parameter in parameters:
        for value in some_values(parameter):
            problems = []
            for design in _designs(parameter, value, parameters, head):
                problem = problem_of(check, design)
                if problem is None:
                    break
                problems.append(problem)
            else:
                key = parameter.key.rpartition("/config/")[2].replace("/", ".")
                raise ValueError(f"{where}.{key} = {value!r}: {problems[0]}")


def problem_of(check: Check, design: Mapping[str, Any]) -> str | None:
    """Return why a pass would refuse a design, None if it would not."""
    try:
        check(design)
    except ValueError as error:
        return str(error)
    return None


def _designs(
    parameter: Parameter, value: Any, parameters: Sequence[Parameter], head: Parameter | None
) -> Iterator[dict[str, Any]]:
    """Yield designs with that value, the usual ones first."""
    usual = {p.key: p.choice.nth(0) for p in parameters} | {parameter.key: value}
    bases = [usual]
    if head is not None and parameter is not head:
        named = [usual | {head.key: name} for name in some_values(head)]
        bases = [design for design in named if parameter.exists(design)]
    yield from bases
    for base in bases:
        for other in parameters:
            if other not in (parameter, head) and other.exists(base):
                yield from (base | {other.key: v} for v in some_values(other))


def some_values(parameter: Parameter) -> list[Any]:
    """Return all values of a key, or some of many, with both ends of a range."""
    choice, count = parameter.choice, parameter.choice.count
    if count is None:
        assert isinstance(choice, Range)
        return [choice.low, choice.high]
    if count <= MAX_CHECKED:
        return [choice.nth(i) for i in range(count)]
    return [choice.nth(i * (count - 1) // (MAX_CHECKED - 1)) for i in range(MAX_CHECKED)]
