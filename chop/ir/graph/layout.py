"""Layered placement of an acyclic graph: boxes in rows, edges that run down between them.

Boxes are numbers. They are split into chains, the longest path first, and each chain is one
straight column. An edge that skips rows runs down a straight line beside the columns; all edges
that skip rows from one box share its line. Columns and then lines are placed one after the other
on the nearer side of what already stands in their rows, so nothing ever overlaps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain as chained
from operator import add, sub
from statistics import fmean
from typing import NamedTuple

Edge = tuple[int, int]
Size = tuple[float, float]  # width and height
Leg = tuple[int, float, float]  # an edge crosses the gap below this row, from one x to another

BOX_GAP, LINE_GAP = 32.0, 18.0  # between two boxes of a row, and beside a line
ROW_GAP, MAX_ROW_GAP, SLOPE = 34.0, 90.0, 0.12  # rows stand apart where edges run far sideways
PORT_MARGIN, PORT_PITCH = 16.0, 36.0  # from a box's corner to a port, and between two ports
STUB = 10.0  # the straight end of an edge, for its arrow head
LINE = -1  # stands for the end of an edge that leaves a box for its line


class Point(NamedTuple):
    x: float
    y: float


class Box(NamedTuple):
    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


class GraphLayout(NamedTuple):
    boxes: list[Box]
    routes: list[list[Point]]  # of each edge: straight down, or through the gap of two rows
    width: float
    height: float


def lay_out(sizes: Sequence[Size], edges: Sequence[Edge]) -> GraphLayout:
    """Place boxes so that edges run down, long paths are straight and nothing overlaps."""
    wrong = [edge for edge in edges if not 0 <= edge[0] < edge[1] < len(sizes)]
    if wrong:
        raise ValueError(f"edges must lead from an earlier box to a later one, not {wrong[:5]}")
    if not sizes:
        return GraphLayout([], [], 0.0, 0.0)
    graph = _Graph([width for width, _ in sizes], edges)
    middles, lines = _across(graph)
    legs = _legs(graph, edges, middles, lines)
    tops, bottoms = _bands(graph.row, [height for _, height in sizes], chained.from_iterable(legs))
    boxes = [
        Box(x - size[0] / 2, (tops[row] + bottoms[row] - size[1]) / 2, *size)
        for row, size, x in zip(graph.row, sizes, middles, strict=True)
    ]
    routes = []
    for (u, v), path in zip(edges, legs, strict=True):
        ends = [((a, bottoms[gap]), (b, tops[gap + 1] - STUB)) for gap, a, b in path]
        first, last = (path[0][1], boxes[u].bottom), (path[-1][2], boxes[v].top)
        routes.append([Point(*at) for at in (first, *chained.from_iterable(ends), last)])
    width = max([box.right for box in boxes] + [*lines.values()])
    return GraphLayout(boxes, routes, width, bottoms[-1])


class _Graph:
    """Which boxes feed which, the longest paths to and from each, and the row of each."""

    def __init__(self, widths: list[float], edges: Sequence[Edge]) -> None:
        self.widths, count = widths, len(widths)
        self.above: list[list[int]] = [[] for _ in widths]
        self.below: list[list[int]] = [[] for _ in widths]
        for u, v in edges:
            self.above[v].append(u)
            self.below[u].append(v)
        self.depth, self.height, movable = [0] * count, [0] * count, [True] * count
        for v, sources in enumerate(self.above):
            self.depth[v] = max((self.depth[u] + 1 for u in sources), default=0)
            alone = all(movable[u] and len(self.below[u]) == 1 for u in sources)
            movable[v] = alone and len(sources) < 2
        self.row = list(self.depth)
        for u, users in reversed([*enumerate(self.below)]):
            self.height[u] = max((self.height[v] + 1 for v in users), default=0)
            if movable[u] and users:  # an input, and the chain it alone feeds, stand near their use
                self.row[u] = min(self.row[v] for v in users) - 1

    def chains(self) -> Iterator[list[int]]:
        """Yield paths through neighbouring rows, the longest first, that hold each box once.

        The first one is a longest path of the graph, so it has a box in every row.
        """
        taken: set[int] = set()
        lengths = [-depth - height for depth, height in zip(self.depth, self.height, strict=True)]
        for start in sorted(range(len(lengths)), key=lambda u: (lengths[u], self.row[u])):
            chain, row, users = [], self.row[start], [start]
            while users := [v for v in users if v not in taken and self.row[v] == row]:
                deepest = max(self.height[v] for v in users)
                equal = [v for v in users if self.height[v] == deepest]
                chain.append(equal[(len(equal) - 1) // 2])
                row, users = row + 1, self.below[chain[-1]]
            taken.update(chain)
            if chain:
                yield chain


def _across(graph: _Graph) -> tuple[list[float], dict[int, float]]:
    """Return the middle of each box, and the `x` of the line of each box whose edges skip rows."""
    spine, *branches = graph.chains()
    left = [-graph.widths[box] / 2 for box in spine]  # the outline of what is placed, by row
    right = [graph.widths[box] / 2 for box in spine]
    middles, lines = dict.fromkeys(spine, 0.0), {}

    def beside(row: int, halves: list[float], gap: float, wanted: float, lean: float) -> float:
        """Return the place beside the outline nearest to `wanted`; `lean` favours the left."""
        rows = slice(row, row + len(halves))
        low: float = min(wanted, min(map(sub, left[rows], halves)) - gap)
        high: float = max(wanted, max(map(add, right[rows], halves)) + gap)
        if wanted - low < high - wanted + lean:
            left[rows] = [low - half for half in halves]
            return low
        right[rows] = [high + half for half in halves]
        return high

    for chain in branches:
        row, near = graph.row[chain[0]], [*graph.above[chain[0]], *graph.below[chain[-1]]]
        wanted = fmean([middles[box] for box in near if box in middles] or [0.0])
        halves = [graph.widths[box] / 2 for box in chain]
        x = beside(row, halves, BOX_GAP, wanted, lean=chain[0] < spine[row])
        middles |= dict.fromkeys(chain, x)
    ends = [max([graph.row[v] for v in users], default=0) for users in graph.below]
    for passed, u in sorted((ends[u] - graph.row[u] - 1, u) for u in middles):
        if passed > 0:
            lean = middles[u] - fmean(middles[v] for v in graph.below[u])
            lines[u] = beside(graph.row[u] + 1, [0.0] * passed, LINE_GAP, middles[u], lean)
    start = min(left)
    return [middles[u] - start for u in sorted(middles)], {u: x - start for u, x in lines.items()}


def _legs(
    graph: _Graph, edges: Sequence[Edge], middles: list[float], lines: Mapping[int, float]
) -> list[list[Leg]]:
    """Return how each edge crosses rows: in one leg, or in two with the source's line between."""
    row = graph.row
    leaving: dict[int, dict[int, float]] = defaultdict(dict)  # by user, or LINE
    entering: dict[int, dict[int, float]] = defaultdict(dict)
    for u, v in edges:
        skips = row[v] > row[u] + 1
        leaving[u][LINE if skips else v] = lines[u] if skips else middles[v]
        entering[v][u] = lines[u] if skips else middles[u]
    outs = {u: _ports(wanted, middles[u], graph.widths[u]) for u, wanted in leaving.items()}
    ins = {v: _ports(wanted, middles[v], graph.widths[v]) for v, wanted in entering.items()}
    return [
        [(row[u], outs[u][v], ins[v][u])]
        if v in outs[u]
        else [(row[u], outs[u][LINE], lines[u]), (row[v] - 1, lines[u], ins[v][u])]
        for u, v in edges
    ]


def _ports(wanted: Mapping[int, float], middle: float, width: float) -> dict[int, float]:
    """Return places along a box in the order of those wanted, the straightest in the middle."""
    order = sorted(wanted, key=lambda end: (wanted[end], end))
    straight = min(range(len(order)), key=lambda i: abs(wanted[order[i]] - middle))
    pitch = min(PORT_PITCH, (width / 2 - PORT_MARGIN) / max(1, len(order) - 1))
    return {end: middle + (i - straight) * pitch for i, end in enumerate(order)}


def _bands(rows: list[int], heights: list[float], legs: Iterable[Leg]) -> list[list[float]]:
    """Return the tops and the bottoms of the rows."""
    tallest, reach = [0.0] * (max(rows) + 1), [0.0] * (max(rows) + 1)
    for row, height in zip(rows, heights, strict=True):
        tallest[row] = max(tallest[row], height)
    for gap, start, end in legs:
        reach[gap] = max(reach[gap], abs(start - end))
    tops = [0.0]
    for height, sideways in zip(tallest, reach, strict=True):
        tops.append(tops[-1] + height + min(round(ROW_GAP + SLOPE * sideways), MAX_ROW_GAP))
    return [tops, [top + height for top, height in zip(tops, tallest, strict=False)]]
