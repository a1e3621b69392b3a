"""The structure of a protobuf file, measured before it is parsed.

Parsing turns a few bytes into an object of a hundred; a small file could fill the memory. The walk
below follows lengths only: numbers of weights are skipped as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chop.onnx.reading.errors import UnreadableModel

__all__ = ["MAX_PARTS", "MAX_STRUCTURE", "Structure", "measure"]

MAX_PARTS = 2_000_000  # nodes, names, attributes, tensors; a network of 1,000 layers has 20,000
MAX_STRUCTURE = 2**28  # bytes besides the numbers of weights
MAX_NESTED = 60  # levels of graphs in graphs

# message -> field -> the message in it; "numbers" are skipped
SCHEMA: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {4: "numbers", 5: "numbers", 7: "numbers", 9: "numbers", 10: "numbers"},
}
SCHEMA["tensor"][11] = "numbers"
VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5


@dataclass
class Structure:
    """How many parts a file has, and how many bytes of it are numbers of weights."""

    parts: int = 0
    numbers: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)


def measure(data: bytes | memoryview, owner: str) -> Structure:
    """Return the structure of a model; refuse what is no protobuf, or has too many parts."""
    found = Structure()
    pending = [("model", 0, len(data), 0)]
    while pending:
        message, start, end, depth = pending.pop()
        if depth > MAX_NESTED:
            raise UnreadableModel(
                f"{owner} has graphs nested more than {MAX_NESTED} levels deep; "
                f"export the network again"
            )
        while start < end:
            number, kind, content, start = _field(data, start, end, owner)
            found.parts += 1
            if found.parts > MAX_PARTS:
                raise UnreadableModel(
                    f"{owner} has more than {MAX_PARTS:,} parts, and could fill the memory; "
                    f"export the network without them"
                )
            inside = SCHEMA[message].get(number) if kind == DELIMITED else None
            if inside == "numbers":
                found.numbers += start - content
            elif inside is not None:
                found.by_kind[inside] = found.by_kind.get(inside, 0) + 1
                pending.append((inside, content, start, depth + 1))
    return found


def _field(data: bytes | memoryview, at: int, end: int, owner: str) -> tuple[int, int, int, int]:
    """Return the number and the type of a field, where its content starts, and where it ends."""
    tag, at = _varint(data, at, end, owner)
    kind, length = tag & 7, 0
    if kind == VARINT:
        return tag >> 3, kind, at, _varint(data, at, end, owner)[1]
    if kind == DELIMITED:
        length, at = _varint(data, at, end, owner)
    elif kind == EIGHT_BYTES:
        length = 8
    elif kind == FOUR_BYTES:
        length = 4
    else:
        raise _damaged(owner)
    if length > end - at:
        raise _damaged(owner)
    return tag >> 3, kind, at, at + length


def _varint(data: bytes | memoryview, at: int, end: int, owner: str) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
    raise _damaged(owner)


def _damaged(owner: str) -> UnreadableModel:
    return UnreadableModel(
        f"{owner} is damaged, truncated or not an ONNX file; export or copy it again"
    )
