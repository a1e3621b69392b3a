"""Layers with an adapter, which other transforms would otherwise pass over in silence."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from chop.ir.graph.mase_metadata import mase
from chop.passes.base import PassArgsError

ADAPTED_OP = "lora_linear"  # what it adapts is linear, and meant by those who ask for that


def has_adapter(node: fx.Node) -> bool:
    return mase(node).common.mase_op == ADAPTED_OP


def refuse_adapters(pass_name: str, nodes: Iterable[fx.Node]) -> None:
    """Say that the base of an adapter would stay as it is, if it was asked for."""
    for node in nodes:
        if has_adapter(node):
            raise PassArgsError(
                f"pass {pass_name!r}: node {node.name!r} has a LoRA adapter, beside which its "
                f"layer stays as it is; {pass_name} before insert_lora_adapter, or "
                f"fuse_lora_weights first"
            )
