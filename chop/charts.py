"""Curves and bars as SVG text, without a plotting package."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#3b6fb6", "#d1495b", "#2a9d5c", "#e09f3e", "#7b4fa3", "#4aa5b5", "#8d6748", "#555555")
WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 36, 48

Series = Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Chart:
    """One panel: named lines over a common axis."""

    title: str
    x_label: str
    y_label: str
    series: Series


def page(charts: Sequence[Chart]) -> str:
    """The charts side by side, as a complete SVG file."""
    return _side_by_side([_panel(chart) for chart in charts], HEIGHT, 12)


def _side_by_side(panels: Sequence[str], height: int, font_size: int) -> str:
    width = WIDTH * len(panels)
    body = "".join(
        f'<g transform="translate({i * WIDTH} 0)">{panel}</g>' for i, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="{font_size}">'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


def _panel(chart: Chart) -> str:
    finite = {
        name: [point for point in points if all(map(math.isfinite, point))]
        for name, points in chart.series.items()
    }
    lines = {name: points for name, points in finite.items() if points}
    title = _text(WIDTH / 2, 20, chart.title, "middle", 'font-weight="bold"')
    if not lines:
        return title + _text(WIDTH / 2, HEIGHT / 2, "nothing to show", "middle")
    xs = Axis.around([x for points in lines.values() for x, _ in points], LEFT, WIDTH - RIGHT)
    ys = Axis.around([y for points in lines.values() for _, y in points], HEIGHT - BOTTOM, TOP)
    parts = [title, _grid(chart, xs, ys)]
    for i, (name, points) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        at = [(f"{xs(x):.1f}", f"{ys(y):.1f}") for x, y in points]
        path, stroke = " ".join(map(",".join, at)), f'stroke="{colour}" stroke-width="1.6"'
        parts.append(f'<polyline points="{path}" fill="none" {stroke}/>')
        if len(points) <= 60:
            parts += [f'<circle cx="{x}" cy="{y}" r="2.2" fill="{colour}"/>' for x, y in at]
        y = TOP + 14 + 15 * i
        parts.append(f'<rect x="{LEFT + 8}" y="{y - 8}" width="14" height="4" fill="{colour}"/>')
        parts.append(_text(LEFT + 27, y, name, "start"))
    return "".join(parts)


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> Axis:
        low, high = min(values), max(values)
        room = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
        return cls(low - room, high + room, start, end)

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Return about `wanted` round values inside the axis."""
        raw = (self.high - self.low) / wanted
        size = 10 ** math.floor(math.log10(raw))
        step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw)
        first = math.ceil(self.low / step)
        return [k * step for k in range(first, math.floor(self.high / step) + 1)]


def _grid(chart: Chart, xs: Axis, ys: Axis) -> str:
    parts = []
    for x in xs.ticks():
        parts.append(_line(xs(x), TOP, xs(x), HEIGHT - BOTTOM))
        parts.append(_text(xs(x), HEIGHT - BOTTOM + 16, _number(x), "middle"))
    for y in ys.ticks():
        parts.append(_line(LEFT, ys(y), WIDTH - RIGHT, ys(y)))
        parts.append(_text(LEFT - 6, ys(y) + 4, _number(y), "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, chart.x_label, "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {middle})"'
    parts.append(_text(14, middle, chart.y_label, "middle", turned))
    return "".join(parts)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(frozen=True)
class Bars:
    """One panel of horizontal bars, each with its name and value."""

    title: str
    values: Mapping[str, float]


BAR, NAMES = 16, 150  # height of a bar with its gap, room for the names
MAX_NAME = 24  # characters of a name


def bar_page(panels: Sequence[Bars]) -> str:
    """Draw the panels side by side, as tall as the longest, as a complete SVG file."""
    rows = max((len(panel.values) for panel in panels), default=0)
    height = TOP + BAR * max(rows, 1) + 12
    return _side_by_side([_bars(panel) for panel in panels], height, 11)


def _bars(panel: Bars) -> str:
    parts = [_text(WIDTH / 2, 20, panel.title, "middle", 'font-weight="bold"')]
    drawn = {name: value for name, value in panel.values.items() if math.isfinite(value)}
    if not drawn:
        return parts[0] + _text(WIDTH / 2, TOP + 8, "nothing to show", "middle")
    longest = max(max(drawn.values()), 0.0) or 1.0
    room = WIDTH - NAMES - 90
    for i, (name, value) in enumerate(drawn.items()):
        y, length = TOP + BAR * i, room * max(value, 0.0) / longest
        short = name if len(name) <= MAX_NAME else f"…{name[1 - MAX_NAME :]}"
        parts.append(_text(NAMES - 6, y + 10, short, "end"))
        size = f'width="{length:.1f}" height="{BAR - 4}"'
        parts.append(f'<rect x="{NAMES}" y="{y}" {size} fill="{COLOURS[0]}"/>')
        parts.append(_text(NAMES + length + 5, y + 10, _number(value), "start"))
    return "".join(parts)


@dataclass(frozen=True)
class HistogramPanel:
    """Counts in equal bins over a range, and the range inside which nothing is clipped."""

    title: str
    counts: Sequence[int]
    range: tuple[float, float]
    inside: tuple[float, float]


COLUMNS, SMALL_WIDTH, SMALL_HEIGHT = 3, 320, 170
MAX_BARS = 64


def histogram_page(panels: Sequence[HistogramPanel]) -> str:
    """Draw the panels in rows of three, as a complete SVG file; what is clipped is red."""
    rows = -(-len(panels) // COLUMNS) or 1
    width, height = COLUMNS * SMALL_WIDTH, rows * SMALL_HEIGHT
    places = [divmod(i, COLUMNS) for i in range(len(panels))]
    body = "".join(
        f'<g transform="translate({column * SMALL_WIDTH} {row * SMALL_HEIGHT})">{_small(panel)}</g>'
        for panel, (row, column) in zip(panels, places, strict=True)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10">'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


def _small(panel: HistogramPanel) -> str:
    """Draw one histogram on a logarithmic scale, from the first to the last bin in use."""
    parts = [_text(SMALL_WIDTH / 2, 14, panel.title, "middle", 'font-weight="bold"')]
    used = [i for i, count in enumerate(panel.counts) if count]
    if not used:
        return parts[0] + _text(SMALL_WIDTH / 2, SMALL_HEIGHT / 2, "nothing to show", "middle")
    first, size = used[0], -(-(used[-1] + 1 - used[0]) // MAX_BARS)
    low, high = panel.range
    step = (high - low) / len(panel.counts)
    bars = [sum(panel.counts[i : i + size]) for i in range(first, used[-1] + 1, size)]
    axis = Axis(low + first * step, low + (first + size * len(bars)) * step, 12, SMALL_WIDTH - 12)
    bottom, room, most = SMALL_HEIGHT - 24, SMALL_HEIGHT - 48, math.log1p(max(bars))
    for i, count in enumerate(bars):
        left = axis.low + i * size * step
        middle = left + size * step / 2
        colour = COLOURS[0] if panel.inside[0] <= middle <= panel.inside[1] else COLOURS[1]
        tall = room * math.log1p(count) / most
        box = f'x="{axis(left):.1f}" y="{bottom - tall:.1f}" height="{tall:.1f}"'
        width = max(axis(left + size * step) - axis(left) - 0.5, 0.5)
        parts.append(f'<rect {box} width="{width:.1f}" fill="{colour}"/>')
    parts += [
        f'<line x1="{axis(edge):.1f}" y1="22" x2="{axis(edge):.1f}" y2="{bottom}" '
        f'stroke="{COLOURS[1]}" stroke-dasharray="3 2"/>'
        for edge in panel.inside
        if axis.low <= edge <= axis.high
    ]
    parts += [_text(axis(x), SMALL_HEIGHT - 10, _number(x), "middle") for x in axis.ticks(4)]
    return "".join(parts)
