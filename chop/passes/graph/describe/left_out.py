"""Layers with weights that a pass cannot change: it warns of them once, with their share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator

from torch import Tensor, fx, nn

from chop.ir.graph.mase_graph import WARNED, MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import has_trait
from chop.passes.graph.describe.nodes import fetch_attr

logger = logging.getLogger(__name__)

MAX_NAMES = 5
Count = Callable[[fx.Node], int | None]
_counts: list[Count] = []  # the cost pass, which builds on this package, adds its own


def counts_operations(count: Count) -> Count:
    """Register the function that returns the operations of a node; None for one without a rule."""
    _counts[:] = [count]
    return count


def weights_of_nodes(graph: MaseGraph) -> dict[fx.Node, list[nn.Parameter]]:
    """Return the parameters that each node brings into the computation, in graph order."""
    return {node: parameters for node in graph.nodes if (parameters := _parameters(node))}


def _parameters(node: fx.Node) -> list[nn.Parameter]:
    module = mase(node).module
    if module is not None:
        return list(module.parameters())
    if node.op != "get_attr":
        return []
    tensor = fetch_attr(mase(node).model, str(node.target))
    return [tensor] if isinstance(tensor, nn.Parameter) else []


def readers_that_compute(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the functions that compute with a parameter, behind those that only move it."""
    for user in node.users:
        if has_trait(mase(user).common.mase_op, "no_arithmetic"):
            yield from readers_that_compute(user)
        elif user.op != "output":
            yield user


def warn_of_left_out(
    graph: MaseGraph,
    done: str,
    left_out: Collection[fx.Node],
    can_be_done: Callable[[fx.Node], bool],
    stays: tuple[str, str],
) -> None:
    """Warn once for a graph and its copies that layers and parameters cannot be `done`.

    Their share of the weights is that of all their parameters, biases included. Their share of the
    operations is that of the nodes that compute with them, except for those that `can_be_done`.
    `stays` says for one and for several what becomes of them.
    """
    key = (done, *(node.name for node in left_out))
    warned = graph.meta.setdefault(WARNED, set())
    if not left_out or key in warned:
        return
    warned.add(key)
    known = weights_of_nodes(graph)
    weights = share_of((p for node in left_out for p in known.get(node, ())), graph.model)
    computing = {node for left in left_out for node in _computing(left) if not can_be_done(node)}
    share = f"{weights} of the weights and {_operations(graph, computing)}"
    names = [f"{node.name} ({_what(node)})" for node in left_out]
    logger.warning("%s", sentence(names, done, stays[len(names) > 1], share))


def sentence(names: list[str], done: str, stays: str, share: str) -> str:
    """Return which layers a pass leaves as they are, and their share of the model."""
    listed = ", ".join(names[:MAX_NAMES])
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{listed}{more} cannot be {done} and {stays}: {share}"


def share_of(parameters: Iterable[Tensor], model: nn.Module) -> str:
    """Return the share of a model's parameters, in percent."""
    distinct = {id(p): p.numel() for p in parameters}
    total = sum(p.numel() for p in model.parameters())
    return f"{100 * sum(distinct.values()) / max(total, 1):.3g} %"


def _what(node: fx.Node) -> str:
    module = mase(node).module
    return "a parameter" if module is None else type(module).__name__


def _computing(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes that compute with the parameters of a node: itself, or its readers."""
    yield from readers_that_compute(node) if node.op == "get_attr" else [node]


def _operations(graph: MaseGraph, computing: Collection[fx.Node]) -> str:
    """Return the share of the operations of these nodes."""
    counts = {node: _counts[0](node) for node in graph.nodes} if _counts else {}
    if any(counts.get(node) is None for node in computing):
        return "an unknown share of the operations"
    part, total = (sum(counts.get(n) or 0 for n in nodes) for nodes in (computing, counts))
    return f"{100 * part / max(total, 1):.3g} % of the operations"
