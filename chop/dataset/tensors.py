"""Splits that lie in memory as tensors, and a loader that slices them instead of collating."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset

Prepare = Callable[[Tensor], Tensor]  # a batch as stored -> a batch as the model takes it
Augment = Callable[[Tensor, Generator], Tensor]  # a stored batch -> a varied one, on its device

CHUNK_BYTES = 1 << 20  # samples are gathered in pieces that stay in the cache of a core


class TensorSplit(Dataset[tuple[Tensor, Tensor]]):
    """One split: samples `x` (N, …) and labels `y` (N,), as stored; whole batches are prepared.

    Images may be stored as bytes: `prepare` turns a batch into normalised floats on its device.
    `augment` varies a stored batch before that; only loaders that shuffle (training) apply it.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        prepare: Prepare | None = None,
        augment: Augment | None = None,
    ) -> None:
        if len(x) != len(y):
            raise ValueError(f"{len(x)} samples need as many labels, not {len(y)}")
        self.x, self.y, self.prepare, self.augment = x, y, prepare, augment

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Any) -> tuple[Tensor, Tensor]:
        one = isinstance(index, int)
        x = self.x[index : index + 1 or None] if one else self.x[index]
        x = self.prepare(x) if self.prepare else x
        return (x[0] if one else x), self.y[index]

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + self.y.nbytes

    def to(self, device: torch.device | str) -> TensorSplit:
        """The same split on `device`; itself if it is there already."""
        x, y = self.x.to(device), self.y.to(device)
        if x is self.x and y is self.y:
            return self
        return TensorSplit(x, y, prepare=self.prepare, augment=self.augment)


def epoch_order(size: int, *, seed: int, epoch: int) -> Tensor:
    """The order of the samples in one epoch: a function of `seed` and `epoch` alone."""
    generator = Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(size, generator=generator)


def batches(
    split: TensorSplit,
    batch_size: int,
    *,
    order: Tensor | None = None,
    generator: Generator | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The split in batches, in `order`; augmented if there is a `generator` for it."""
    chunk = batch_size * max(1, CHUNK_BYTES // max(1, batch_size * (split.nbytes // len(split))))
    size = len(split) if order is None else len(order)
    for start in range(0, size, chunk):
        end = min(start + chunk, size)
        if order is None:
            xs, ys = split.x[start:end], split.y[start:end]
        else:
            index = order[start:end].to(split.x.device)
            xs, ys = split.x.index_select(0, index), split.y.index_select(0, index)
        for x, y in zip(torch.split(xs, batch_size), torch.split(ys, batch_size), strict=True):
            if split.augment is not None and generator is not None:
                x = split.augment(x, generator)
            yield (split.prepare(x) if split.prepare is not None else x), y


class TensorLoader:
    """What a `DataLoader` is to its user, without a call per sample; `shuffle` is seeded.

    Every pass over it is the next epoch; `epoch` may be set to return to an earlier one.
    """

    def __init__(
        self, dataset: TensorSplit, batch_size: int, *, shuffle: bool = False, seed: int = 0
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is at least 1, not {batch_size}")
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, shuffle
        self.seed, self.epoch = seed, 0

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if not self.shuffle:
            return batches(self.dataset, self.batch_size)
        order = epoch_order(len(self.dataset), seed=self.seed, epoch=self.epoch)
        generator = Generator(self.dataset.x.device).manual_seed(self.seed + self.epoch)
        self.epoch += 1
        return batches(self.dataset, self.batch_size, order=order, generator=generator)
