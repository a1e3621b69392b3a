"""A checksum of a network in integers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from chop.integers.graph import IntegerGraph

__all__ = ["content", "graph_digest"]


def graph_digest(graph: IntegerGraph) -> str:
    """Return a checksum of everything that a network computes: ops, weights, formats, order."""
    told = hashlib.sha256(repr((graph.inputs, graph.outputs)).encode())
    for node in graph.nodes.values():
        told.update(repr((node.name, node.inputs)).encode())
        for part in content(node.op):
            told.update(part)
    return told.hexdigest()


def content(value: Any) -> Iterator[bytes]:
    """Yield the bytes of an op, and of what it is made of; others for any other content."""
    if isinstance(value, Tensor):
        array = value.detach().cpu().contiguous().numpy()
        yield f"{array.dtype} {array.shape};".encode()
        yield array.tobytes()
    elif is_dataclass(value):
        yield f"{type(value).__qualname__};".encode()
        for field in fields(value):
            if field.init:  # others follow from these
                yield f"{field.name}=".encode()
                yield from content(getattr(value, field.name))
    elif isinstance(value, nn.Module):
        yield f"{value!r};".encode()
        yield from content([part for pair in value.state_dict().items() for part in pair])
    elif isinstance(value, tuple | list):
        yield f"{len(value)} items:".encode()
        for item in value:
            yield from content(item)
    else:
        assert value is None or isinstance(value, str | int | float), type(value)
        yield f"{value!r};".encode()
