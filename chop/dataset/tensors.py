"""Splits that lie in memory as tensors, and a loader that slices them instead of collating."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
        fingerprint: str | None = None,
    ) -> None:
        if len(x) != len(y):
            raise ValueError(f"{len(x)} samples need {len(x)} labels, not {len(y)}")
        self.x, self.y, self.prepare, self.augment = x, y, prepare, augment
        self._fingerprint = fingerprint

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

    @property
    def fingerprint(self) -> str:
        """What tells these samples from any others: a hash of them as stored."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self.x, self.y)
        return self._fingerprint

    def to(self, device: torch.device | str) -> TensorSplit:
        """The same split on `device`; itself if it is there already."""
        x, y = self.x.to(device), self.y.to(device)
        if x is self.x and y is self.y:
            return self
        return TensorSplit(
            x, y, prepare=self.prepare, augment=self.augment, fingerprint=self._fingerprint
        )


def fingerprint(*tensors: Tensor) -> str:
    """`sha256:…` of the types, shapes and values of `tensors`."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{digest.hexdigest()}"


def epoch_order(size: int, *, seed: int, epoch: int) -> Tensor:
    """The order of the samples in one epoch: a function of `seed` and `epoch` alone."""
    return torch.randperm(size, generator=Generator().manual_seed(_mixed(seed, epoch)))


def _mixed(*numbers: int) -> int:
    """One 63-bit seed from several numbers: neighbours give unrelated streams."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = (mixed ^ (number & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 29
    return mixed >> 1


@dataclass(frozen=True)
class EpochPass:
    """One pass over the samples in an order of its own, shared by `world` processes.

    Nothing has to be remembered to return to any batch of it: order and augmentation follow from
    `seed`, `epoch` and the number of the batch.
    """

    seed: int
    epoch: int
    rank: int = 0
    world: int = 1

    def order(self, size: int) -> Tensor:
        """The indices of this process; the shares are equally long, so some samples come twice."""
        order = epoch_order(size, seed=self.seed, epoch=self.epoch)
        if self.world == 1:
            return order
        full = size + -size % self.world
        return order.repeat(-(-full // size))[:full][self.rank :: self.world]

    def reseed(self, generator: Generator, batch: int) -> None:
        """Bring `generator` where it stands at the beginning of `batch`."""
        generator.manual_seed(_mixed(self.seed, self.epoch, batch, self.rank + 1))


def batches(
    split: TensorSplit,
    batch_size: int,
    shuffled: EpochPass | None = None,
    *,
    first: int = 0,
    device: torch.device | str | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The split in batches on `device`, from batch `first` on; a `EpochPass` shuffles and augments."""
    device = torch.device(device) if device else split.x.device
    order = shuffled.order(len(split)) if shuffled else None
    if order is not None and order.device != split.x.device:
        order = order.to(split.x.device)
    generator = Generator(device) if shuffled and split.augment is not None else None
    chunk = batch_size * max(1, CHUNK_BYTES // max(1, batch_size * (split.nbytes // len(split))))
    size = len(split) if order is None else len(order)
    number = first
    for start in range(first * batch_size, size, chunk):
        xs, ys = _gathered(split, order, start, min(start + chunk, size))
        xs, ys = xs.to(device, non_blocking=True), ys.to(device, non_blocking=True)
        for x, y in zip(torch.split(xs, batch_size), torch.split(ys, batch_size), strict=True):
            if shuffled and split.augment is not None and generator is not None:
                shuffled.reseed(generator, number)
                x = split.augment(x, generator)
            number += 1
            yield (split.prepare(x) if split.prepare is not None else x), y


def _gathered(
    split: TensorSplit, order: Tensor | None, start: int, end: int
) -> tuple[Tensor, Tensor]:
    if order is None:
        x = split.x[start:end]  # a model may work in place: what it gets is a copy
        return (x.clone() if split.prepare is None else x), split.y[start:end]
    index = order[start:end]
    return split.x.index_select(0, index), split.y.index_select(0, index)


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
        self.epoch += 1
        return batches(self.dataset, self.batch_size, EpochPass(self.seed, self.epoch - 1))
