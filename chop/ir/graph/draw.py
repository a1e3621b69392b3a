"""A picture of an fx graph, as SVG text: one box per node, data flowing from top to bottom."""

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
PADDING = 12.0  # between a box and its text
MIN_BOX = 132.0
MIN_PICTURE = 400.0  # room for a legend
MAX_TEXT = 270.0
MAX_CHARS = 300  # more never fit on two lines
LEADING = 1.4  # the height of a line, in font sizes
DESCENT = 0.36  # the part of it below the baseline
LINE_WIDTH = 1.4
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
BLACK, GREY = "#111111", "#3d3d3d"


@dataclass(frozen=True)
class Style:
    """How one kind of node looks."""

    label: str
    fill: str
    stroke: str
    radius: float = 5
    dash: str = ""


# Okabe and Ito's hues, which colour-blind readers tell apart: dark for lines, light under text
STYLES = {
    "placeholder": Style("input", "#d3efe4", "#007a59", radius=16),
    "get_attr": Style("constant", "#faf6c3", "#7d7400", dash="5 3"),
    "parameters": Style("module with parameters", "#cfe3f5", "#005c91"),
    "call_module": Style("module", "#eef6fc", "#3f8fc4"),
    "call_function": Style("function", "#fbe6c0", "#9a6a00"),
    "call_method": Style("method", "#f6dfeb", "#a34f7f"),
    "output": Style("output", "#fbd9c6", "#b34a00", radius=16),
}


def draw_svg(graph: fx.Graph, modules: Modules | None = None) -> str:
    """The graph as SVG text. `modules` finds a module by its target; by default in the owner."""
    owner = graph.owning_module
    if modules is None and owner is not None:
        modules = owner.get_submodule
    nodes = list(graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    edges = [(number[u], v) for v, node in enumerate(nodes) for u in node.all_input_nodes]
    cards = [card_of(node, modules) for node in nodes]
    layout = lay_out([card.size for card in cards], edges)
    name = type(owner).__name__ if owner is not None else "graph"
    title = f"{name}: {len(nodes)} nodes, {len(edges)} edges"
    arrows = [
        _arrow(cards[u].name, cards[v].name, route)
        for (u, v), route in zip(edges, layout.routes, strict=True)
    ]
    return "\n".join(_picture(title, cards, arrows, layout)) + "\n"


# --- text ------------------------------------------------------------------------------------

# in ems, of DejaVu Sans: the widest of the common system fonts, so that no text leaves its box
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


@dataclass(frozen=True)
class Font:
    size: float
    colour: str
    bold: bool = False

    def width(self, text: str) -> float:
        """An estimate from above."""
        return sum(map(_advance, text)) * self.size * (_BOLD if self.bold else 1.0)


HEAD = Font(13, BLACK, bold=True)
BODY = Font(11, GREY)


@dataclass(frozen=True)
class Line:
    text: str
    font: Font


def clean(text: str) -> str:
    """One line that XML can hold and that is the same in each process."""
    return " ".join(_ADDRESS.sub("", _NOT_XML.sub("\ufffd", text)).split())


def wrap(text: str, font: Font, gap: re.Pattern[str]) -> list[str]:
    """At most two lines that fit, broken after a gap and alike in width; then an ellipsis."""
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
    return f"{words} …" if space else f"{text[:end]}…"


# --- what a box says -------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """What stands in the box of one node, and the full text for its tooltip."""

    name: str
    style: Style
    lines: tuple[Line, ...]
    tooltip: str

    @property
    def size(self) -> Size:
        width = max((line.font.width(line.text) for line in self.lines), default=0) + 2 * PADDING
        height = sum(line.font.size for line in self.lines) * LEADING + PADDING
        return Size(max(MIN_BOX, round(width)), round(height))


def card_of(node: fx.Node, modules: Modules | None) -> Card:
    module = modules(str(node.target)) if modules and node.op == "call_module" else None
    has_parameters = module is not None and next(module.parameters(), None) is not None
    name, origin = clean(node.name), clean(f"{node.op} {_target(node)}")
    details = [clean(text) for text in (_call(node, module), _result(node), *_formats(node))]
    lines = [Line(text, HEAD) for text in wrap(name, HEAD, _IN_NAME)]
    lines += [Line(text, BODY) for detail in details for text in wrap(detail, BODY, _IN_TEXT)]
    return Card(
        name=name,
        style=STYLES["parameters" if has_parameters else node.op],
        lines=tuple(lines),
        tooltip="\n".join(filter(None, [name, origin, *details])),
    )


def _target(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target
    return getattr(node.target, "__name__", type(node.target).__name__)


def _call(node: fx.Node, module: nn.Module | None) -> str:
    """`Linear(in_features=4, …)`, `add(x, y)`, `.view(2, 8)`; else what the name does not say."""
    target = _target(node)
    if module is not None:
        return f"{type(module).__name__}({module.extra_repr()})"
    if node.op == "call_function":
        return f"{target}({_arguments(node.args, node.kwargs)})"
    if node.op == "call_method":
        return f".{target}({_arguments(node.args[1:], node.kwargs)})"
    return "" if target == node.name else target


def _arguments(args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    return ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())])


def _result(node: fx.Node) -> str:
    """`linear → 8×16`: the MASE op and the shape of what it makes."""
    common = _common(node)
    op = common.get("mase_op") or node.op
    shapes = ["×".join(map(str, e["shape"])) or "scalar" for _, e in _tensors(common, "results")]
    return " → ".join(filter(None, ["" if op == node.op else op, ", ".join(shapes)]))


def _formats(node: fx.Node) -> Iterator[str]:
    """`integer(8, 4): data_in_0, weight`: the tensors that are not 32-bit floats."""
    common = _common(node)
    names: dict[str, list[str]] = {}
    for name, entry in [*_tensors(common, "args"), *_tensors(common, "results")]:
        kind, precision = entry.get("type"), entry.get("precision")
        if isinstance(kind, str) and precision is not None:
            names.setdefault(f"{kind}({', '.join(map(str, precision))})", []).append(name)
    names.pop("float(32)", None)
    for number_format, tensors in names.items():
        yield f"{number_format}: {', '.join(tensors)}"


def _common(node: fx.Node) -> Mapping[str, Any]:
    metadata = node.meta.get("mase")
    return {} if metadata is None else metadata.parameters.get("common", {})


def _tensors(common: Mapping[str, Any], part: str) -> list[tuple[str, Mapping[str, Any]]]:
    entries = common.get(part, {}).items()
    return [(k, e) for k, e in entries if isinstance(e, Mapping) and e.get("shape") is not None]


# --- SVG -------------------------------------------------------------------------------------


def _picture(title: str, cards: list[Card], arrows: list[str], layout: Layout) -> Iterator[str]:
    inner = max(layout.width, MIN_PICTURE)
    legend, top = _legend({card.style for card in cards}, inner)
    left = MARGIN + (inner - layout.width) / 2
    width, height = _n(inner + 2 * MARGIN), _n(top + layout.height + MARGIN)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img" font-family="{FONTS}">'
    )
    yield f"<title>{escape(clean(title))}</title>"
    yield (
        '<defs><marker id="mase-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"'
        ' markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0 0.5 8 4 0 7.5z" fill="{GREY}"/></marker></defs>'
    )
    yield f'<rect class="background" width="{width}" height="{height}" fill="#ffffff"/>'
    yield from ['<g class="legend">', *legend, "</g>"]
    yield f'<g class="graph" transform="translate({_n(left)} {_n(top)})">'
    yield f'<g class="edges" fill="none" stroke="{GREY}" stroke-width="{LINE_WIDTH}">'
    yield from [*arrows, "</g>"]
    for card, box in zip(cards, layout.boxes, strict=True):
        yield from _node(card, box)
    yield from ["</g>", "</svg>"]


def _legend(used: set[Style], width: float) -> tuple[list[str], float]:
    """Swatches and labels in as many rows as the width asks for, and where the graph can start."""
    swatch, row, gap = 14.0, 20.0, 18.0
    parts: list[str] = []
    x = y = MARGIN
    for style in STYLES.values():
        if style not in used:
            continue
        wide = swatch + 6 + 0.9 * BODY.width(style.label)  # the gap forgives a little more
        if x > MARGIN and x + wide > MARGIN + width:
            x, y = MARGIN, y + row
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


def _rect(style: Style, box: Box) -> str:
    dash = f' stroke-dasharray="{style.dash}"' if style.dash else ""
    return (
        f'<rect x="{_n(box.left)}" y="{_n(box.top)}" width="{_n(box.width)}"'
        f' height="{_n(box.height)}" rx="{_n(min(style.radius, box.height / 2))}"'
        f' fill="{style.fill}" stroke="{style.stroke}" stroke-width="{LINE_WIDTH}"{dash}/>'
    )


def _text(line: Line, at: Point, anchor: str) -> str:
    weight = ' font-weight="700"' if line.font.bold else ""
    return (
        f'<text x="{_n(at.x)}" y="{_n(at.y)}" text-anchor="{anchor}" fill="{line.font.colour}"'
        f' font-size="{_n(line.font.size)}"{weight}>{escape(line.text)}</text>'
    )


def _arrow(source: str, target: str, route: list[Point]) -> str:
    return (
        f'<path class="edge" data-from={quoteattr(source)} data-to={quoteattr(target)}'
        f' d="{_curve(route)}" marker-end="url(#mase-arrow)">'
        f"<title>{escape(f'{source} → {target}')}</title></path>"
    )


def _curve(route: list[Point]) -> str:
    """Straight down where two points are above each other, an S where they are not."""
    corners = [
        point
        for before, point, after in zip(route, route[1:], route[2:], strict=False)
        if not before.x == point.x == after.x
    ]
    at = route[0]
    path = f"M{_n(at.x)} {_n(at.y)}"
    for point in [*corners, route[-1]]:
        x, y, half = _n(point.x), _n(point.y), _n((at.y + point.y) / 2)
        path += f"V{y}" if point.x == at.x else f"C{_n(at.x)} {half} {x} {half} {x} {y}"
        at = point
    return path


def _n(number: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{number:.1f}".removesuffix(".0")
