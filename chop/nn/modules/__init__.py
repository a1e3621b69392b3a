"""Layers for your own models, at the import path of newer scripts."""

from __future__ import annotations

from typing import Any

from torch import nn

from chop import lazy
from chop.ir.graph.tracer import Leaf

__all__ = ["Identity", *lazy.names_of_methods("layers")]

__getattr__ = lazy.importer(__name__, __file__, room="layers")


class Identity(Leaf, nn.Identity):
    """Placeholder for any layer: accepts any arguments and returns x."""

    def forward(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        return input
