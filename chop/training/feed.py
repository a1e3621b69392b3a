"""Batches for training and testing: sliced from tensors on the device, or from a `DataLoader`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from chop.dataset.tensors import Pass, TensorSplit, batches

RESIDENT_SHARE = 0.5  # of the free memory of a device that a data set may take
SCORED_BYTES = 1 << 20  # small samples are scored in larger batches than they are learnt from


class Feed:
    """The batches of one split for one process (`rank` of `world`) on its device."""

    def __init__(
        self,
        split: Dataset[Any],
        batch_size: int,
        device: torch.device,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        num_workers: int = 0,
    ) -> None:
        if len(split) == 0:  # type: ignore[arg-type]
            raise ValueError("the data set is empty; there is nothing to learn from it")
        self.split = split
        if isinstance(split, TensorSplit) and fits(split, device):
            self.split = split.to(device)
        self.batch_size, self.device, self.seed = batch_size, device, seed
        self.rank, self.world, self.num_workers = rank, world, num_workers

    @property
    def samples(self) -> int:
        return len(self.split)  # type: ignore[arg-type]

    @property
    def batches_per_epoch(self) -> int:
        return math.ceil(math.ceil(self.samples / self.world) / self.batch_size)

    @property
    def resident(self) -> bool:
        return isinstance(self.split, TensorSplit) and self.split.x.device == self.device

    def pass_of(self, epoch: int) -> Pass:
        return Pass(self.seed, epoch, self.rank, self.world)

    def train(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The shuffled batches of `epoch`, from batch `first` on."""
        shuffled = self.pass_of(epoch)
        if isinstance(self.split, TensorSplit):
            return batches(self.split, self.batch_size, shuffled, first=first, device=self.device)
        order = shuffled.order(self.samples)[first * self.batch_size :]
        return self._loaded(order.tolist())

    def every(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The samples of this process once, in their order."""
        split = self.split
        if not isinstance(split, TensorSplit):
            return self._loaded(list(range(self.rank, self.samples, self.world)))
        size = max(self.batch_size, SCORED_BYTES * len(split) // split.nbytes)
        if self.world > 1:
            mine = slice(self.rank, None, self.world)
            split = TensorSplit(split.x[mine], split.y[mine], prepare=split.prepare)
        return batches(split, size, device=self.device)

    def _loaded(self, order: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            self.split,
            batch_size=self.batch_size,
            sampler=order,
            num_workers=self.num_workers,
            generator=Generator().manual_seed(self.seed),  # the model's own stream stays untouched
        )
        for x, y in loader:
            yield x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)


def fits(split: TensorSplit, device: torch.device) -> bool:
    """Whether the whole split may live on `device`."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return split.nbytes < RESIDENT_SHARE * free
