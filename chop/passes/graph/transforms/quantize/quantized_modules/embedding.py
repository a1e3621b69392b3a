"""Embeddings: the table is rounded, indices are not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized, variants


class _QuantTable(Quantized):
    operands = ("weight",)
    weight: Tensor
    max_norm: float | None
    norm_type: float

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.max_norm is not None and self.formats:
            with torch.no_grad():  # like torch, this renormalises rows in place
                indices = input.contiguous()
                torch.embedding_renorm_(self.weight, indices, self.max_norm, self.norm_type)
        return super().forward(input, *args, **kwargs)

    def _stand_in(self) -> Any:
        stand_in: Any = super()._stand_in()
        stand_in.max_norm = None
        return stand_in


class QuantEmbedding(_QuantTable, nn.Embedding): ...


class QuantEmbeddingBag(_QuantTable, nn.EmbeddingBag): ...


LAYERS: tuple[type[Quantized], ...] = (QuantEmbedding, QuantEmbeddingBag)
__getattr__ = variants(*LAYERS)
