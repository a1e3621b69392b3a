"""The formats and bits of a design, node by node, as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.numerics import FORMATS, from_config

OPERANDS = ("data_in", "weight")
FLOAT_BITS = 32.0


def layers_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the format, and the bits of data and weights, of every node in a design."""
    layers: dict[str, Any] = {}
    for node, table in config.items():
        inner = table.get("config") if isinstance(table, Mapping) else None
        if isinstance(inner, Mapping):
            name = inner.get("name")
            bits = {f"{operand}_bits": _bits(inner, operand) for operand in OPERANDS}
            layers[node] = {"format": name if name in FORMATS else "float", **bits}
        elif isinstance(table, Mapping):  # the part of one pass among several
            layers |= layers_of(table)
    return layers


def _bits(config: Mapping[str, Any], operand: str) -> float:
    if config.get("name") not in FORMATS or config.get("bypass"):
        return FLOAT_BITS
    try:
        return float(from_config(config, operand).bits)
    except (ValueError, TypeError):  # the node does not have this operand
        return FLOAT_BITS
