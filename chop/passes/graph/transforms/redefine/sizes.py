"""From requested widths to the number of copies of each channel.

Channels that additions tie together count as one (`pruning.channels`). Channels that occur in the
same layers form a segment, which has one size; the width of a layer is the sum of its segments.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Literal

from torch import fx

from chop.ir.graph.mase_metadata import mase
from chop.passes.base import PassArgsError
from chop.passes.graph.transforms.pruning.channel_atoms import Obstacle
from chop.passes.graph.transforms.pruning.channels import ChannelGraph

Side = tuple[Literal["out", "in"], str]
COUNTED = {"in": "inputs", "out": "channels"}


@dataclass(frozen=True)
class SizeRequest:
    """A width for the outputs or inputs of a layer; `firm` ones are met or refused."""

    node: fx.Node
    side: Side
    width: int
    multiplier: float | None
    firm: bool
    named: bool


@dataclass(eq=False)
class Segment:
    """Channels that change together; `times` counts how often each occurs in a list."""

    roots: list[int]
    times: Mapping[Side, int]
    obstacle: Obstacle | None
    request: SizeRequest | None = None  # the request that determined its size
    size: int = 0

    def __post_init__(self) -> None:
        self.size = len(self.roots)

    @property
    def free(self) -> bool:
        return self.request is None and self.obstacle is None


def segments(channels: ChannelGraph, sides: Iterable[Side]) -> list[Segment]:
    """Partition the channels of a network by the layers that give them and by these sides."""
    _freeze_ambiguous(channels)
    root = channels.atoms.root
    times: dict[int, Counter[Side]] = defaultdict(Counter)
    for side in dict.fromkeys([*(("out", t) for t in channels.producers), *sides]):
        for atom in atoms_of(channels, side):
            times[root(atom)][side] += 1
    groups: dict[object, list[int]] = defaultdict(list)
    obstacle = channels.atoms.obstacle
    for each, counts in times.items():
        groups[frozenset(counts.items()), obstacle(each) is None].append(each)
    return [Segment(roots, times[roots[0]], obstacle(roots[0])) for roots in groups.values()]


def atoms_of(channels: ChannelGraph, side: Side) -> list[int]:
    which, target = side
    return channels.outs[target] if which == "out" else channels.ins.get(target) or []


def _freeze_ambiguous(channels: ChannelGraph) -> None:
    """Freeze channels that a concatenation puts next to themselves, where copies should go."""
    for node in channels.graph.nodes:
        if mase(node).common.mase_op not in ("cat", "concat") or channels.axes[node] is None:
            continue
        listed: Any = node.args[0] if node.args else node.kwargs["tensors"]
        sources = [axis for n in listed if (axis := channels.axis(n)) is not None]
        for left, right in pairwise(sources):
            if channels.atoms.root(left.atoms[-1]) == channels.atoms.root(right.atoms[0]):
                why = "puts a single channel beside itself"
                channels.atoms.freeze(left.atoms[-1:], Obstacle(node, why))


def settle(parts: Sequence[Segment], requests: Sequence[SizeRequest]) -> dict[str, str]:
    """Size every segment; return why layers that were not named stay unchanged.

    Firm requests go first, and among them those with the fewest segments, so that the rest of
    a sum falls to the layers that were not named.
    """
    by_side: dict[Side, list[Segment]] = defaultdict(list)
    for part in parts:
        for side in part.times:
            by_side[side].append(part)
    unchanged: dict[str, str] = {}

    def rank(request: SizeRequest) -> tuple[bool, bool, int]:
        return not request.firm, request.side[0] == "in", len(by_side[request.side])

    for request in sorted(requests, key=rank):
        problem = _settle_one(request, by_side[request.side])
        if problem is None:
            continue
        movable = not any(part.obstacle for part in by_side[request.side])
        if request.named or (request.firm and movable):
            raise PassArgsError(problem)
        unchanged[request.node.name] = problem
    return unchanged


def _settle_one(request: SizeRequest, parts: list[Segment]) -> str | None:
    """Size the segments that are still free; return the conflict, if any."""
    free = [part for part in parts if part.free]
    side = request.side
    rest = request.width - sum(part.size * part.times[side] for part in parts if not part.free)
    sizes_before = [(len(part.roots), part.times[side]) for part in free]
    sizes = _distributed(rest, sizes_before)
    if sizes is None and request.multiplier is not None and parts and free == parts:
        sizes = _nearest(rest, sizes_before)
    if sizes is None:
        return _problem(request, parts)
    for part, size in zip(free, sizes, strict=True):
        part.size, part.request = size, request
    return None


def _distributed(total: int, parts: list[tuple[int, int]]) -> list[int] | None:
    """Sizes in the old proportions that sum to `total`, each counted `times`; None if impossible.

    >>> _distributed(12, [(4, 1), (4, 2)])
    [4, 4]
    """
    if not parts:
        return [] if total == 0 else None
    total_before = sum(size * times for size, times in parts)
    wanted = [total * size / total_before for size, _ in parts]
    sizes = [max(1, math.floor(size)) for size in wanted]
    missing = total - sum(n * times for n, (_, times) in zip(sizes, parts, strict=True))
    while missing:
        step = 1 if missing > 0 else -1
        fits = [i for i, (_, t) in enumerate(parts) if t <= abs(missing) and sizes[i] + step > 0]
        if not fits:
            return None
        chosen = max(fits, key=lambda i: step * (wanted[i] - sizes[i]))
        sizes[chosen] += step
        missing -= step * parts[chosen][1]
    return sizes


def _nearest(total: int, parts: list[tuple[int, int]]) -> list[int]:
    """Sizes in the old proportions with a sum near `total`.

    >>> _nearest(14, [(3, 4)])
    [4]
    """
    total_before = sum(size * times for size, times in parts)
    return [max(1, round(total * size / total_before)) for size, _ in parts]


def _problem(request: SizeRequest, parts: list[Segment]) -> str | None:
    decided = [part.request for part in parts if part.request is not None]
    factors = {request.multiplier, *(other.multiplier for other in decided)}
    if len(decided) == len(parts) > 0 and len(factors) == 1 and None not in factors:
        return None  # all agree on the factor and differ only in rounding their widths
    other = decided[0] if decided else None
    frozen = next((part.obstacle for part in parts if part.obstacle is not None), None)
    what, name = COUNTED[request.side[0]], repr(request.node.name)
    if other is not None:
        return (
            f"node {name} cannot have {request.width} {what} while node {other.node.name!r} has "
            f"{other.width} {COUNTED[other.side[0]]}, as these are the same or are added to each "
            f"other; choose widths that agree"
        )
    if frozen is not None:
        return (
            f"the {what} of node {name} cannot become {request.width}, as node "
            f"{frozen.node.name!r} {frozen.why}; leave {name} out, or say 'input_only'"
        )
    if not parts:
        return (
            f"the inputs of node {name} come from no layer that can change; "
            f"leave its channel_multiplier out"
        )
    unit = max(part.times[request.side] for part in parts)
    return (
        f"node {name} cannot have {request.width} {what}, as always {unit} of them go together; "
        f"give a multiple of {unit}"
    )


def copies(parts: Iterable[Segment], scores: Mapping[int, float]) -> dict[int, int]:
    """The number of copies of each channel; the important ones stay or double."""
    counts: dict[int, int] = {}
    for part in parts:
        if part.size == len(part.roots):
            continue
        whole, extra = divmod(part.size, len(part.roots))
        ranked = sorted(part.roots, key=lambda root: -scores.get(root, 0.0))
        counts |= {root: whole + (i < extra) for i, root in enumerate(ranked)}
    return counts


def places(
    channels: ChannelGraph, counts: Mapping[int, int], atoms: list[int] | None
) -> list[int] | None:
    """The old position of each new position along a dimension; None if all stay.

    A flattened channel has several positions, which are copied as a whole.
    """
    if atoms is None:
        return None
    roots = [channels.atoms.root(atom) for atom in atoms]
    if not any(counts.get(root, 1) != 1 for root in roots):
        return None
    positions: list[int] = []
    for root, run in groupby(range(len(roots)), key=roots.__getitem__):
        positions += [*run] * counts.get(root, 1)
    return positions
