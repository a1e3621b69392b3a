"""Dotted names, as of modules inside modules."""

from __future__ import annotations

from functools import reduce
from typing import Any

from chop.registry import UnknownName


def get_parent_name(target: str) -> tuple[str, str]:
    """Split a dotted name into parent and leaf; direct children of the root have the parent "".

    >>> get_parent_name("seq_blocks.2"), get_parent_name("fc")
    (('seq_blocks', '2'), ('', 'fc'))
    """
    parent, _, name = str(target).rpartition(".")
    return parent, name


def deepgetattr(obj: Any, attr: str, default: Any = None) -> Any:
    """Return the attribute with a dotted name, or `default`.

    >>> deepgetattr(1j, "real.imag")
    0.0
    """
    try:
        return reduce(getattr, attr.split("."), obj)
    except AttributeError:
        return default


def deepsetattr(obj: Any, attr: str, value: Any) -> None:
    """Set the attribute with a dotted name, as `deepsetattr(model, "layer.0.fc", new_layer)`."""
    parent, name = get_parent_name(attr)
    owner = deepgetattr(obj, parent) if parent else obj
    if owner is None:
        raise UnknownName("attribute", parent, list(getattr(obj, "_modules", ())))
    setattr(owner, name, value)
