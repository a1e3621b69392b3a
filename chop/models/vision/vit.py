"""Vision transformers (Dosovitskiy et al. 2020), in the sizes of DeiT (Touvron et al. 2020).

B batch, C channels, H height, W width, L tokens, D features, N heads, E features of a head.
Parameters carry the names of the published weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.vision.base import image_shape, vision_model


class PatchEmbed(nn.Module):
    """Turn every patch of the image into one token."""

    def __init__(self, channels: int, patch_size: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, patch_size, stride=patch_size)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BDHW: Tensor = self.proj(x_BCHW)
        return x_BDHW.flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention; `fused` uses torch's `scaled_dot_product_attention`.

    Only the other form applies dropout to attention weights: torch's function takes the dropout as
    an argument, which would be constant in a traced graph.
    """

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
            x = F.scaled_dot_product_attention(q_BNLE, k_BNLE, v_BNLE)
        else:
            scores_BNLL = torch.matmul(q_BNLE * self.scale, k_BNLE.transpose(-2, -1))
            x = torch.matmul(self.attn_drop(scores_BNLL.softmax(dim=-1)), v_BNLE)
        x = x.transpose(1, 2).reshape(B, L, D)
        out: Tensor = self.proj_drop(self.proj(x))
        return out


class Mlp(nn.Module):
    """Perceptron on each token, with a hidden layer of four times its width."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.drop1 = nn.Dropout(dropout)
        self.fc2 = nn.Linear(4 * dim, dim)
        self.drop2 = nn.Dropout(dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = self.drop1(self.act(self.fc1(x_BLD)))
        out: Tensor = self.drop2(self.fc2(x_BLD))
        return out


class Block(nn.Module):
    """Attention and perceptron, each with layer normalisation and a skip connection."""

    def __init__(self, dim: int, num_heads: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads, dropout, fused)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD + self.attn(self.norm1(x_BLD))
        out: Tensor = x_BLD + self.mlp(self.norm2(x_BLD))
        return out


class VisionTransformer(nn.Module):
    """Patches and a class token through `depth` blocks; the class token is classified."""

    def __init__(
        self,
        *,
        image_size: tuple[int, int, int],
        patch_size: int,
        dim: int,
        num_heads: int,
        num_classes: int,
        depth: int = 12,
        dropout: float = 0.0,
        fused: bool = True,
    ) -> None:
        super().__init__()
        channels, height, width = image_size
        num_patches = (height // patch_size) * (width // patch_size)
        self.patch_embed = PatchEmbed(channels, patch_size, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, num_patches + 1, dim))
        self.pos_drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(dim, num_heads, dropout, fused) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)
        self._init_weights()

    def _init_weights(self) -> None:
        for embedding in (self.cls_token, self.pos_embed):
            nn.init.trunc_normal_(embedding, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x_BLD = self.patch_embed(x)
        cls_token = self.cls_token.expand(x_BLD.shape[0], -1, -1)
        x_BLD = torch.cat((cls_token, x_BLD), dim=1) + self.pos_embed
        x_BLD = self.norm(self.blocks(self.pos_drop(x_BLD)))
        out: Tensor = self.head(x_BLD[:, 0])
        return out


def _vit(
    info: MaseDatasetInfo, dropout: float, *, patch_size: int, dim: int, num_heads: int
) -> nn.Module:
    image_size = image_shape(info)
    if any(pixels % patch_size for pixels in image_size[1:]):
        raise ValueError(
            f"images of {info.name!r} are {image_size[1]} x {image_size[2]} pixels, "
            f"which is not a multiple of the {patch_size} x {patch_size} patches"
        )
    return VisionTransformer(
        image_size=image_size,
        patch_size=patch_size,
        dim=dim,
        num_heads=num_heads,
        num_classes=info["num_classes"],
        dropout=dropout,
    )


@vision_model("vit_tiny_patch4_32")
def vit_tiny_patch4_32(info: MaseDatasetInfo, *, dropout: float = 0.0) -> nn.Module:
    """Vision transformer with 4 x 4 patches for small images: 5.4 million parameters on CIFAR."""
    return _vit(info, dropout, patch_size=4, dim=192, num_heads=3)


@vision_model("deit_tiny_patch16_224")
def deit_tiny_patch16_224(info: MaseDatasetInfo, *, dropout: float = 0.0) -> nn.Module:
    """DeiT-Ti, a vision transformer with 16 x 16 patches: 5.7 million parameters on ImageNet."""
    return _vit(info, dropout, patch_size=16, dim=192, num_heads=3)


@vision_model("deit_small_patch16_224")
def deit_small_patch16_224(info: MaseDatasetInfo, *, dropout: float = 0.0) -> nn.Module:
    """DeiT-S, a vision transformer with 16 x 16 patches: 22 million parameters on ImageNet."""
    return _vit(info, dropout, patch_size=16, dim=384, num_heads=6)


@vision_model("deit_base_patch16_224")
def deit_base_patch16_224(info: MaseDatasetInfo, *, dropout: float = 0.0) -> nn.Module:
    """DeiT-B, a vision transformer with 16 x 16 patches: 86.6 million parameters on ImageNet."""
    return _vit(info, dropout, patch_size=16, dim=768, num_heads=12)
