"""HTML that cannot be broken by the values in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


class Html(str):
    """Text that is HTML already; any other text is escaped when it is put into a tag."""


def tag(name: str, *children: Any, **attributes: Any) -> Html:
    """Return an element; `class_` is the attribute `class`, `data_value` is `data-value`."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_text(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Html:
    """Return the children one after the other, without those that are None."""
    return Html("".join(c if isinstance(c, Html) else _text(c) for c in children if c is not None))


def _text(value: Any) -> str:
    return escape(str(value), quote=True)


def table(
    caption: str, head: Sequence[Any], rows: Iterable[Sequence[Any]], **attributes: Any
) -> Html:
    """Return a table in a box that scrolls; the first cell of a row is its heading."""
    cells = [cell if isinstance(cell, Html) else tag("th", cell, scope="col") for cell in head]
    body = join(tag("tr", *(_cell(i, cell) for i, cell in enumerate(row))) for row in rows)
    parts = tag("caption", caption), tag("thead", tag("tr", *cells)), tag("tbody", body)
    made = tag("table", *parts, **attributes)
    return tag("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cell(place: int, content: Any) -> Html:
    if isinstance(content, Html) and content.startswith(("<td", "<th")):
        return content
    return tag("th", content, scope="row") if place == 0 else tag("td", content)


def json_block(data: Any) -> Html:
    """Return JSON for a script element, which no value in it can close."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)
