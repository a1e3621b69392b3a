"""Ways to damage bytes, trees of plain values, and lines of text."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

DEEP = 5000
ESCAPE = "../../../../escaped"
TEXTS = (
    *("", " ", "NA", "nan", "x", "default", "__class__", ESCAPE, "/", "~", ".", "%s{}$HOME"),
    *("\x00", "a\nb", "\u202e", "🦆", "\udc80", "\x1b[31m"),
    *("x" * 5000, "<script>alert(1)</script>", "'; DROP TABLE trials; --"),
)
NUMBERS = (0, 1, -1, 2, 3, 1 << 31, -(1 << 31), 1 << 63, 10**30, 0.5, -0.0, 1e-300, 1e308)
FLOATS = (float("nan"), float("inf"), float("-inf"))
ODD: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [None], {"": None}, {"x": 1}, [1, "a", None], [0.5] * 40),
    *TEXTS,
    *NUMBERS,
    *FLOATS,
)
TOML_HUGE = ("9223372036854775807", "1_000_000_000_000", "1e300", "inf", f"1{'0' * 4500}")
TOML_VALUES = (
    *("0", "1", "-1", "0.5", "-0.0", "nan", "-inf", "true", "1979-05-27T07:32:00Z"),
    *('""', '"NA"', '"x"', '"🦆"', '"\\u0000"', f'"{"x" * 3000}"', f'"{ESCAPE}"'),
    '"@HOME@/notes.txt"',
    *("[]", "{}", "[[]]", '["NA"]', '[["NA"]]', "[nan]", '[1, "a"]', "[{}]", "[0.5, nan]"),
    *("{ a = 1 }", "{ config = 1 }", '{ name = "x" }', "[1, 2, 3]", '"postgresql://localhost:1/x"'),
    *("{ min = 1, max = 1_000_000_000_000_000_000 }", "{ min = 0, max = 1, step = 0 }"),
    *("{ min = 2, max = 1 }", "{ min = nan, max = 1.0 }", "[" * DEEP + "]" * DEEP),
)
Path = tuple[Any, ...]


def damaged(random: Random, data: bytes) -> bytes:
    """Return `data` cut, flipped, overwritten, or with something in the middle."""
    start, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    ways: Sequence[Callable[[], bytes]] = (
        lambda: data[:start],
        lambda: data[start:],
        lambda: flipped(random, data),
        lambda: flipped(random, data),
        lambda: data[:start] + bytes(end - start) + data[end:],
        lambda: data[:start] + random.randbytes(16) + data[start:],
        lambda: data[:start] + data[start:end] + data[start:],
        lambda: data[:start] + random.randbytes(end - start) + data[end:],
    )
    return random.choice(ways)()


def flipped(random: Random, data: bytes) -> bytes:
    """Return `data` with some bits changed."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8)) if data else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def foreign(random: Random) -> bytes:
    """Return a file of another program."""
    return random.choice(
        (
            *(b"", b"\n", b"my notes", b"my notes\n", b"3\n", b"[1, 2]\n", b"{}\n", b"null\n"),
            *(b"PK\x03\x04", b"PK\x05\x06" + bytes(18), b"\x80\x02.", b"\x89HDF\r\n\x1a\n"),
            *(b"SQLite format 3\x00", b"\x93NUMPY\x01\x00", b"\x1f\x8b\x08\x00", b"\xff" * 300),
            b"root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/bin/false\n",
            b"name,age\nann,3\nbob,4\n",
            random.randbytes(random.choice((1, 8, 700))),
            b"[" * DEEP,
        )
    )


def changed(random: Random, tree: Any, odd: Sequence[Any] = ODD, times: int = 0) -> Any:
    """Return a copy of a tree of dicts and lists in which some values are odd or missing."""
    tree = copy.deepcopy(tree)
    for _ in range(times or random.choice((1, 1, 1, 2, 4))):
        paths = list(walk(tree))[1:]
        if paths:
            _change(random, tree, random.choice(paths), odd)
    return tree


def _change(random: Random, tree: Any, path: Path, odd: Sequence[Any]) -> None:
    *parents, last = path
    owner = at(tree, parents)
    way = random.randrange(10)
    if way == 0:
        del owner[last]
    elif way == 1:
        owner[last] = [owner[last]]
    elif way == 2:
        owner[last] = copy.deepcopy(at(tree, random.choice(list(walk(tree)))))
    elif way == 3 and isinstance(owner, dict):
        owner[random.choice(TEXTS)] = owner.pop(last)
    elif way == 4 and isinstance(owner[last], int | float | str):
        owner[last] = str(owner[last]) if not isinstance(owner[last], str) else len(owner[last])
    else:
        owner[last] = copy.deepcopy(random.choice(odd))


def walk(tree: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of all values in a tree, its root first."""
    yield path
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from walk(value, (*path, key))


def at(tree: Any, path: Sequence[Any]) -> Any:
    """Return the value at a path."""
    for key in path:
        tree = tree[key]
    return tree


def changed_json(random: Random, text: str) -> bytes:
    """Return a JSON document with odd values in it, nested too deep, or damaged as bytes."""
    way = random.randrange(10)
    if way == 0:
        return damaged(random, text.encode())
    tree = json.loads(text)
    if way == 1:
        paths = list(walk(tree))[1:]
        *parents, last = random.choice(paths)
        at(tree, parents)[last] = "@DEEP@"
        nest = random.choice(("[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP))
        return json.dumps(tree).replace('"@DEEP@"', nest).encode()
    return json.dumps(changed(random, tree)).encode(errors="surrogateescape")


def changed_lines(random: Random, lines: list[str]) -> list[str]:
    """Return lines with some of them missing, twice, in another order, or cut."""
    lines = list(lines)
    for _ in range(random.choice((1, 1, 2))):
        place = random.randrange(len(lines))
        way = random.randrange(5)
        if way == 0 and len(lines) > 1:
            del lines[place]
        elif way == 1:
            lines.insert(place, random.choice(lines))
        elif way == 2:
            other = random.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
        elif way == 3:
            lines[place] = lines[place][: random.randrange(len(lines[place]) + 1)]
        else:
            lines.insert(place, random.choice(TEXTS))
    return lines


NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")


def changed_numbers(random: Random, line: str, odd: Sequence[str]) -> str:
    """Return a line in which one number is something else."""
    numbers = list(NUMBER.finditer(line))
    if not numbers:
        return line
    place = random.choice(numbers)
    return line[: place.start()] + random.choice(odd) + line[place.end() :]
