"""Peak memory of activations: each one lives until its last reader has run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import fx

from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import ops_with
from chop.passes.graph.analysis.cost.call import spelt
from chop.passes.graph.describe.in_place import writes_in_place

# their result is a view of the input
VIEWS = (
    ops_with("reshape")
    + ops_with("no_op")
    + spelt(
        "transpose permute t swapaxes swapdims movedim getitem select narrow split chunk unbind "
        "split_with_sizes tensor_split hsplit vsplit diagonal expand expand_as broadcast_to "
        "contiguous detach alias real imag adjoint as_strided view_as_real view_as_complex "
        "atleast_1d atleast_2d atleast_3d requires_grad pos getattr"
    )
)


def shares_memory(node: fx.Node) -> bool:
    """Whether the result occupies the memory of the first input: a view, or written in place."""
    if not node.all_input_nodes or node.op == "output":
        return False
    return mase(node).common.mase_op in VIEWS or writes_in_place(node)


def lifetimes(nodes: Iterable[fx.Node]) -> list[list[int]]:
    """For each node, the indices of nodes whose results are not read after it; O(nodes)."""
    order = list(nodes)
    home: dict[fx.Node, int] = {}
    last: dict[int, int] = {}
    for i, node in enumerate(order):
        home[node] = home[node.all_input_nodes[0]] if shares_memory(node) else i
        for used in (node, *node.all_input_nodes):
            last[home[used]] = i
    dying: list[list[int]] = [[] for _ in order]
    for number, i in last.items():
        dying[i].append(number)
    return dying


def peak(sizes: Sequence[int], dying: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return the largest total size alive at one time, and the index of the node that runs then.

    Results without memory of their own have size 0.
    """
    live, most, where = 0, 0, 0
    for i, size in enumerate(sizes):
        live += size
        if live > most:
            most, where = live, i
        for gone in dying[i]:
            live -= sizes[gone]
    return most, where
