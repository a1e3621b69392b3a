"""A small transformer that predicts the next character of a text, for quantization.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.models import model


class Block(nn.Module):
    """Causal attention and a feed-forward layer, both with a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.project = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        q, k, v = (
            layer(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(
            self.project(attended.transpose(1, 2).flatten(2)), self.dropout, self.training
        )
        fed = self.down(F.gelu(self.up(self.feed_norm(x))))
        return x + F.dropout(fed, self.dropout, self.training)


@model("next-character", image_segmentation=True)
class NextCharacter(nn.Module):
    """The next character at every position, as logits [batch, character, position]."""

    def __init__(
        self, info: object, *, width: int = 128, layers: int = 4, dropout: float = 0.1
    ) -> None:
        super().__init__()
        characters = info.num_classes  # type: ignore[attr-defined]
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Parameter(torch.randn(64, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, 4, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, text: Tensor) -> Tensor:
        x = self.blocks(self.characters(text) + self.positions)
        return self.head(self.norm(x)).transpose(1, 2)
