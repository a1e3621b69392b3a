"""Output channels of layers as atoms: which are tied together, and which cannot be removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph


@dataclass(frozen=True)
class ChannelAxis:
    """The channel dimension of a tensor, and the atom at each position along it."""

    dim: int
    atoms: list[int]


@dataclass(frozen=True)
class Obstacle:
    """The node at which channels cannot be removed, and the reason."""

    node: fx.Node
    why: str


@dataclass(frozen=True)
class Split:
    """A tensor that is split into parts, and the channel axis of each part."""

    dim: int
    parts: list[ChannelAxis]

    def cuts(self) -> bool:
        """Whether the channels are what is split."""
        return any(part.dim == self.dim for part in self.parts)


class Atoms:
    """Sets of atoms; tied atoms count as one, and a frozen one cannot be removed."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._frozen: dict[int, Obstacle] = {}

    def fresh(self, count: int) -> list[int]:
        start = len(self._parent)
        self._parent += range(start, start + count)
        return list(range(start, start + count))

    def root(self, atom: int) -> int:
        parent = self._parent
        while parent[atom] != atom:
            parent[atom] = atom = parent[parent[atom]]
        return atom

    def tie(self, some: Sequence[int], others: Sequence[int]) -> None:
        for one, other in zip(some, others, strict=True):
            a, b = self.root(one), self.root(other)
            if a == b:
                continue
            self._parent[b] = a
            if b in self._frozen:
                self._frozen.setdefault(a, self._frozen[b])

    def freeze(self, atoms: Iterable[int], obstacle: Obstacle) -> None:
        for atom in atoms:
            self._frozen.setdefault(self.root(atom), obstacle)

    def obstacle(self, atom: int) -> Obstacle | None:
        return self._frozen.get(self.root(atom))


def shared_parameters(graph: MaseGraph) -> set[int]:
    """Return the ids of parameters that several modules share or functions of the graph read."""
    modules = set(graph.model.modules())
    counts = Counter(id(p) for m in modules for p in m._parameters.values() if p is not None)
    read = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            parent, _, name = str(node.target).rpartition(".")
            read.add(id(graph.modules[parent]._parameters.get(name)))
    return {key for key, count in counts.items() if count > 1} | (read - {id(None)})
