"""Uniform designs: every key at its widest, every key at its narrowest, and the parent's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chop.actions.search.space.choices import Choice, Choices, OneOf, Parameter, Range
from chop.passes.graph.transforms.quantize.marks import CALIBRATED, without_marks
from chop.passes.graph.transforms.redefine.width_requests import WIDENINGS

Design = dict[str, Any]

FLOAT_BITS = 32.0
OPERANDS = ("data_in", "weight")
NAME, FRACTION, MULTIPLIER = "name", "frac_width", "channel_multiplier"
FOLLOWS = "input_only"  # for a layer that takes its width from the layer before it
SMALLER_IS_WIDER = ("sparsity",)
# numbers that make a network neither wider nor narrower: their first choice is taken
NOT_WIDTHS = ("exponent_bias", "threshold", "scaling_factor", "alpha", "dropout", "dim", "seed")
UNCHANGED = {"sparsity": 0, MULTIPLIER: 1}  # values with which a pass leaves the parent as it is


def uniform_designs(choices: Choices) -> tuple[Design, ...]:
    """Return the widest and the narrowest design, then the parent's own, each at most once.

    A space without an order, such as one of texts only, has no widest design.
    """
    widest, narrowest = (_end(choices, widest) for widest in (True, False))
    parents = _parents_own(choices)
    designs = [] if widest == narrowest else [widest, narrowest]
    return tuple(designs if parents is None or parents in designs else [*designs, parents])


def _end(choices: Choices, widest: bool) -> Design:
    chosen: Design = {}
    nodes = _nodes(choices)
    for parameter in choices.parameters:
        if parameter.exists(chosen):
            keys = nodes[_node(parameter)]
            chosen[parameter.key] = _value(parameter, keys, widest)
    return chosen


def _nodes(choices: Choices) -> dict[str, dict[str, Parameter]]:
    """Return the parameters of each node by the last part of their keys."""
    nodes: dict[str, dict[str, Parameter]] = {}
    for parameter in choices.parameters:
        nodes.setdefault(_node(parameter), {})[_last(parameter)] = parameter
    return nodes


def _node(parameter: Parameter) -> str:
    return parameter.key.rpartition("/")[0]


def _last(parameter: Parameter) -> str:
    return parameter.key.rpartition("/")[2]


def _value(parameter: Parameter, keys: Mapping[str, Parameter], widest: bool) -> Any:
    """Return the widest or narrowest value of a key; `keys` are those of the same node."""
    choice, last = parameter.choice, _last(parameter)
    if last == NAME and isinstance(choice, OneOf):
        return _extreme(choice.values, widest, lambda name: (_bits(name, keys, widest), not name))
    if last.endswith(FRACTION):
        return _fraction(choice, keys.get(last.removesuffix(FRACTION) + "width"), widest)
    if last.endswith(NOT_WIDTHS):
        return choice.nth(0) if choice.count is not None else _nearest(choice, 0)
    return _bound(choice, widest != last.endswith(SMALLER_IS_WIDER))


def _bound(choice: Choice, largest: bool) -> Any:
    """Return the largest or smallest number of a choice; its first value if it has no numbers."""
    if isinstance(choice, Range):
        if not largest:
            return choice.low
        return choice.high if choice.count is None else choice.nth(choice.count - 1)
    numbers = _numbers(choice)
    return _extreme(numbers, largest, float) if numbers else choice.nth(0)


def _numbers(choice: OneOf) -> list[Any]:
    return [v for v in choice.values if isinstance(v, int | float) and type(v) is not bool]


def _extreme(values: Sequence[Any], largest: bool, key: Any) -> Any:
    """Return the first of the values with the largest or smallest key."""
    return (max if largest else min)(values, key=key)


def _fraction(choice: Choice, width: Parameter | None, widest: bool) -> Any:
    """Return the fraction bits: calibrated or "NA" if offered, or else the one nearest to half."""
    if isinstance(choice, OneOf) and CALIBRATED in choice.values:
        return CALIBRATED
    if isinstance(choice, OneOf) and (None in choice.values or not _numbers(choice)):
        return None if None in choice.values else choice.nth(0)
    if width is None:
        return _bound(choice, widest)
    bits = _bound(width.choice, widest)
    return _nearest(choice, bits / 2 if isinstance(bits, int | float) else 0)


def _nearest(choice: Choice, wanted: float) -> Any:
    """Return the value of a choice that is nearest to a number, the smaller one of two."""
    if isinstance(choice, OneOf):
        return min(_numbers(choice), key=lambda value: (abs(value - wanted), value))
    if choice.count is None:
        return min(max(wanted, choice.low), choice.high)
    index = math.ceil((wanted - choice.low) / (choice.step or 1) - 0.5)
    return choice.nth(min(max(index, 0), choice.count - 1))


def _bits(name: Any, keys: Mapping[str, Parameter], widest: bool) -> float:
    """Return the bits of a node with this format: 32 in float, more or fewer in another width."""
    from chop.numerics import FORMATS, from_config

    head = {keys[NAME].key: name}
    config = {
        last: _value(parameter, keys, widest)
        for last, parameter in keys.items()
        if last != NAME and parameter.exists(head)
    }
    if name not in FORMATS:
        return FLOAT_BITS * float(config.get(MULTIPLIER, 1) if name in WIDENINGS else 1)
    bits = []
    for operand in OPERANDS:
        try:
            bits.append(float(from_config(without_marks({**config, NAME: name}), operand).bits))
        except (ValueError, TypeError, KeyError):  # no such operand, or keys of several formats
            continue
    return sum(bits) / len(bits) if bits else FLOAT_BITS


def _parents_own(choices: Choices) -> Design | None:
    """Return the design that leaves the parent as it is, None if the space does not have it."""
    chosen: Design = {}
    unchanged = dict.fromkeys(map(_node, choices.parameters), False)
    for parameter in choices.parameters:
        if not parameter.exists(chosen):
            continue
        values = _unchanged(parameter)
        if not values and _last(parameter) in UNCHANGED:
            return None
        chosen[parameter.key] = values[0] if values else parameter.choice.nth(0)
        unchanged[_node(parameter)] |= bool(values)
    return chosen if all(unchanged.values()) else None


def _unchanged(parameter: Parameter) -> list[Any]:
    """Return the values of a key that leave the parent as it is."""
    choice, last = parameter.choice, _last(parameter)
    if last == NAME and isinstance(choice, OneOf):
        return [name for name in (None, FOLLOWS) if name in choice.values]
    if last not in UNCHANGED or (isinstance(choice, OneOf) and not _numbers(choice)):
        return []
    return [value for value in [_nearest(choice, UNCHANGED[last])] if value == UNCHANGED[last]]
