"""Embeddings: the table is rounded; indices are not numbers to round."""

from __future__ import annotations

from typing import Any

from torch import nn

from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized, variants


class _QuantTable(Quantized):
    operands = ("weight",)

    def q(self, operand: str, x: Any) -> Any:
        return x if operand == "data_in" else super().q(operand, x)


class QuantEmbedding(_QuantTable, nn.Embedding): ...


class QuantEmbeddingBag(_QuantTable, nn.EmbeddingBag): ...


LAYERS: tuple[type[Quantized], ...] = (QuantEmbedding, QuantEmbeddingBag)
__getattr__ = variants(*LAYERS)
