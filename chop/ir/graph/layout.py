"""Layered placement of an acyclic graph: boxes in rows, edges that run down between them.

Boxes are numbers. An edge that passes rows is cut into steps of one row each by bends, which are
numbered after the boxes; boxes and bends together are items. All edges that leave a box for far
rows share one line of bends, the box's trunk.

The longer the path that a step lies on, the heavier it is: heavy steps are drawn straight, so the
spine of a network is one vertical line and skips bend around it.
"""

from __future__ import annotations

import heapq
from bisect import bisect, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from itertools import pairwise
from math import ceil
from statistics import fmean, median

Edge = tuple[int, int]
Neighbours = list[list[int]]

BOX_GAP = 32.0  # between two boxes of a row
LINE_GAP = 18.0  # between a line and whatever stands beside it
ROW_GAP = 34.0  # between two rows, and more where edges run far sideways
MAX_ROW_GAP = 90.0
SLOPE = 0.12
PORT_MARGIN = 16.0  # from a box's corner to the first line that enters or leaves
PORT_PITCH = 18.0
STUB = 10.0  # the straight end of an edge, for its arrow head
SWEEPS = 8  # over the rows, to sort them
DRIFTS = 24  # of the columns, to their places
MAX_STEPS = 30_000  # what long edges may cost; the longest are then led around the picture


@dataclass(frozen=True)
class Size:
    width: float
    height: float


@dataclass(frozen=True)
class Point:
    x: float
    y: float


@dataclass(frozen=True)
class Box:
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


@dataclass(frozen=True)
class Layout:
    """Boxes in the order of the sizes, and for each edge the points it passes on its way down.

    From point to point an edge runs straight down or through the gap between two rows.
    """

    boxes: list[Box]
    routes: list[list[Point]]
    width: float
    height: float


def lay_out(sizes: Sequence[Size], edges: Sequence[Edge]) -> Layout:
    """Place boxes so that edges run down, long paths are straight and nothing overlaps."""
    wrong = [edge for edge in edges if not 0 <= edge[0] < edge[1] < len(sizes)]
    if wrong:
        raise ValueError(
            f"edges lead from an earlier box to a later one; these do not: {wrong[:5]}"
        )
    net = _with_fewer_crossings(_cut(sizes, edges))
    xs = _across(net)
    ends = _ends(net, xs)
    bands = _bands(net, sizes, ends)
    boxes = [_box(size, xs[i], bands[net.row_of[i]]) for i, size in enumerate(sizes)]
    return Layout(
        boxes,
        routes=[list(_route(path, net, boxes, bands, ends)) for path in net.paths],
        width=max([box.right for box in boxes] + xs, default=0.0),
        height=bands[-1].bottom if bands else 0.0,
    )


# --- rows ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Net:
    """The graph with its long edges cut."""

    widths: list[float]  # of each item; 0 for a bend
    row_of: list[int]
    rows: list[list[int]]  # items from left to right
    paths: list[list[int]]  # of each edge: box, bends, box
    weights: dict[Edge, int]  # of each step between rows
    lanes: list[int]  # bends that stand beside all rows, for edges too long to cut

    def places(self) -> dict[int, int]:
        return {item: i for row in self.rows for i, item in enumerate(row)}

    def distance(self, a: int, b: int) -> float:
        """Between the middles of two items side by side."""
        gap = BOX_GAP if self.widths[a] and self.widths[b] else LINE_GAP
        return (self.widths[a] + self.widths[b]) / 2 + gap

    def neighbours(self) -> tuple[Neighbours, Neighbours]:
        """The items above and below each item, lanes left out."""
        return _neighbours(len(self.widths), self.weights)


def _neighbours(count: int, edges: Iterable[Edge]) -> tuple[Neighbours, Neighbours]:
    above: Neighbours = [[] for _ in range(count)]
    below: Neighbours = [[] for _ in range(count)]
    for u, v in edges:
        above[v].append(u)
        below[u].append(v)
    return above, below


def _cut(sizes: Sequence[Size], edges: Sequence[Edge]) -> _Net:
    """Rows for the boxes, bends for the edges; bends stand to the right at first."""
    above, below = _neighbours(len(sizes), edges)
    depth, height = _depths(above), _heights(below)
    row_of = _row_of(depth, above, below)
    rows: list[list[int]] = [[] for _ in range(max(row_of, default=-1) + 1)]
    for box, row in enumerate(row_of):
        rows[row].append(box)

    trunks: Neighbours = [[] for _ in sizes]
    around = _led_around(row_of, below)
    for u, users in enumerate(below):
        passed = range(row_of[u] + 1, max((row_of[v] for v in users), default=0))
        for row in passed[:1] if u in around else passed:
            trunks[u].append(len(row_of))
            row_of.append(row)
            if u not in around:
                rows[row].append(trunks[u][-1])

    paths = [[u, *trunks[u][: row_of[v] - row_of[u] - 1], v] for u, v in edges]
    lanes = {bend for u in around for bend in trunks[u]}
    weights: dict[Edge, int] = {}
    for path in paths:
        weight = depth[path[0]] + 1 + height[path[-1]]
        for step in pairwise(path) if path[1] not in lanes else ():
            weights[step] = max(weights.get(step, 0), weight)
    widths = [size.width for size in sizes] + [0.0] * (len(row_of) - len(sizes))
    return _Net(widths, row_of, rows, paths, weights, sorted(lanes))


def _depths(above: Neighbours) -> list[int]:
    """The length of the longest path to each box."""
    depth = [0] * len(above)
    for v, parents in enumerate(above):
        depth[v] = max((depth[u] + 1 for u in parents), default=0)
    return depth


def _heights(below: Neighbours) -> list[int]:
    """The length of the longest path from each box."""
    height = [0] * len(below)
    for u in reversed(range(len(below))):
        height[u] = max((height[v] + 1 for v in below[u]), default=0)
    return height


def _row_of(depth: list[int], above: Neighbours, below: Neighbours) -> list[int]:
    """Longest-path rows; a source and the string of boxes that hangs on it stand near their use."""
    row_of = list(depth)
    loose = [False] * len(depth)
    for v, parents in enumerate(above):
        loose[v] = not parents or (
            len(parents) == 1 and loose[parents[0]] and len(below[parents[0]]) == 1
        )
    for u in reversed(range(len(depth))):
        if loose[u] and below[u]:
            row_of[u] = min(row_of[v] for v in below[u]) - 1
    return row_of


def _led_around(row_of: list[int], below: Neighbours) -> set[int]:
    """The boxes whose far edges would take too many steps."""
    steps = [sum(row_of[v] - row_of[u] - 1 for v in users) for u, users in enumerate(below)]
    total, around = 0, set()
    for u in sorted(range(len(steps)), key=steps.__getitem__):
        total += steps[u]
        if total > MAX_STEPS:
            around.add(u)
    return around


# --- order within the rows -------------------------------------------------------------------


def _with_fewer_crossings(net: _Net) -> _Net:
    """Sort the rows by the mean place of their neighbours, downwards and upwards in turn."""
    above, below = net.neighbours()
    rows = best = net.rows
    fewest = _crossings(rows, below)
    for sweep in range(SWEEPS):
        if fewest == 0:
            break
        rows = _sorted(rows, above) if sweep % 2 == 0 else _sorted(rows[::-1], below)[::-1]
        crossings = _crossings(rows, below)
        if crossings < fewest:
            best, fewest = rows, crossings
    return replace(net, rows=best)


def _sorted(rows: list[list[int]], before: Neighbours) -> list[list[int]]:
    """Each row in the order of its neighbours in the row before; ties stay as they are."""
    done = rows[:1]
    for row in rows[1:]:
        place = {item: i for i, item in enumerate(done[-1])}
        wanted = {
            item: fmean(place[n] for n in before[item]) if before[item] else float(i)
            for i, item in enumerate(row)
        }
        done.append(sorted(row, key=wanted.__getitem__))
    return done


def _crossings(rows: list[list[int]], below: Neighbours) -> int:
    total = 0
    for upper, lower in pairwise(rows):
        place = {item: i for i, item in enumerate(lower)}
        ends: list[int] = []  # of the steps that start further left
        for item in upper:
            spots = [place[v] for v in below[item]]
            total += sum(len(ends) - bisect(ends, spot) for spot in spots)
            for spot in spots:
                insort(ends, spot)
    return total


# --- places across ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fan:
    """Equally heavy steps that meet in one item, its hub."""

    weight: int
    hub: int
    leaves: list[int]  # from left to right


@dataclass(frozen=True)
class _Spring:
    """Draws the columns of a fan to where they stand closely and evenly about their hub."""

    weight: int
    hub: int
    leaves: list[int]
    offsets: list[float]


@dataclass(frozen=True)
class _Columns:
    """Items stacked on straight lines, and how far apart neighbouring lines must be."""

    of: dict[int, int]  # the column of each item
    left: list[dict[int, float]]
    right: list[dict[int, float]]
    order: list[int]  # each column after those to its left
    weights: list[int]
    springs: list[_Spring]


def _across(net: _Net) -> list[float]:
    """The middle of each item: columns packed to the left, then drawn to what they belong to."""
    columns = _columns(net)
    middles = _pushed([0.0] * len(columns.left), columns.order, columns.right)
    for _ in range(DRIFTS):
        middles = _drifted(middles, columns)
    xs = [middles[columns.of[i]] if i in columns.of else 0.0 for i in range(len(net.widths))]
    return _with_lanes(net, xs)


def _columns(net: _Net) -> _Columns:
    fans = _fans(net)
    of: dict[int, int] = {}
    for number, stack in enumerate(_stacks(net, fans)):
        of |= dict.fromkeys(stack, number)
    count = len(set(of.values()))
    left: list[dict[int, float]] = [{} for _ in range(count)]
    right: list[dict[int, float]] = [{} for _ in range(count)]
    for row in net.rows:
        for a, b in pairwise(row):
            far = max(net.distance(a, b), left[of[b]].get(of[a], 0.0))
            left[of[b]][of[a]] = right[of[a]][of[b]] = far
    weights = [0] * count
    for fan in fans:
        weights[of[fan.hub]] = max(weights[of[fan.hub]], fan.weight)
    order = list(TopologicalSorter(dict(enumerate(left))).static_order())
    springs = [_spring(fan, net, of, right) for fan in fans]
    springs = [spring for spring in springs if spring.leaves != [spring.hub]]
    return _Columns(of, left, right, order, weights, springs)


def _fans(net: _Net) -> list[_Fan]:
    """For each item the steps below and those above it, heavy and light ones apart."""
    place = net.places()
    leaves: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for (u, v), weight in net.weights.items():
        leaves[weight, u, False].append(v)
        leaves[weight, v, True].append(u)
    return [
        _Fan(weight, hub, sorted(items, key=place.__getitem__))
        for (weight, hub, _), items in leaves.items()
    ]


def _spring(fan: _Fan, net: _Net, of: Mapping[int, int], right: list[dict[int, float]]) -> _Spring:
    """The middle leaf, or the middle between two, belongs at the hub."""
    spots = [0.0]
    for a, b in pairwise(fan.leaves):
        spots.append(spots[-1] + right[of[a]].get(of[b], net.distance(a, b)))
    centre = median(spots)
    leaves = [of[leaf] for leaf in fan.leaves]
    return _Spring(fan.weight, of[fan.hub], leaves, [spot - centre for spot in spots])


def _stacks(net: _Net, fans: list[_Fan]) -> list[list[int]]:
    """All items, stacked where a straight line serves best: heavy steps first, none crossing."""
    middle: Counter[Edge] = Counter()
    for fan in fans:
        if len(fan.leaves) % 2:
            leaf = fan.leaves[len(fan.leaves) // 2]
            down = net.row_of[fan.hub] < net.row_of[leaf]
            middle[(fan.hub, leaf) if down else (leaf, fan.hub)] += 1
    wanted = [step for step, fans_agreed in middle.items() if fans_agreed == 2]

    place = net.places()
    over: dict[int, int] = {}
    under: dict[int, int] = {}
    straight: dict[int, list[Edge]] = defaultdict(list)  # the places of both ends, by row
    for u, v in sorted(wanted, key=lambda step: (-net.weights[step], step)):
        others, ends = straight[net.row_of[u]], (place[u], place[v])
        if u in under or v in over or _crosses(ends, others):
            continue
        insort(others, ends)
        under[u], over[v] = v, u
    return [list(_follow(item, under)) for row in net.rows for item in row if item not in over]


def _crosses(ends: Edge, others: list[Edge]) -> bool:
    """Whether a step crosses one of the others, which are sorted and do not cross each other."""
    i = bisect(others, ends)
    return (i > 0 and others[i - 1][1] > ends[1]) or (i < len(others) and others[i][1] < ends[1])


def _follow(item: int | None, under: Mapping[int, int]) -> Iterator[int]:
    while item is not None:
        yield item
        item = under.get(item)


def _drifted(middles: list[float], columns: _Columns) -> list[float]:
    """The columns moved to where their heaviest springs draw them, as far as there is room."""
    order, weights = columns.order, columns.weights
    wanted = _wanted(middles, columns.springs)
    moved = _moved_right(middles, wanted, order, columns.right, weights)
    mirrored = [-x for x in moved], [-x for x in wanted]
    return [-x for x in _moved_right(*mirrored, order[::-1], columns.left, weights)]


def _wanted(middles: list[float], springs: list[_Spring]) -> list[float]:
    """Half the way that the heaviest springs would move each column; the whole would oscillate."""
    heaviest = [0] * len(middles)
    wishes: list[list[float]] = [[x] for x in middles]

    def wish(column: int, weight: int, x: float) -> None:
        if weight > heaviest[column]:
            heaviest[column], wishes[column] = weight, []
        if weight == heaviest[column]:
            wishes[column].append(x)

    for spring in springs:
        hub = middles[spring.hub]
        shift = fmean(
            [middles[leaf] - at for leaf, at in zip(spring.leaves, spring.offsets, strict=True)]
        )
        if len(spring.leaves) > 1:  # else the leaf is a hub too, and says the same
            wish(spring.hub, spring.weight, shift)
        for leaf, at in zip(spring.leaves, spring.offsets, strict=True):
            wish(leaf, spring.weight, hub + at)
    return [(x + fmean(own)) / 2 for x, own in zip(middles, wishes, strict=True)]


def _moved_right(
    middles: list[float],
    wanted: list[float],
    order: list[int],
    right: list[dict[int, float]],
    weights: list[int],
) -> list[float]:
    """The columns that want to be further right, moved there; lighter ones give way."""
    moved = list(middles)
    limit = [float("inf")] * len(moved)
    for c in reversed(order):
        for b, far in right[c].items():
            room = limit[b] if weights[b] < weights[c] else moved[b]
            limit[c] = min(limit[c], room - far)
        moved[c] = max(moved[c], min(wanted[c], limit[c]))
    return _pushed(moved, order, right)


def _pushed(middles: list[float], order: list[int], right: list[dict[int, float]]) -> list[float]:
    """The columns moved right until they keep their distances."""
    moved = list(middles)
    for c in order:
        for b, far in right[c].items():
            moved[b] = max(moved[b], moved[c] + far)
    return moved


def _with_lanes(net: _Net, xs: list[float]) -> list[float]:
    """Whole numbers from the left border on; lanes to the right of all rows, shared in turn."""
    inner = [item for row in net.rows for item in row]
    start = min((xs[item] - net.widths[item] / 2 for item in inner), default=0.0)
    end = max((xs[item] + net.widths[item] / 2 for item in inner), default=0.0) - start
    placed = [float(ceil(x - start)) for x in xs]
    last: dict[int, int] = defaultdict(int)
    for path in net.paths:
        last[path[1]] = max(last[path[1]], net.row_of[path[-1]] - 1)
    taken: list[tuple[int, float]] = []
    for lane in sorted(net.lanes, key=lambda lane: (net.row_of[lane], lane)):
        if taken and taken[0][0] < net.row_of[lane]:
            _, placed[lane] = heapq.heappop(taken)
        else:
            placed[lane] = ceil(end) + LINE_GAP * (len(taken) + 1)
        heapq.heappush(taken, (last[lane], placed[lane]))
    return placed


# --- ports and places down -------------------------------------------------------------------


def _ends(net: _Net, xs: list[float]) -> dict[Edge, tuple[float, float]]:
    """The upper and lower `x` of each step: at a box its port, else the bend."""
    leaving: dict[int, set[Edge]] = defaultdict(set)
    entering: dict[int, set[Edge]] = defaultdict(set)
    for path in net.paths:
        leaving[path[0]].add((path[0], path[1]))
        entering[path[-1]].add((path[-2], path[-1]))
    ends = {step: (xs[step[0]], xs[step[1]]) for path in net.paths for step in pairwise(path)}
    for box, steps in leaving.items():
        ports = _spread({step: ends[step][1] for step in steps}, xs[box], net.widths[box])
        ends |= {step: (port, ends[step][1]) for step, port in ports.items()}
    for box, steps in entering.items():
        ports = _spread({step: ends[step][0] for step in steps}, xs[box], net.widths[box])
        ends |= {step: (ends[step][0], port) for step, port in ports.items()}
    return ends


def _spread(wanted: Mapping[Edge, float], middle: float, width: float) -> dict[Edge, float]:
    """Ports on one side of a box, near where they want to be; a single one is in the middle."""
    if len(wanted) == 1:
        return dict.fromkeys(wanted, middle)
    room = width / 2 - PORT_MARGIN
    pitch = min(PORT_PITCH, room / (len(wanted) - 1))  # all may crowd on one half
    steps = sorted(wanted, key=lambda step: (wanted[step], step))
    ports: list[float] = []
    low, high = middle - room, middle + room
    for step in steps:
        ports.append(max(wanted[step], low))
        low = ports[-1] + pitch
    for i in reversed(range(len(ports))):
        ports[i] = min(ports[i], high)
        high = ports[i] - pitch
    return dict(zip(steps, ports, strict=True))


@dataclass(frozen=True)
class _Band:
    """The stripe that a row takes."""

    top: float
    bottom: float


def _bands(
    net: _Net, sizes: Sequence[Size], ends: Mapping[Edge, tuple[float, float]]
) -> list[_Band]:
    reach = [0.0] * len(net.rows)  # how far the steps below each row run sideways
    for step in net.weights:
        row = net.row_of[step[0]]
        reach[row] = max(reach[row], abs(ends[step][0] - ends[step][1]))
    bands: list[_Band] = []
    top = 0.0
    for items, aside in zip(net.rows, reach, strict=True):
        bottom = top + max(sizes[item].height for item in items if item < len(sizes))
        bands.append(_Band(top, bottom))
        top = bottom + min(round(ROW_GAP + SLOPE * aside), MAX_ROW_GAP)
    return bands


def _box(size: Size, middle: float, band: _Band) -> Box:
    top = (band.top + band.bottom - size.height) / 2
    return Box(middle - size.width / 2, top, size.width, size.height)


def _route(
    path: list[int],
    net: _Net,
    boxes: list[Box],
    bands: list[_Band],
    ends: Mapping[Edge, tuple[float, float]],
) -> Iterator[Point]:
    source, target = path[0], path[-1]
    yield Point(ends[source, path[1]][0], boxes[source].bottom)
    for u, v in pairwise(path):
        # a bend lasts one row, a lane until it has reached its target
        row = net.row_of[target] - 1 if v == target else net.row_of[u]
        upper, lower = ends[u, v]
        yield Point(upper, bands[row].bottom)
        yield Point(lower, bands[net.row_of[v]].top - (STUB if v == target else 0))
    yield Point(ends[path[-2], target][1], boxes[target].top)
