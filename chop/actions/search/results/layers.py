"""The bits of a design, node by node, as a report shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.numerics import FORMATS, from_config

OPERANDS = ("data_in", "weight")
FLOAT_BITS = 32.0


def layers_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Format, and bits of data and weights, of every node that a design is about."""
    found = {}
    for node, table in config.items():
        inner = table.get("config") if isinstance(table, Mapping) else None
        if isinstance(inner, Mapping):
            found[node] = _layer(inner)
        elif isinstance(table, Mapping):  # the part of one pass among several
            found |= layers_of(table)
    return found


def _layer(config: Mapping[str, Any]) -> dict[str, Any]:
    name = config.get("name")
    bits = {operand: _bits(config, operand) for operand in OPERANDS}
    shown = {f"{operand}_bits": number for operand, number in bits.items()}
    return {"format": name if name in FORMATS else "float", **shown}


def _bits(config: Mapping[str, Any], operand: str) -> float:
    if config.get("name") not in FORMATS or config.get("bypass"):
        return FLOAT_BITS
    try:
        return float(from_config(config, operand).bits)
    except (ValueError, TypeError):  # an operand that this node has not
        return FLOAT_BITS
