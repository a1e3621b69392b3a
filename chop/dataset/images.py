"""What image data sets share: bytes on disk, arithmetic on the device, a whole batch at a time."""

from __future__ import annotations

import functools
import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from chop.dataset.base import Split
from chop.dataset.store import PreparedData, prepared
from chop.dataset.tensors import TensorSplit

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


@dataclass(frozen=True)
class Images:
    """Pictures (N, C, H, W) and labels (N,) as bytes."""

    x: np.ndarray
    y: np.ndarray


def image_split(
    split: Split,
    folder: Path,
    files: Sequence[Path],
    read: Callable[[], tuple[Images, Images]],
    *,
    prepare: Normalize,
    augment: CropAndFlip | None = None,
    legacy_val: bool = False,
    renew: bool = False,
) -> TensorSplit:
    """A split of what `read` makes of `files`, images to train with and images to test.

    They are kept unpacked in `folder`; later starts map them into memory. With `legacy_val`, all
    training images train and the test images validate.
    """
    data = prepared(
        folder,
        files[0],
        lambda: _arranged(*read()),
        version=1,
        options={"others": [[str(file), *_state(file)] for file in files[1:]]},
        renew=renew,
    )
    tested = legacy_val and split == "validation"
    part = data.split("test" if tested else split, legacy_val=legacy_val, prepare=prepare)
    part.augment = augment if split == "train" else None
    return part


def _state(file: Path) -> tuple[int, int]:
    """What changes when somebody changes a file."""
    return file.stat().st_size, file.stat().st_mtime_ns


def _arranged(train: Images, test: Images) -> PreparedData:
    """Training images in a fixed random order, the last tenth to validate; then the test images."""
    order = np.random.RandomState(SPLIT_SEED).permutation(len(train.y))
    num_validation = round(len(order) * VALIDATION_SHARE)
    x = torch.from_numpy(np.concatenate([train.x[order], test.x]))
    y = torch.from_numpy(np.concatenate([train.y[order], test.y])).long()
    rows = {"train": len(order) - num_validation, "validation": num_validation, "test": len(test.y)}
    return PreparedData(x, y, rows)


def unpacked(file: Path) -> bytes:
    """The content of a file, which gzip may have packed; its checksum is verified."""
    data = file.read_bytes()
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise corrupt(file, f"cannot be unpacked ({error})") from error


def corrupt(file: Path, reason: str) -> ValueError:
    """What is wrong with a file, and what to do."""
    return ValueError(
        f"{file} {reason}; put a sound copy there, or delete it and leave --data-path out to "
        f"download it"
    )
