"""ResNet-18, ViT and BERT as their authors write them, in plain torch: something real to trace.

B batch, C channels, H height, W width, L tokens, D features, N heads, E features of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input is added back."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x_BCHW: Tensor) -> Tensor:
        identity = x_BCHW
        out = self.relu(self.bn1(self.conv1(x_BCHW)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x_BCHW)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """A stem, four stages of basic blocks, and a linear classifier."""

    def __init__(self, blocks: Sequence[int], width: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._stage(width, width, blocks[0], stride=1)
        self.layer2 = self._stage(width, 2 * width, blocks[1], stride=2)
        self.layer3 = self._stage(2 * width, 4 * width, blocks[2], stride=2)
        self.layer4 = self._stage(4 * width, 8 * width, blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, num_classes)

    @staticmethod
    def _stage(before: int, after: int, num_blocks: int, stride: int) -> nn.Sequential:
        first = BasicBlock(before, after, stride)
        return nn.Sequential(first, *(BasicBlock(after, after, 1) for _ in range(num_blocks - 1)))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x_BCHW))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(x)


def resnet18(width: int = 64, num_classes: int = 1000) -> ResNet:
    """11.7 million parameters at the default width; takes [B, 3, 224, 224]."""
    return ResNet((2, 2, 2, 2), width, num_classes)


class PatchEmbedding(nn.Module):
    def __init__(self, image_size: int, patch_size: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch_size, stride=patch_size)
        self.num_patches = (image_size // patch_size) ** 2

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.proj(x_BCHW).flatten(2).transpose(1, 2)


class VisionAttention(nn.Module):
    """All heads from one projection; `fused` leaves the rest to torch's own attention."""

    def __init__(self, dim: int, num_heads: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.num_heads, self.fused = num_heads, fused
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attn_drop = nn.Dropout(dropout)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        B, L, D = x_BLD.shape
        qkv = self.qkv(x_BLD).reshape(B, L, 3, self.num_heads, D // self.num_heads)
        q_BNLE, k_BNLE, v_BNLE = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            dropout = self.attn_drop.p if self.training else 0.0
            x = F.scaled_dot_product_attention(q_BNLE, k_BNLE, v_BNLE, dropout_p=dropout)
        else:
            scores_BNLL = torch.matmul(q_BNLE * self.scale, k_BNLE.transpose(-2, -1))
            x = torch.matmul(self.attn_drop(scores_BNLL.softmax(dim=-1)), v_BNLE)
        x = x.transpose(1, 2).reshape(B, L, D)
        return self.proj_drop(self.proj(x))


class VisionBlock(nn.Module):
    def __init__(self, dim: int, num_heads: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = VisionAttention(dim, num_heads, dropout, fused)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * dim, dim),
            nn.Dropout(dropout),
        )

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD + self.attn(self.norm1(x_BLD))
        return x_BLD + self.mlp(self.norm2(x_BLD))


class VisionTransformer(nn.Module):
    def __init__(
        self,
        *,
        image_size: int,
        patch_size: int,
        dim: int,
        depth: int,
        num_heads: int,
        num_classes: int,
        dropout: float,
        fused: bool,
    ) -> None:
        super().__init__()
        self.patch_embed = PatchEmbedding(image_size, patch_size, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, self.patch_embed.num_patches + 1, dim))
        self.pos_drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(VisionBlock(dim, num_heads, dropout, fused) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BLD = self.patch_embed(x_BCHW)
        cls_token = self.cls_token.expand(x_BLD.shape[0], -1, -1)
        x_BLD = torch.cat((cls_token, x_BLD), dim=1) + self.pos_embed
        x_BLD = self.norm(self.blocks(self.pos_drop(x_BLD)))
        return self.head(x_BLD[:, 0])


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
    return VisionTransformer(
        image_size=image_size,
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
