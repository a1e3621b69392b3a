"""Waves of a simulation: read a VCD file, and draw some of its signals as SVG."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from chop.charts import COLOURS
from chop.hardware.circuit import Circuit, Port
from chop.registry import unknown
from chop.system.files import write_whole

__all__ = ["WaveSignal", "Waves", "draw_waves", "port_signals", "read_waves"]

UNITS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0, "ps": 1e-3, "fs": 1e-6}
LEFT, ROW, HIGH, TOP, RIGHT = 170, 26, 16, 34, 12
MAX_LANES = 8  # that have a row each
WIDTH = 900
CHARACTER = 6.2  # pixels of a digit
VARIABLE = re.compile(r"\$var\s+\S+\s+(\d+)\s+(\S+)\s+(\S+)(?:\s+\[[\d:]+\])?\s+\$end")


@dataclass(frozen=True)
class Waves:
    """The changes of all signals: times in ns, and values as bits or None if they are unknown."""

    widths: Mapping[str, int]
    times: Mapping[str, Sequence[float]]
    values: Mapping[str, Sequence[int | None]]
    end: float

    def at(self, name: str, time: float) -> int | None:
        """Return the value of a signal at a time."""
        place = bisect_right(self.times[name], time) - 1
        return self.values[name][place] if place >= 0 else None


@dataclass(frozen=True)
class WaveSignal:
    """A signal of a picture; that of a port is shown as codes, where its `valid` is 1.

    `lane` selects one of the codes of a beat.
    """

    name: str
    port: Port | None = None
    lane: int | None = None

    @property
    def label(self) -> str:
        return self.name if self.lane is None else f"{self.name}[{self.lane}]"

    @property
    def valid(self) -> str | None:
        """The signal that tells whether this one means anything."""
        return None if self.port is None else f"{self.name}_valid"

    def text(self, value: int | None) -> str:
        """Return a value as it is written into the picture."""
        if value is None:
            return "x"
        return f"{value:x}" if self.port is None else " ".join(map(str, self._codes(value)))

    def _codes(self, value: int) -> Iterator[int]:
        """Yield the codes of a value, the first from the lowest bits."""
        assert self.port is not None
        turn = 1 << self.port.width
        for lane in range(self.port.lanes) if self.lane is None else (self.lane,):
            code = (value >> lane * self.port.width) % turn
            yield code - turn if self.port.signed and code >= turn // 2 else code


def read_waves(file: Path) -> Waves:
    """Return the signals of the top module in a VCD file, and of those inside it by `a.b`."""
    text = file.read_text(encoding="utf-8", errors="replace")
    head, found, body = text.partition("$enddefinitions")
    if not found:
        raise ValueError(f"{file} is not a VCD file; simulate with waves, and give dump.vcd")
    names, widths = _names(head)
    scale = re.search(r"\$timescale\s+(\d+)\s*(\w+)", head)
    unit = int(scale[1]) * UNITS[scale[2]] if scale else 1.0
    times: dict[str, list[float]] = {name: [] for name in widths}
    values: dict[str, list[int | None]] = {name: [] for name in widths}
    now = 0.0
    for line in body.splitlines()[1:]:
        if line.startswith("#"):
            now = int(line[1:]) * unit
        elif line and line[0] in "01xzbXZ":
            bits, code = line[1:].split() if line[0] == "b" else (line[0], line[1:].strip())
            for name in names.get(code, ()):
                times[name].append(now)
                values[name].append(int(bits, 2) if set(bits) <= {"0", "1"} else None)
    return Waves(widths, times, values, now)


def _names(head: str) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Return the names of each identifier in the head of a VCD file, and their widths."""
    names: dict[str, list[str]] = {}
    widths: dict[str, int] = {}
    scopes: list[str] = []
    for line in map(str.strip, head.splitlines()):
        if line.startswith("$scope"):
            scopes.append(line.split()[2])
        elif line.startswith("$upscope"):
            scopes.pop()
        elif match := VARIABLE.match(line):
            # the first scope is the top module, or what Verilator has above it
            inside = [s for s in scopes if s not in ("TOP", "$rootio", "$root")][1:]
            name = ".".join([*inside, match[3].partition("[")[0]])
            if name in widths and match[2] not in names:
                continue  # Verilator lists the ports twice
            names.setdefault(match[2], []).append(name)
            widths[name] = int(match[1])
    return names, widths


def port_signals(circuit: Circuit) -> list[WaveSignal]:
    """Return the clock, the reset and the ports of a circuit, with a row per lane if they are few.

    >>> port = Port("data_in_0", "x", (4,), 8, True, 2)
    >>> circuit = Circuit("top", "unrolled", "verilog", {}, (port,), (), 5.0, 1)
    >>> [signal.label for signal in port_signals(circuit)]
    ['clk', 'rst', 'data_in_0[0]', 'data_in_0[1]', 'data_in_0_valid']
    """
    signals = [WaveSignal("clk"), WaveSignal("rst")]
    ends = ("_valid", "_ready") if circuit.handshakes else ("_valid",)
    for port in (*circuit.inputs, *circuit.outputs):
        lanes = range(port.lanes) if port.lanes <= MAX_LANES else (None,)
        signals += [WaveSignal(port.name, port, lane) for lane in lanes]
        signals += [WaveSignal(port.name + end) for end in ends]
    return signals


def draw_waves(
    waves: Waves,
    signals: Sequence[WaveSignal],
    file: Path,
    *,
    start: float = 0.0,
    end: float | None = None,
) -> Path:
    """Draw signals between two times in ns as an SVG file."""
    wrong = next((s.name for s in signals if s.name not in waves.widths), None)
    if wrong is not None:
        raise ValueError(unknown("signal", wrong, list(waves.widths)))
    stop = waves.end if end is None else min(end, waves.end)
    if stop <= start:
        raise ValueError(f"end must be after start, not {stop:g} and {start:g} ns")
    picture = _Picture(waves, start, stop)
    height = TOP + ROW * len(signals) + 10
    rows = "".join(picture.row(signal, TOP + ROW * i) for i, signal in enumerate(signals))
    return write_whole(
        file,
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{picture.axis(height)}{rows}</svg>\n',
    )


@dataclass(frozen=True)
class WaveSpan:
    """A time in which a signal keeps its value; it may not mean anything."""

    begin: float
    end: float
    value: int | None
    meant: bool


@dataclass(frozen=True)
class _Picture:
    """Signals between two times."""

    waves: Waves
    start: float
    stop: float

    def x(self, time: float) -> float:
        share = (time - self.start) / (self.stop - self.start)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def axis(self, height: int) -> str:
        step = next(
            s
            for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9)
            if (self.stop - self.start) / s <= 20 or s == 10**9
        )
        first = -(-self.start // step)
        ticks = [first * step + i * step for i in range(21) if first * step + i * step <= self.stop]
        return "".join(
            f'<path d="M{self.x(t):.1f} {TOP - 8}V{height - 6}" stroke="#dddddd"/>'
            f'<text x="{self.x(t):.1f}" y="{TOP - 14}" text-anchor="middle" fill="#555555">'
            f"{t:g}{' ns' if i == 0 else ''}</text>\n"
            for i, t in enumerate(ticks)
        )

    def spans(self, signal: WaveSignal) -> Iterator[WaveSpan]:
        """Yield the times between which a signal keeps a value, and whether it means anything."""
        valid = signal.valid if signal.valid in self.waves.widths else None
        names = [signal.name] if valid is None else [signal.name, valid]
        changes = {t for name in names for t in self.waves.times[name]}
        edges = [self.start, *sorted(t for t in changes if self.start < t < self.stop), self.stop]
        spans = [
            WaveSpan(
                begin,
                end,
                self.waves.at(signal.name, begin),
                valid is None or self.waves.at(valid, begin) == 1,
            )
            for begin, end in itertools.pairwise(edges)
        ]
        for _, group in itertools.groupby(spans, key=lambda span: (span.value, span.meant)):
            first, *rest = group
            yield replace(first, end=rest[-1].end) if rest else first

    def row(self, signal: WaveSignal, y: float) -> str:
        label = (
            f'<text x="{LEFT - 10}" y="{y + 12}" text-anchor="end">{escape(signal.label)}</text>\n'
        )
        spans = list(self.spans(signal))
        if self.waves.widths[signal.name] == 1 and signal.port is None:
            return label + self.line(spans, y)
        return label + "".join(self.box(signal, span, y) for span in spans)

    def line(self, spans: Sequence[WaveSpan], y: float) -> str:
        """Draw one bit: low, high, or in the middle if it is unknown."""
        height = {0: y + HIGH, 1: y, None: y + HIGH / 2}
        points = [
            f"{self.x(t):.1f},{height[span.value]:.1f}"
            for span in spans
            for t in (span.begin, span.end)
        ]
        return (
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[0]}" '
            f'stroke-width="1.4"/>\n'
        )

    def box(self, signal: WaveSignal, span: WaveSpan, y: float) -> str:
        """Draw a value of several bits, with its text as far as it fits."""
        left, right, middle = self.x(span.begin), self.x(span.end), y + HIGH / 2
        if not span.meant:
            return f'<path d="M{left:.1f} {middle}H{right:.1f}" stroke="#bbbbbb"/>\n'
        slope = min(3.0, (right - left) / 2)
        shape = (
            f"M{left:.1f} {middle}L{left + slope:.1f} {y}H{right - slope:.1f}"
            f"L{right:.1f} {middle}L{right - slope:.1f} {y + HIGH}H{left + slope:.1f}Z"
        )
        text = _fitted(signal.text(span.value), int((right - left - 6) / CHARACTER))
        return (
            f'<path d="{shape}" fill="#eef3fa" stroke="{COLOURS[0]}"/>'
            f'<text x="{(left + right) / 2:.1f}" y="{y + 12}" text-anchor="middle">'
            f"{escape(text)}</text>\n"
        )


def _fitted(text: str, fits: int) -> str:
    """Return as much of a text as there is room for.

    >>> _fitted("12 34", 5), _fitted("12 34", 4), _fitted("12 34", 1)
    ('12 34', '12 …', '')
    """
    if len(text) <= fits:
        return text
    return text[: fits - 1] + "…" if fits > 2 else ""
