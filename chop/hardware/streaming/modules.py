"""The modules of rtl/: their text, and what they are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

__all__ = ["PLUMBING", "module_text", "needed_modules"]

RTL = Path(__file__).with_name("rtl")
# what components are made of; the other modules of rtl/ are those of one component each
PLUMBING = (
    "fixed_adder_tree",
    "fixed_divide",
    "fixed_reduce",
    "fixed_saturate",
    "stream_fifo",
    "stream_fork",
    "stream_narrow",
    "stream_pad",
    "stream_register",
    "stream_taps",
)


@cache
def module_text(name: str) -> str:
    """Return the text of a module of rtl/."""
    file = RTL / f"{name}.sv"
    if not file.exists():
        raise ValueError(f"the module {name!r} has no text; give its component a `template`")
    return file.read_text(encoding="utf-8")


def needed_modules(names: Iterable[str], library: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of modules and of those that they instantiate, by name."""
    texts: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        texts[name] = library[name]
        used = re.findall(r"^ *(\w+) *#\(", library[name], re.MULTILINE)
        waiting += [n for n in used if n in library and n not in texts]
    return dict(sorted(texts.items()))
