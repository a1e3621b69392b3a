"""ResNet-18 and ViT of the package in any size, and BERT in plain torch: something real to trace.

B batch, C channels, H height, W width, L tokens, D features, N heads, E features of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.models.vision.resnet import BasicBlock, ResNet
from chop.models.vision.vit import VisionTransformer


class ImageResNet(ResNet):
    """Takes its input by a name that says its shape."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return super().forward(x_BCHW)


class ImageTransformer(VisionTransformer):
    """Takes its input by a name that says its shape."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return super().forward(x_BCHW)


def resnet18(width: int = 64, num_classes: int = 1000) -> ResNet:
    """11.7 million parameters at the default width; takes [B, 3, 224, 224]."""
    return ImageResNet(BasicBlock, (2, 2, 2, 2), width=width, num_classes=num_classes)


def vit_small(
    *,
    image_size: int = 224,
    patch_size: int = 16,
    dim: int = 384,
    depth: int = 12,
    num_heads: int = 6,
    num_classes: int = 1000,
    dropout: float = 0.1,
    fused: bool = True,
) -> VisionTransformer:
    """22 million parameters at the default sizes; takes [B, 3, image_size, image_size]."""
    return ImageTransformer(
        image_size=(3, image_size, image_size),
        patch_size=patch_size,
        dim=dim,
        depth=depth,
        num_heads=num_heads,
        num_classes=num_classes,
        dropout=dropout,
        fused=fused,
    )


class BertEmbeddings(nn.Module):
    def __init__(self, vocab_size: int, dim: int, max_length: int, dropout: float) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.position_embeddings = nn.Embedding(max_length, dim)
        self.token_type_embeddings = nn.Embedding(2, dim)
        self.layer_norm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor) -> Tensor:
        positions_L = torch.arange(input_ids_BL.size(1), device=input_ids_BL.device)
        x_BLD = self.word_embeddings(input_ids_BL) + self.token_type_embeddings(token_type_ids_BL)
        x_BLD = x_BLD + self.position_embeddings(positions_L)
        return self.dropout(self.layer_norm(x_BLD))


class BertAttention(nn.Module):
    """Attention with an additive mask; `einsum` writes the products as subscripts."""

    def __init__(self, dim: int, num_heads: int, dropout: float, einsum: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.einsum = num_heads, dim // num_heads, einsum
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(dim, dim)

    def _split(self, x_BLD: Tensor) -> Tensor:
        # no (*size, …) here: torch.fx cannot unpack a size whose length it does not know
        shape = x_BLD.size()[:-1] + (self.num_heads, self.head_dim)  # noqa: RUF005
        return x_BLD.view(shape).permute(0, 2, 1, 3)

    def forward(self, x_BLD: Tensor, mask_B11L: Tensor) -> Tensor:
        B, L = x_BLD.size(0), x_BLD.size(1)
        q_BNLE = self._split(self.query(x_BLD))
        k_BNLE = self._split(self.key(x_BLD))
        v_BNLE = self._split(self.value(x_BLD))
        if self.einsum:
            scores = torch.einsum("bnqe,bnke->bnqk", q_BNLE, k_BNLE)
        else:
            scores = torch.matmul(q_BNLE, k_BNLE.transpose(-1, -2))
        scores_BNLL = scores / self.head_dim**0.5 + mask_B11L
        weights_BNLL = self.dropout(F.softmax(scores_BNLL, dim=-1))
        if self.einsum:
            x = torch.einsum("bnqk,bnke->bnqe", weights_BNLL, v_BNLE)
        else:
            x = torch.matmul(weights_BNLL, v_BNLE)
        return self.output(x.permute(0, 2, 1, 3).contiguous().view(B, L, -1))


class BertLayer(nn.Module):
    def __init__(self, dim: int, num_heads: int, dropout: float, einsum: bool) -> None:
        super().__init__()
        self.attention = BertAttention(dim, num_heads, dropout, einsum)
        self.attention_norm = nn.LayerNorm(dim, eps=1e-12)
        self.intermediate = nn.Linear(dim, 4 * dim)
        self.output = nn.Linear(4 * dim, dim)
        self.output_norm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BLD: Tensor, mask_B11L: Tensor) -> Tensor:
        attended = self.dropout(self.attention(x_BLD, mask_B11L))
        x_BLD = self.attention_norm(x_BLD + attended)
        hidden = self.output(F.gelu(self.intermediate(x_BLD)))
        return self.output_norm(x_BLD + self.dropout(hidden))


class Bert(nn.Module):
    """Logits over the vocabulary, whose decoder shares the word embedding, and a pooled vector."""

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int,
        depth: int,
        num_heads: int,
        max_length: int,
        dropout: float,
        einsum: bool,
    ) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(vocab_size, dim, max_length, dropout)
        self.layers = nn.ModuleList(
            BertLayer(dim, num_heads, dropout, einsum) for _ in range(depth)
        )
        self.pooler = nn.Linear(dim, dim)
        self.transform = nn.Linear(dim, dim)
        self.transform_norm = nn.LayerNorm(dim, eps=1e-12)
        self.decoder = nn.Linear(dim, vocab_size)
        self.decoder.weight = self.embeddings.word_embeddings.weight

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> dict[str, Tensor]:
        x_BLD = self.embeddings(input_ids, token_type_ids)
        mask_B11L = attention_mask[:, None, None, :].to(x_BLD.dtype)
        mask_B11L = (1.0 - mask_B11L) * torch.finfo(x_BLD.dtype).min
        for layer in self.layers:
            x_BLD = layer(x_BLD, mask_B11L)
        pooled_BD = torch.tanh(self.pooler(x_BLD[:, 0]))
        logits = self.decoder(self.transform_norm(F.gelu(self.transform(x_BLD))))
        return {"logits": logits, "pooler_output": pooled_BD}


def bert(
    *,
    vocab_size: int = 30522,
    dim: int = 768,
    depth: int = 12,
    num_heads: int = 12,
    max_length: int = 512,
    dropout: float = 0.1,
    einsum: bool = False,
) -> Bert:
    """110 million parameters at the default sizes; takes ids, mask and token types, each [B, L]."""
    return Bert(
        vocab_size=vocab_size,
        dim=dim,
        depth=depth,
        num_heads=num_heads,
        max_length=max_length,
        dropout=dropout,
        einsum=einsum,
    )
