"""Batches for training and testing, sliced from tensors on the device or from a `DataLoader`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from chop.dataset.nested import Inputs, map_tensors, on_device, pair_of
from chop.dataset.tensors import EpochPass, TensorSplit, are_same, batches
from chop.training.devices import Place

RESIDENT_SHARE = 0.5  # of the free memory of a device, which a data set may take
SCORED_BYTES = 1 << 20  # small samples are scored in batches larger than those for training


@dataclass(frozen=True)
class Format:
    """Converts batches for a model: floats to its type, labels to class indices."""

    dtype: torch.dtype

    def x(self, x: Inputs) -> Inputs:
        return self._floats(x) if isinstance(x, Tensor) else map_tensors(self._floats, x)

    def _floats(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if x.is_floating_point() else x

    def y(self, y: Tensor) -> Tensor:
        if y.is_floating_point():
            return y.to(torch.promote_types(self.dtype, torch.float32))
        return y if y.dtype == torch.int64 else y.long()

    def split(self, split: TensorSplit) -> TensorSplit:
        """Return the split in this format, converted once instead of per batch if possible."""
        x, y, prepare = self.x(split.x), self.y(split.y), split.prepare
        if prepare is not None and self.dtype != torch.float32:
            inner = prepare
            prepare = lambda x: self.x(inner(x))  # noqa: E731 - closes over `prepare` of the split
        if are_same(x, split.x) and y is split.y and prepare is split.prepare:
            return split
        return TensorSplit(x, y, prepare=prepare, augment=split.augment)


class Feed:
    """The batches of one split, for one process on its device."""

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
            raise ValueError("the data set is empty; training needs at least one sample")
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
        """Number of samples that this process takes in an epoch."""
        return math.ceil(self.samples / self.place.world)

    @property
    def batches_per_epoch(self) -> int:
        return math.ceil(self.share / self.batch_size)

    @property
    def resident(self) -> bool:
        return isinstance(self.split, TensorSplit) and self.split.device == self.place.device

    @property
    def stored(self) -> Inputs | None:
        """The stored samples, if they are tensors in memory."""
        return self.split.x if isinstance(self.split, TensorSplit) else None

    def pass_of(self, epoch: int) -> EpochPass:
        return EpochPass(self.seed, epoch, self.place.rank, self.place.world)

    def train(self, epoch: int, first: int = 0) -> Iterator[tuple[Inputs, Tensor]]:
        """Return the shuffled batches of `epoch`, starting with batch `first`."""
        shuffled, device = self.pass_of(epoch), self.place.device
        if isinstance(self.split, TensorSplit):
            return batches(self.split, self.batch_size, shuffled, first=first, device=device)
        order = shuffled.order(self.samples)[first * self.batch_size :]
        return self._loaded(order.tolist(), shuffled, first)

    def every(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Return all samples of this process once, in order."""
        split, place = self.split, self.place
        if not isinstance(split, TensorSplit):
            return self._loaded(list(range(place.rank, self.samples, place.world)))
        size = max(self.batch_size, SCORED_BYTES * len(split) // split.nbytes)
        if place.world > 1:
            split = split.rows(slice(place.rank, None, place.world))
        return batches(split, size, device=place.device) if len(split) else iter(())

    def few(self) -> tuple[Inputs, Tensor]:
        """Return the first one or two samples, for checks."""
        count, split = min(2, self.samples), self.split
        if isinstance(split, TensorSplit):
            return next(batches(split.rows(slice(count)), count, device=self.place.device))
        return next(self._loaded(list(range(count))))

    def _loaded(
        self, order: list[int], shuffled: EpochPass | None = None, first: int = 0
    ) -> Iterator[tuple[Inputs, Tensor]]:
        # with a separate generator, workers draw new numbers each epoch, and the model's are kept
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
        device = self.place.device
        for batch in loader:
            x, y = pair_of(batch)
            x, y = self.format.x(x), self.format.y(y)
            yield on_device(x, device), y.to(device, non_blocking=True)


def fits(split: TensorSplit, device: torch.device) -> bool:
    """Whether the whole split fits on `device`."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return split.nbytes < RESIDENT_SHARE * free
