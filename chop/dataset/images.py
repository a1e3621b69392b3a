"""What image data sets share: bytes on disk, arithmetic on the device, a whole batch at a time."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

SPLIT_SEED = 42
VALIDATION_SHARE = 0.1  # of the training images


@dataclass(frozen=True)
class Normalize:
    """Pixels 0 … `peak` as standardised floats; `mean` and `std` are those of pixels 0 … 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    peak: float = 255.0

    def __call__(self, x: Tensor) -> Tensor:
        scale, shift = _affine(self, x.device)
        return x.float().mul_(scale).add_(shift)


@functools.cache
@torch.inference_mode(False)  # what is kept must serve training too
def _affine(normalize: Normalize, device: torch.device) -> tuple[Tensor, Tensor]:
    """`scale` and `shift` with (x / peak - mean) / std = x · scale + shift."""
    mean = torch.tensor(normalize.mean, dtype=torch.float64)
    std = torch.tensor(normalize.std, dtype=torch.float64)
    scale, shift = 1 / (normalize.peak * std), -mean / std
    return scale.float().view(-1, 1, 1).to(device), shift.float().view(-1, 1, 1).to(device)


@dataclass(frozen=True)
class CropAndFlip:
    """Each image moved by up to `padding` pixels, black beyond its edge, and mirrored or not."""

    padding: int = 4

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        num, channels, height, width = x.shape
        down, right = torch.randint(
            2 * self.padding + 1, (2, num, 1), generator=generator, device=x.device
        )
        mirrored = torch.randint(2, (num, 1), generator=generator, device=x.device).bool()
        rows = down + torch.arange(height, device=x.device)
        columns = torch.arange(width, device=x.device)
        columns = right + torch.where(mirrored, columns.flip(0), columns)
        pixel = rows[:, :, None] * (width + 2 * self.padding) + columns[:, None, :]
        padded = F.pad(x, (self.padding,) * 4).flatten(2)
        return padded.gather(2, pixel.view(num, 1, -1).expand(-1, channels, -1)).view(x.shape)


def train_and_validation(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training images: most to train with, a tenth to validate; always the same."""
    order = np.random.RandomState(SPLIT_SEED).permutation(size)
    end = size - round(size * VALIDATION_SHARE)
    return order[:end], order[end:]
