"""Draw an fx graph as SVG text: one box per node, data flowing from top to bottom."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from torch import fx, nn

from chop.ir.graph.layout import Box, Point, Size, lay_out
from chop.ir.graph.mase_metadata import TensorMeta

MARGIN, PADDING = 24.0, 12.0  # around the picture, and between a box and its text
MIN_BOX, MIN_PICTURE = 132.0, 400.0  # widths; a legend needs room
MAX_CHARS = 44  # of a line
LEADING, DESCENT = 1.4, 0.36  # the height of a line and its part below the baseline, in font sizes
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" role="img" stroke-width="1.4" \
font-family="system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif">
<title>{title}</title>
<defs><marker id="mase-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" \
markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">\
<path d="M0 0.5 8 4 0 7.5z" fill="#3d3d3d"/></marker></defs>
<rect class="background" width="{width}" height="{height}" fill="#ffffff"/>
<g class="legend">\n{legend}\n</g>
<g class="graph" transform="translate({left} {top})">
<g class="edges" fill="none" stroke="#3d3d3d">\n{edges}\n</g>
{nodes}\n</g>\n</svg>
"""


class Style(NamedTuple):
    label: str
    fill: str
    stroke: str
    radius: float = 5
    dash: str = "none"


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
# in ems, of DejaVu Sans: the widest of the common system fonts, so that no text leaves its box
_ADVANCES = {
    **dict.fromkeys("'ijlI,. ·|/:;\\-", 0.36),
    **dict.fromkeys('ftrJ()[]!"', 0.46),
    **dict.fromkeys("_*`szc?", 0.56),
    **dict.fromkeys("ABCDGHNOQRUVXZ", 0.79),
    **dict.fromkeys("#+<=>^~×→&wM", 0.86),
    **dict.fromkeys("%mW@…", 1.0),
}


class Font(NamedTuple):
    size: int
    colour: str
    weight: int

    def width(self, text: str) -> float:
        """Return an upper estimate of the width of a text."""
        ems = sum(_ADVANCES.get(char, 0.65 if char.isascii() else 1.1) for char in text)
        return ems * self.size * (1.13 if self.weight > 400 else 1.0)


HEAD, BODY = Font(13, "#111111", weight=700), Font(11, "#3d3d3d", weight=400)


class Card(NamedTuple):
    """The text in the box of one node, and the full text for its tooltip."""

    name: str
    style: Style
    lines: list[tuple[str, Font]]
    tooltip: str

    @property
    def size(self) -> Size:
        width = max((font.width(text) for text, font in self.lines), default=0) + 2 * PADDING
        height = sum(font.size for _, font in self.lines) * LEADING + PADDING
        return max(MIN_BOX, round(width)), round(height)


def draw_svg(graph: fx.Graph) -> str:
    """Return the graph as SVG text; modules are described if a GraphModule owns the graph."""
    owner = graph.owning_module
    number = {node: i for i, node in enumerate(graph.nodes)}
    edges = [(number[u], v) for node, v in number.items() for u in node.all_input_nodes]
    cards = [_card(node, owner) for node in number]
    layout = lay_out([card.size for card in cards], edges)
    ends = [(cards[u].name, cards[v].name) for u, v in edges]
    name = type(owner).__name__ if owner is not None else "graph"
    inner = max(layout.width, MIN_PICTURE)
    legend, top = _legend({card.style for card in cards}, inner)
    return SVG.format(
        width=_n(inner + 2 * MARGIN),
        height=_n(top + layout.height + MARGIN),
        left=_n(MARGIN + (inner - layout.width) / 2),
        top=_n(top),
        title=escape(_clean(f"{name}: {len(cards)} nodes, {len(edges)} edges")),
        legend="\n".join(legend),
        edges="\n".join(map(_arrow, ends, layout.routes)),
        nodes="\n".join(map(_node, cards, layout.boxes)),
    )


def _clean(text: str) -> str:
    """Return one line that XML can hold, without memory addresses."""
    text = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
    return " ".join(re.sub(" at 0x[0-9a-fA-F]+", "", text).split())


def _wrapped(text: str) -> list[str]:
    """Return at most two lines, as narrow as possible; longer text ends in an ellipsis."""
    if len(text) <= MAX_CHARS:
        return [text] if text else []
    text = re.sub(r" (?=\d)", "\xa0", text[: 3 * MAX_CHARS])  # "(1, 1)" and "→ 2×4" stay together
    for width in range(MAX_CHARS // 2, MAX_CHARS + 1):
        lines = textwrap.wrap(text, width, break_long_words=False)
        if len(lines) <= 2 and max(map(len, lines)) <= MAX_CHARS:
            break
    else:
        lines = textwrap.wrap(text, MAX_CHARS, max_lines=2, placeholder=" …")
    return [line.replace("\xa0", " ") for line in lines]


def _card(node: fx.Node, owner: fx.GraphModule | None) -> Card:
    called = owner if node.op == "call_module" else None
    module = called.get_submodule(str(node.target)) if called is not None else None
    target = node.target
    if not isinstance(target, str):
        target = getattr(target, "__name__", type(target).__name__)
    origin, call = f"{node.op} {target}", _call(node, target, module)
    name, origin, *details = map(_clean, [node.name, origin, call, *_metadata(node)])
    lines = [(line.replace("_ ", "_"), HEAD) for line in _wrapped(name.replace("_", "_ "))]
    lines += [(line, BODY) for detail in details for line in _wrapped(detail)]
    has_parameters = module is not None and next(module.parameters(), None) is not None
    style = STYLES["parameters" if has_parameters else node.op]
    return Card(name, style, lines, "\n".join(filter(None, [name, origin, *details])))


def _call(node: fx.Node, target: str, module: nn.Module | None) -> str:
    """Return `Linear(in_features=4, …)`, `add(x, y)`, `.view(2, 8)`, or another target."""
    if module is not None:
        return f"{type(module).__name__}({module.extra_repr()})"
    if node.op not in ("call_function", "call_method"):
        return "" if target == node.name else target
    is_method = node.op == "call_method"
    named = [f"{key}={value!r}" for key, value in node.kwargs.items()]
    arguments = ", ".join([*map(repr, node.args[is_method:]), *named])
    return f"{'.' * is_method}{target}({arguments})"


def _metadata(node: fx.Node) -> list[str]:
    """`linear → 8×16`: op and shape; `integer(8, 4): weight`: the tensors other than float32."""
    metadata = node.meta.get("mase")
    common = {} if metadata is None else metadata.parameters.get("common", {})
    entries = [*common.get("args", {}).items(), *common.get("results", {}).items()]
    tensors = {k: e for k, e in entries if isinstance(e, Mapping) and e.get("shape") is not None}
    results = [tensors[name]["shape"] for name in common.get("results", {}) if name in tensors]
    shapes = ["×".join(map(str, shape)) or "scalar" for shape in results]
    names: dict[str, list[str]] = {}
    for name, entry in tensors.items():
        kind, precision = entry.get("type"), entry.get("precision")
        if isinstance(kind, str) and precision is not None:
            options = TensorMeta(entry).format_options.items()
            values = [*map(str, precision), *(_option(key, value) for key, value in options)]
            names.setdefault(f"{kind}({', '.join(values)})", []).append(name)
    names.pop("float(32)", None)
    op = common.get("mase_op") or node.op
    result = " → ".join(filter(None, ["" if op == node.op else op, ", ".join(shapes)]))
    return [result, *(f"{form}: {', '.join(tensors)}" for form, tensors in names.items())]


def _option(key: str, value: Any) -> str:
    """Return an option of a format in few words."""
    if isinstance(value, bool):
        return key if value else f"not {key}"
    if isinstance(value, list):
        return f"{len(value)} {key}s"
    return f"{key} {value:.4g}" if isinstance(value, int | float) else str(value)


def _legend(used: set[Style], width: float) -> tuple[list[str], float]:
    """Return swatches and labels in as many rows as the width needs, and where the graph starts."""
    parts, x, y = [], MARGIN, MARGIN
    for style in [style for style in STYLES.values() if style in used]:
        wide = 20 + 0.9 * BODY.width(style.label)  # the gap forgives a little more
        if x > MARGIN and x + wide > MARGIN + width:
            x, y = MARGIN, y + 20
        label = _text(style.label, BODY, x + 20, y + 11, "start")
        parts += [_rect(style, Box(x, y, 14, 14)), label]
        x += wide + 18
    return parts, y + 20 + MARGIN


def _node(card: Card, box: Box) -> str:
    parts = [f"<title>{escape(card.tooltip)}</title>", _rect(card.style, box)]
    y = box.top + PADDING / 2
    for text, font in card.lines:
        y += font.size * LEADING
        parts.append(_text(text, font, box.middle, y - font.size * DESCENT, "middle"))
    return "\n".join([f'<g class="node" data-name={quoteattr(card.name)}>', *parts, "</g>"])


def _arrow(ends: tuple[str, str], route: list[Point]) -> str:
    """Return an edge: straight down where two points share their `x`, an S where they do not."""
    path = f"M{_n(route[0].x)} {_n(route[0].y)}"
    for at, point in pairwise(route):
        x, y, half = _n(point.x), _n(point.y), _n((at.y + point.y) / 2)
        path += f"V{y}" if point.x == at.x else f"C{_n(at.x)} {half} {x} {half} {x} {y}"
    names = "data-from={} data-to={}".format(*map(quoteattr, ends))
    look = f'class="edge" {names} d="{path}" marker-end="url(#mase-arrow)"'
    return f"<path {look}><title>{escape(' → '.join(ends))}</title></path>"


def _rect(style: Style, box: Box) -> str:
    x, y, width, height = map(_n, box)
    look = f'fill="{style.fill}" stroke="{style.stroke}" stroke-dasharray="{style.dash}"'
    radius = _n(min(style.radius, box.height / 2))
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" {look}/>'


def _text(text: str, font: Font, x: float, y: float, anchor: str) -> str:
    look = f'fill="{font.colour}" font-size="{font.size}" font-weight="{font.weight}"'
    place = f'x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}"'
    return f"<text {place} {look}>{escape(text)}</text>"


def _n(number: float) -> str:
    """Return a coordinate, to a tenth of a pixel."""
    return f"{number:.1f}".removesuffix(".0")
