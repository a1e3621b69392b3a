"""Splits stored as tensors in memory, and a loader that slices batches instead of collating."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset

from chop.dataset.nested import (
    Inputs,
    copied,
    map_tensors,
    named_tensors,
    num_bytes,
    num_samples,
    on_device,
    rows_of,
    split_up,
    tensors_of,
)

Prepare = Callable[[Inputs], Inputs]  # stored batch -> inputs of the model
Augment = Callable[[Inputs, Generator], Inputs]  # stored batch -> augmented batch, on its device

CHUNK_BYTES = 1 << 20  # samples are gathered in chunks that fit in a core's cache


@dataclass(frozen=True)
class Scaler:
    """The mean and standard deviation of each raw feature, with which features were standardised.

    One with means of 0 and deviations of 1 stands for features that are as they were.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def neutral(cls, features: int) -> Scaler:
        """Return the scaler of features that were not standardised."""
        return cls((0.0,) * features, (1.0,) * features)

    def reordered(self, order: Sequence[int]) -> Scaler:
        """Return the scaler of the features in another order."""
        return Scaler(*(tuple(values[i] for i in order) for values in (self.mean, self.deviation)))


Scalers = Scaler | Mapping[str, Scaler]  # of one input, or of several by their names


def plain_scalers(scaler: Scalers | None) -> dict[str, Any]:
    """Return scalers as JSON values: that of one input in `scaler`, several in `scalers`."""
    if isinstance(scaler, Mapping):
        return {"scaler": None, "scalers": {name: asdict(one) for name, one in scaler.items()}}
    return {"scaler": scaler and asdict(scaler)}


class TensorSplit(Dataset[tuple[Inputs, Tensor]]):
    """One split: stored samples `x` (N, …) and labels `y` (N, …).

    With several inputs, `x` is a dictionary or tuple of tensors, each with N rows. `prepare` turns
    a stored batch into inputs of the model, for instance bytes of images into normalised floats.
    Before that, loaders that shuffle (for training) apply `augment`. `scaler` tells how the
    features of a table were standardised, by name for several inputs; None if that is not known.
    """

    def __init__(
        self,
        x: Inputs,
        y: Tensor,
        *,
        prepare: Prepare | None = None,
        augment: Augment | None = None,
        fingerprint: str | None = None,
        scaler: Scalers | None = None,
    ) -> None:
        if (count := num_samples(x)) != len(y):
            raise ValueError(f"{count} samples need {count} labels, not {len(y)}")
        self.x, self.y, self.prepare, self.augment = x, y, prepare, augment
        self._fingerprint, self.scaler = fingerprint, scaler

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Any) -> tuple[Inputs, Tensor]:
        one = isinstance(index, int)
        x = rows_of(self.x, slice(index, index + 1 or None) if one else index)
        x = self.prepare(x) if self.prepare else x
        return (rows_of(x, 0) if one else x), self.y[index]

    @property
    def nbytes(self) -> int:
        return num_bytes(self.x) + self.y.nbytes

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return tensors_of(self.x)[0].device

    def rows(self, index: Any) -> TensorSplit:
        """Return the samples at `index`, without augmentation."""
        return TensorSplit(rows_of(self.x, index), self.y[index], prepare=self.prepare)

    @property
    def fingerprint(self) -> str:
        """Hash of the stored samples and labels."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self.x, self.y)
        return self._fingerprint

    def to(self, device: torch.device | str) -> TensorSplit:
        """Return the split on `device`, or itself if it is on that device."""
        x, y = map_tensors(lambda tensor: tensor.to(device), self.x), self.y.to(device)
        if are_same(x, self.x) and y is self.y:
            return self
        return TensorSplit(
            x,
            y,
            prepare=self.prepare,
            augment=self.augment,
            fingerprint=self._fingerprint,
            scaler=self.scaler,
        )


def are_same(some: Inputs, others: Inputs) -> bool:
    """Whether the tensors of both inputs are the same objects."""
    pairs = zip(tensors_of(some), tensors_of(others), strict=True)
    return all(one is other for one, other in pairs)


def fingerprint(x: Inputs, y: Tensor) -> str:
    """Return the hash `sha256:…` of the types, shapes and values of samples and labels.

    Several inputs count with their names.
    """
    digest = hashlib.sha256()
    for name, tensor in (*named_tensors(x), ("", y)):
        digest.update(f"{name}{' ' if name else ''}{tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{digest.hexdigest()}"


def epoch_order(size: int, *, seed: int, epoch: int) -> Tensor:
    """Return the order of the samples in one epoch, which depends only on `seed` and `epoch`."""
    return torch.randperm(size, generator=Generator().manual_seed(_mixed(seed, epoch)))


def _mixed(*numbers: int) -> int:
    """Hash several numbers to one 63-bit seed, so that similar numbers give unrelated streams."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = (mixed ^ (number & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 29
    return mixed >> 1


@dataclass(frozen=True)
class EpochPass:
    """One shuffled pass over the samples, divided among `world` processes.

    Order and augmentation depend only on `seed`, `epoch` and the number of the batch, so a run can
    resume at any batch.
    """

    seed: int
    epoch: int
    rank: int = 0
    world: int = 1

    def order(self, size: int) -> Tensor:
        """Return the indices of this process; some samples repeat so that all shares are equal."""
        order = epoch_order(size, seed=self.seed, epoch=self.epoch)
        if self.world == 1:
            return order
        full = size + -size % self.world
        return order.repeat(-(-full // size))[:full][self.rank :: self.world]

    def reseed(self, generator: Generator, batch: int) -> None:
        """Set `generator` to its state at the start of `batch`."""
        generator.manual_seed(_mixed(self.seed, self.epoch, batch, self.rank + 1))


def batches(
    split: TensorSplit,
    batch_size: int,
    shuffled: EpochPass | None = None,
    *,
    first: int = 0,
    device: torch.device | str | None = None,
) -> Iterator[tuple[Inputs, Tensor]]:
    """Yield batches on `device`, starting with batch `first`; `shuffled` orders and augments."""
    stored_on = split.device
    device = torch.device(device) if device else stored_on
    order = shuffled.order(len(split)) if shuffled else None
    if order is not None and order.device != stored_on:
        order = order.to(stored_on)
    generator = Generator(device) if shuffled and split.augment is not None else None
    chunk = batch_size * max(1, CHUNK_BYTES // max(1, batch_size * (split.nbytes // len(split))))
    size = len(split) if order is None else len(order)
    number = first
    for start in range(first * batch_size, size, chunk):
        xs, ys = _gathered(split, order, start, min(start + chunk, size))
        xs, ys = on_device(xs, device), ys.to(device, non_blocking=True)
        for x, y in zip(split_up(xs, batch_size), torch.split(ys, batch_size), strict=True):
            if shuffled and split.augment is not None and generator is not None:
                shuffled.reseed(generator, number)
                x = split.augment(x, generator)
            number += 1
            yield (split.prepare(x) if split.prepare is not None else x), y


def _gathered(
    split: TensorSplit, order: Tensor | None, start: int, end: int
) -> tuple[Inputs, Tensor]:
    if order is None:
        x = rows_of(split.x, slice(start, end))  # copied below, as a model may work in place
        return (copied(x) if split.prepare is None else x), split.y[start:end]
    return gathered(split, order[start:end])


def gathered(split: TensorSplit, index: Tensor) -> tuple[Inputs, Tensor]:
    """Return the stored samples and labels at `index`."""
    x = map_tensors(lambda tensor: tensor.index_select(0, index), split.x)
    return x, split.y.index_select(0, index)


class TensorLoader:
    """A `DataLoader` that slices whole batches instead of loading each sample.

    Each iteration is the next epoch of the seeded shuffle; set `epoch` to repeat an earlier one.
    """

    def __init__(
        self, dataset: TensorSplit, batch_size: int, *, shuffle: bool = False, seed: int = 0
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, shuffle
        self.seed, self.epoch = seed, 0

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        if not self.shuffle:
            return batches(self.dataset, self.batch_size)
        self.epoch += 1
        return batches(self.dataset, self.batch_size, EpochPass(self.seed, self.epoch - 1))
