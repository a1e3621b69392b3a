"""Refuse layers with an adapter, which other transforms would silently skip."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from chop.ir.graph.mase_metadata import mase
from chop.passes.base import PassArgsError

ADAPTED_OP = "lora_linear"  # adapts a linear layer, so "linear" includes it


def has_adapter(node: fx.Node) -> bool:
    return mase(node).common.mase_op == ADAPTED_OP


def refuse_adapters(pass_name: str, nodes: Iterable[fx.Node]) -> None:
    """Raise an error if the base of an adapter was chosen, as it would stay unchanged."""
    for node in nodes:
        if has_adapter(node):
            raise PassArgsError(
                f"pass {pass_name!r}: node {node.name!r} has a LoRA adapter, so its layer "
                f"would stay unchanged; {pass_name} before insert_lora_adapter, or "
                f"fuse_lora_weights first"
            )
