"""Batches for training and testing: sliced from tensors on the device, or from a `DataLoader`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from chop.dataset.tensors import EpochPass, TensorSplit, batches
from chop.training.devices import Place

RESIDENT_SHARE = 0.5  # of the free memory of a device that a data set may take
SCORED_BYTES = 1 << 20  # small samples are scored in larger batches than they are learnt from


@dataclass(frozen=True)
class Format:
    """What batches have to be for a model: floats of its kind, labels as class numbers."""

    dtype: torch.dtype

    def x(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if x.is_floating_point() else x

    def y(self, y: Tensor) -> Tensor:
        return y if y.dtype == torch.int64 or y.is_floating_point() else y.long()

    def split(self, split: TensorSplit) -> TensorSplit:
        """The split in this format: converted once, not by the batch, where that is possible."""
        x, y, prepare = self.x(split.x), self.y(split.y), split.prepare
        if prepare is not None and self.dtype != torch.float32:
            inner = prepare
            prepare = lambda x: self.x(inner(x))  # noqa: E731 - closes over the split's own
        if x is split.x and y is split.y and prepare is split.prepare:
            return split
        return TensorSplit(x, y, prepare=prepare, augment=split.augment)


class Feed:
    """The batches of one split for one process on its device."""

    def __init__(
        self,
        split: Dataset[Any],
        batch_size: int,
        place: Place,
        dtype: torch.dtype = torch.float32,
        *,
        seed: int = 0,
        num_workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        if len(split) == 0:  # type: ignore[arg-type]
            raise ValueError("the data set is empty; there is nothing to learn from it")
        self.format, self.split = Format(dtype), split
        if isinstance(split, TensorSplit):
            split = self.format.split(split)
            self.split = split.to(place.device) if fits(split, place.device) else split
        self.batch_size, self.place, self.seed = batch_size, place, seed
        self.num_workers, self.collate = num_workers, collate

    @property
    def samples(self) -> int:
        return len(self.split)  # type: ignore[arg-type]

    @property
    def share(self) -> int:
        """The samples of an epoch that this process takes."""
        return math.ceil(self.samples / self.place.world)

    @property
    def batches_per_epoch(self) -> int:
        return math.ceil(self.share / self.batch_size)

    @property
    def resident(self) -> bool:
        return isinstance(self.split, TensorSplit) and self.split.x.device == self.place.device

    @property
    def stored(self) -> Tensor | None:
        """The samples as they lie in memory, where they do."""
        return self.split.x if isinstance(self.split, TensorSplit) else None

    def pass_of(self, epoch: int) -> EpochPass:
        return EpochPass(self.seed, epoch, self.place.rank, self.place.world)

    def train(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The shuffled batches of `epoch`, from batch `first` on."""
        shuffled, device = self.pass_of(epoch), self.place.device
        if isinstance(self.split, TensorSplit):
            return batches(self.split, self.batch_size, shuffled, first=first, device=device)
        order = shuffled.order(self.samples)[first * self.batch_size :]
        return self._loaded(order.tolist(), shuffled, first)

    def every(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The samples of this process once, in their order."""
        split, place = self.split, self.place
        if not isinstance(split, TensorSplit):
            return self._loaded(list(range(place.rank, self.samples, place.world)))
        size = max(self.batch_size, SCORED_BYTES * len(split) // split.nbytes)
        if place.world > 1:
            mine = slice(place.rank, None, place.world)
            split = TensorSplit(split.x[mine], split.y[mine], prepare=split.prepare)
        return batches(split, size, device=place.device) if len(split) else iter(())

    def few(self) -> tuple[Tensor, Tensor]:
        """The first one or two samples, to look at."""
        count, split = min(2, self.samples), self.split
        if isinstance(split, TensorSplit):
            first = TensorSplit(split.x[:count], split.y[:count], prepare=split.prepare)
            return next(batches(first, count, device=self.place.device))
        return next(self._loaded(list(range(count))))

    def _loaded(
        self, order: list[int], shuffled: EpochPass | None = None, first: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        # a generator of its own: workers draw anew each epoch, and the model's stream is untouched
        generator = Generator()
        (shuffled or EpochPass(self.seed, 0)).reseed(generator, first)
        loader = DataLoader(
            self.split,
            batch_size=self.batch_size,
            sampler=order,
            num_workers=self.num_workers,
            collate_fn=self.collate,
            generator=generator,
        )
        for x, y in loader:
            x, y = self.format.x(x), self.format.y(y)
            device = self.place.device
            yield x.to(device, non_blocking=True), y.to(device, non_blocking=True)


def fits(split: TensorSplit, device: torch.device) -> bool:
    """Whether the whole split may live on `device`."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return split.nbytes < RESIDENT_SHARE * free
