"""Refuse layers with an adapter, which other transforms would silently skip."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS, Adapter
from chop.passes.base import PassArgsError


def adapter_of(node: fx.Node) -> Adapter | None:
    """Return what the op of a node says of the layer inside, None for a layer without adapter."""
    op = OPS.get(mase(node).common.mase_op)
    return None if op is None else op.adapter


def refuse_adapters(pass_name: str, nodes: Iterable[fx.Node]) -> None:
    """Raise an error if the base of an adapter was chosen, as it would stay unchanged."""
    for node in nodes:
        if adapter := adapter_of(node):
            raise PassArgsError(
                f"pass {pass_name!r}: node {node.name!r} has {adapter.name}, so its layer "
                f"would stay unchanged; {pass_name} before {adapter.inserted_by}, or "
                f"{adapter.fused_by} first"
            )
