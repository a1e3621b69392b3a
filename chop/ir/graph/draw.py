"""A picture of an fx graph: one box per node from top to bottom, as SVG text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from torch import fx, nn

from chop.ir.graph.layout import Box, Layout, Point, Size, lay_out

Modules = Callable[[str], nn.Module]

MARGIN = 24.0
PADDING = 12.0
MIN_BOX = 132.0
MAX_TEXT = 270.0
MAX_CHARS = 300  # more do not fit on two lines in any font
MIN_PICTURE = 400.0
LEADING = 1.4  # the height of a line, in font sizes
DESCENT = 0.36  # of that, below the baseline
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
INK, FAINT, LINE = "#111111", "#3d3d3d", "#4a4a4a"


@dataclass(frozen=True)
class Style:
    """How one kind of node looks: Okabe and Ito's hues, which the colour-blind tell apart."""

    label: str
    fill: str
    stroke: str
    radius: float = 5
    dash: str = ""


STYLES = {
    "placeholder": Style("input", "#d3efe4", "#007a59", radius=16),
    "get_attr": Style("constant", "#faf6c3", "#7d7400", dash="5 3"),
    "parameters": Style("module with parameters", "#cfe3f5", "#005c91"),
    "call_module": Style("module", "#eef6fc", "#3f8fc4"),
    "call_function": Style("function", "#fbe6c0", "#9a6a00"),
    "call_method": Style("method", "#f6dfeb", "#a34f7f"),
    "output": Style("output", "#fbd9c6", "#b34a00", radius=16),
}


@dataclass(frozen=True)
class Font:
    size: float
    colour: str
    bold: bool = False

    def width(self, text: str) -> float:
        """An estimate that is not exceeded in any common system font."""
        return sum(map(_advance, text)) * self.size * (_BOLD if self.bold else 1.0)


HEAD = Font(13, INK, bold=True)
BODY = Font(11, FAINT)


@dataclass(frozen=True)
class Line:
    text: str
    font: Font


@dataclass(frozen=True)
class Card:
    """What stands in the box of one node, and what a tooltip adds."""

    name: str
    style: Style
    lines: tuple[Line, ...]
    tooltip: str

    @property
    def size(self) -> Size:
        width = max(line.font.width(line.text) for line in self.lines) + 2 * PADDING
        height = sum(line.font.size for line in self.lines) * LEADING + PADDING
        return Size(max(MIN_BOX, round(width)), round(height))


def draw_svg(graph: fx.Graph, modules: Modules | None = None) -> str:
    """The graph as SVG text. `modules` finds a module by target; the graph's owner if absent."""
    owner = graph.owning_module
    if modules is None and owner is not None:
        modules = owner.get_submodule
    nodes = list(graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    edges = [(u, v) for v in nodes for u in v.all_input_nodes]
    cards = [card_of(node, modules) for node in nodes]
    layout = lay_out([card.size for card in cards], [(number[u], number[v]) for u, v in edges])
    title = f"{type(owner).__name__ if owner else 'graph'}: {len(nodes)} nodes, {len(edges)} edges"
    return "\n".join(_picture(title, cards, [(u.name, v.name) for u, v in edges], layout)) + "\n"


# --- what a box says -------------------------------------------------------------------------


def card_of(node: fx.Node, modules: Modules | None) -> Card:
    module = modules(str(node.target)) if modules and node.op == "call_module" else None
    has_parameters = module is not None and next(module.parameters(), None) is not None
    name = clean(node.name)
    details = [clean(text) for text in (_what(node, module), _result(node), *_formats(node))]
    lines = [Line(text, HEAD) for text in wrap(name, HEAD, _IN_NAME)]
    lines += [Line(text, BODY) for detail in details for text in wrap(detail, BODY, _IN_TEXT)]
    return Card(
        name=name,
        style=STYLES["parameters" if has_parameters else node.op],
        lines=tuple(lines),
        tooltip="\n".join(filter(None, [clean(str(node.format_node())), *details])),
    )


def _what(node: fx.Node, module: nn.Module | None) -> str:
    target = str(node.target)
    if module is not None:
        return f"{type(module).__name__}({module.extra_repr()})"
    if node.op == "call_function":
        return f"{_function_name(node.target)}({_arguments(node.args, node.kwargs)})"
    if node.op == "call_method":
        return f".{target}({_arguments(node.args[1:], node.kwargs)})"
    return "" if target == node.name else target


def _function_name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


def _arguments(args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    return ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())])


def _common(node: fx.Node) -> Mapping[str, Any]:
    metadata = node.meta.get("mase")
    return {} if metadata is None else metadata.parameters.get("common", {})


def _result(node: fx.Node) -> str:
    """`linear → 8×16`: the op and the shapes it makes, as far as the metadata knows them."""
    common = _common(node)
    shapes = ", ".join(
        "×".join(map(str, entry["shape"])) or "scalar"
        for _, entry in _tensors(common.get("results"))
    )
    op = common.get("mase_op", node.op)
    return " → ".join(part for part in ("" if op == node.op else op, shapes) if part)


def _formats(node: fx.Node) -> Iterator[str]:
    """`integer(8, 4): data_in_0, weight`: the tensors that are not 32-bit floats, by format."""
    common = _common(node)
    users: dict[str, list[str]] = {}
    for name, entry in [*_tensors(common.get("args")), *_tensors(common.get("results"))]:
        if isinstance(entry.get("type"), str) and "precision" in entry:
            precision = ", ".join(map(str, entry["precision"]))
            users.setdefault(f"{entry['type']}({precision})", []).append(name)
    users.pop("float(32)", None)
    for text, names in users.items():
        yield f"{text}: {', '.join(names)}"


def _tensors(operands: Mapping[str, Any] | None) -> list[tuple[str, Mapping[str, Any]]]:
    entries = (operands or {}).items()
    return [(name, e) for name, e in entries if isinstance(e, Mapping) and "shape" in e]


# --- text ------------------------------------------------------------------------------------

# Advances in ems of DejaVu Sans, the widest of the common system fonts
_ADVANCES = {
    **dict.fromkeys("'ijlI,. ·|/:;\\-", 0.36),
    **dict.fromkeys('ftrJ()[]!"', 0.46),
    **dict.fromkeys("_*`szc?", 0.56),
    **dict.fromkeys("ABCDGHNOQRUVXZ", 0.79),
    **dict.fromkeys("#+<=>^~×→&wM", 0.86),
    **dict.fromkeys("%mW@…", 1.0),
}
_BOLD = 1.13
_IN_NAME = re.compile("_")
_IN_TEXT = re.compile(r" (?!\d)")  # "(1, 1)" and "→ 2×4" stay together
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@cache
def _advance(char: str) -> float:
    return _ADVANCES.get(char, 0.65 if char.isascii() else 1.1)


def wrap(text: str, font: Font, gap: re.Pattern[str]) -> list[str]:
    """At most two lines that fit, broken after a gap and of like width; the rest is an ellipsis."""
    if font.width(text) <= MAX_TEXT:
        return [text] if text else []
    text = text[:MAX_CHARS]
    halves = [(text[: m.end()].rstrip(), text[m.end() :]) for m in gap.finditer(text)]
    halves = [half for half in halves if font.width(half[0]) <= MAX_TEXT]
    first, rest = min(halves, key=lambda half: max(map(font.width, half)), default=(text, ""))
    return [shorten(line, font) for line in (first, rest) if line]


def shorten(text: str, font: Font) -> str:
    """The text, or as many of its words as fit with an ellipsis."""
    if font.width(text) <= MAX_TEXT:
        return text
    end = 0
    while font.width(text[: end + 1] + " …") <= MAX_TEXT:
        end += 1
    words, space, _ = text[: end + 1].rpartition(" ")
    return f"{words} …" if space else text[:end] + "…"


def clean(text: str) -> str:
    """One line that XML may hold and that is the same in each process."""
    return " ".join(_ADDRESS.sub("", _NOT_XML.sub("\ufffd", text)).split())


# --- SVG -------------------------------------------------------------------------------------


def _picture(
    title: str, cards: list[Card], edges: list[tuple[str, str]], layout: Layout
) -> Iterator[str]:
    used = [style for style in STYLES.values() if any(card.style is style for card in cards)]
    width = max(layout.width, MIN_PICTURE)
    legend, legend_height = _legend(used, width)
    full = Size(width + 2 * MARGIN, layout.height + legend_height + 2 * MARGIN)
    w, h = _n(full.width), _n(full.height)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}"'
        f' viewBox="0 0 {w} {h}" role="img" font-family="{FONTS}">'
    )
    yield f"<title>{escape(clean(title))}</title>"
    yield (
        '<defs><marker id="mase-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"'
        ' markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0 0.5 8 4 0 7.5z" fill="{LINE}"/></marker></defs>'
    )
    yield f'<rect class="background" width="{w}" height="{h}" fill="#ffffff"/>'
    yield f'<g class="legend" transform="translate({_n(MARGIN)} {_n(MARGIN)})">'
    yield from legend
    yield "</g>"
    left = MARGIN + (width - layout.width) / 2
    yield f'<g class="graph" transform="translate({_n(left)} {_n(MARGIN + legend_height)})">'
    yield f'<g class="edges" fill="none" stroke="{LINE}" stroke-width="1.4">'
    for (source, target), route in zip(edges, layout.routes, strict=True):
        yield _edge(source, target, route)
    yield "</g>"
    for card, box in zip(cards, layout.boxes, strict=True):
        yield from _node(card, box)
    yield "</g>"
    yield "</svg>"


def _legend(styles: list[Style], width: float) -> tuple[list[str], float]:
    """Swatches and labels in as many rows as the width asks for, and their height."""
    swatch, row, gap = 14.0, 20.0, 18.0
    parts: list[str] = []
    x = y = 0.0
    for style in styles:
        wide = swatch + 6 + 0.9 * BODY.width(style.label)
        if x and x + wide > width:
            x, y = 0.0, y + row
        parts.append(_rect(style, Box(x, y, swatch, swatch)))
        parts.append(_text(Line(style.label, BODY), Point(x + swatch + 6, y + 11), "start"))
        x += wide + gap
    return parts, y + row + MARGIN


def _node(card: Card, box: Box) -> Iterator[str]:
    yield f'<g class="node" data-name={quoteattr(card.name)}>'
    yield f"<title>{escape(card.tooltip)}</title>"
    yield _rect(card.style, box)
    y = box.top + PADDING / 2
    for line in card.lines:
        y += line.font.size * LEADING
        yield _text(line, Point(box.middle, y - line.font.size * DESCENT), "middle")
    yield "</g>"


def _text(line: Line, at: Point, anchor: str) -> str:
    weight = ' font-weight="700"' if line.font.bold else ""
    return (
        f'<text x="{_n(at.x)}" y="{_n(at.y)}" text-anchor="{anchor}" fill="{line.font.colour}"'
        f' font-size="{_n(line.font.size)}"{weight}>{escape(line.text)}</text>'
    )


def _rect(style: Style, box: Box) -> str:
    dash = f' stroke-dasharray="{style.dash}"' if style.dash else ""
    radius = min(style.radius, box.height / 2)
    return (
        f'<rect x="{_n(box.left)}" y="{_n(box.top)}" width="{_n(box.width)}"'
        f' height="{_n(box.height)}" rx="{_n(radius)}" fill="{style.fill}"'
        f' stroke="{style.stroke}" stroke-width="1.4"{dash}/>'
    )


def _edge(source: str, target: str, route: list[Point]) -> str:
    return (
        f'<path class="edge" data-from={quoteattr(source)} data-to={quoteattr(target)}'
        f' d="{_curve(route)}" marker-end="url(#mase-arrow)">'
        f"<title>{escape(f'{source} → {target}')}</title></path>"
    )


def _curve(route: list[Point]) -> str:
    """Straight down where the points are above each other, an S where they are not."""
    corners = [
        point
        for before, point, after in zip(route, route[1:], route[2:], strict=False)
        if not before.x == point.x == after.x
    ]
    at = route[0]
    parts = [f"M{_n(at.x)} {_n(at.y)}"]
    for point in [*corners, route[-1]]:
        x, y, half = _n(point.x), _n(point.y), _n((at.y + point.y) / 2)
        parts.append(f"V{y}" if point.x == at.x else f"C{_n(at.x)} {half} {x} {half} {x} {y}")
        at = point
    return "".join(parts)


def _n(number: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{number:.1f}".removesuffix(".0")
