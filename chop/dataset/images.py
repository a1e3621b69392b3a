"""Code that image data sets share: stored as bytes, normalised batch by batch on the device."""

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

from chop.dataset.base import MaseDatasetInfo, Split
from chop.dataset.sources import DataSource
from chop.dataset.store import PreparedData, prepared
from chop.dataset.tensors import TensorSplit

SPLIT_SEED = 42
VALIDATION_SHARE = 0.1  # of the training images


@dataclass(frozen=True)
class Normalize:
    """Standardise pixels 0 … `peak`; `mean` and `std` are statistics of pixels scaled to 0 … 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    peak: float = 255.0

    def __call__(self, x: Tensor) -> Tensor:
        scale, shift = _affine(self, x.device)
        return x.float().mul_(scale).add_(shift)


@functools.cache
@torch.inference_mode(False)  # the cached tensors are used in training too
def _affine(normalize: Normalize, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return `scale` and `shift` with (x / peak - mean) / std = x · scale + shift."""
    mean = torch.tensor(normalize.mean, dtype=torch.float64)
    std = torch.tensor(normalize.std, dtype=torch.float64)
    scale, shift = 1 / (normalize.peak * std), -mean / std
    return scale.float().view(-1, 1, 1).to(device), shift.float().view(-1, 1, 1).to(device)


@dataclass(frozen=True)
class CropAndFlip:
    """Shift each image by up to `padding` pixels, filling with black, and mirror half of them."""

    padding: int = 4

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        num, channels, height, width = x.shape
        draw = functools.partial(torch.randint, generator=generator, device=x.device)
        down, right = draw(2 * self.padding + 1, (2, num, 1))
        mirrored = draw(2, (num, 1)).bool()
        rows = down + torch.arange(height, device=x.device)
        columns = torch.arange(width, device=x.device)
        columns = right + torch.where(mirrored, columns.flip(0), columns)
        pixel = rows[:, :, None] * (width + 2 * self.padding) + columns[:, None, :]
        padded = F.pad(x, (self.padding,) * 4).flatten(2)
        return padded.gather(2, pixel.view(num, 1, -1).expand(-1, channels, -1)).view(x.shape)


@dataclass(frozen=True)
class Images:
    """Images (N, C, H, W) and labels (N,) as bytes."""

    x: np.ndarray
    y: np.ndarray


def image_info(
    name: str, size: tuple[int, ...], num_classes: int, class_names: Sequence[str] = ()
) -> MaseDatasetInfo:
    """Return the description of a data set of images; `size` is channels, height, width."""
    return MaseDatasetInfo(
        name=name,
        image_classification=True,
        num_classes=num_classes,
        image_size=size,
        class_names=tuple(class_names),
    )


def image_split(
    split: Split,
    source: DataSource,
    folder: Path,
    files: Sequence[Path],
    read: Callable[[], tuple[Images, Images]],
    *,
    prepare: Normalize,
    augment: CropAndFlip | None = None,
) -> TensorSplit:
    """Return one split of the (training, test) images that `read` decodes from `files`.

    They are cached unpacked in `folder`; later runs map them into memory. With `legacy_val`, all
    training images are used to train and the test images to validate.
    """
    data = prepared(folder, files, lambda: _arranged(*read()), version=1, renew=source.renew)
    tested = source.legacy_val and split == "validation"
    part = data.split("test" if tested else split, legacy_val=source.legacy_val, prepare=prepare)
    part.augment = augment if split == "train" else None
    return part


def _arranged(train: Images, test: Images) -> PreparedData:
    """Shuffle the training images, hold out the last tenth to validate, append the test images."""
    order = np.random.RandomState(SPLIT_SEED).permutation(len(train.y))
    num_validation = round(len(order) * VALIDATION_SHARE)
    x = torch.from_numpy(np.concatenate([train.x[order], test.x]))
    y = torch.from_numpy(np.concatenate([train.y[order], test.y])).long()
    rows = {"train": len(order) - num_validation, "validation": num_validation, "test": len(test.y)}
    return PreparedData(x, y, rows)


def unpacked(file: Path) -> bytes:
    """Return the content of a file, decompressed and verified if it is a gzip file."""
    data = file.read_bytes()
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise corrupt(file, f"cannot be unpacked ({error})") from error


def corrupt(file: Path, reason: str) -> ValueError:
    """Return the error for a damaged file: what is wrong, and what to do."""
    return ValueError(
        f"{file} {reason}; replace it with an intact copy, or delete it and omit `path` to "
        f"download it"
    )
