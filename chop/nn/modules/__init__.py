"""Layers for your own models, at the import path of newer scripts."""

from __future__ import annotations

from typing import Any

from torch import nn

from chop.ir.graph.tracer import Leaf
from chop.layers import EdgeTable, FrozenEdgeTable
from chop.passes.graph.transforms.lora import LoRALinear

__all__ = ["EdgeTable", "FrozenEdgeTable", "Identity", "LoRALinear"]


class Identity(Leaf, nn.Identity):
    """Placeholder for any layer: accepts any arguments and returns x."""

    def forward(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        return input
