"""Batches of one split for many candidates, each in the order of its seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Generator, Tensor

from chop.dataset.tensors import EpochPass, TensorSplit, batches
from chop.training.feed import SCORED_BYTES


class Batches:
    """The batches of a split for all candidates, each in the order of its seed."""

    def __init__(
        self, split: TensorSplit, batch_size: int, seeds: Sequence[int], *, maps: bool
    ) -> None:
        self.split, self.batch_size, self.maps = split, batch_size, maps
        self.seeds = list(dict.fromkeys(seeds))
        device = split.x.device
        places = [self.seeds.index(seed) for seed in seeds]
        self.which = torch.tensor(places, device=device)
        self.candidates = len(seeds)
        self.order = torch.empty(len(self.seeds), len(split), dtype=torch.int64, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.ahead = torch.arange(batch_size, device=device)
        self.epoch = -1
        self.number = 0

    def start(self, epoch: int, first: int) -> None:
        """Shuffle for `epoch`, and go to its batch `first`."""
        if epoch != self.epoch:
            with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # torch releases the GIL
                orders = pool.map(
                    lambda seed: EpochPass(seed, epoch).order(len(self.split)), self.seeds
                )
                for row, order in zip(self.order, orders, strict=True):
                    row.copy_(order)
        self.epoch, self.number = epoch, first
        self.cursor.fill_(first * self.batch_size)

    def next(self) -> tuple[Tensor, Tensor]:
        """Return the next whole batch of every candidate."""
        index = self.order.index_select(1, self.cursor + self.ahead)
        self.cursor += self.batch_size
        return self._gathered(index)

    def last(self) -> tuple[Tensor, Tensor]:
        """Return the samples that remain after the whole batches."""
        return self._gathered(self.order[:, len(self.split) // self.batch_size * self.batch_size :])

    def _gathered(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples in the layout of the network's input, and labels [K, B]."""
        split = self.split
        x = split.x.index_select(0, index.flatten())
        y = split.y.index_select(0, index.flatten()).view(index.shape)
        if split.augment is not None:
            x = self._augmented(x.view(*index.shape, *x.shape[1:])).flatten(0, 1)
        x = split.prepare(x) if split.prepare is not None else x
        x = x.view(*index.shape, *x.shape[1:])
        if len(self.seeds) == 1:
            x, y = x.expand(self.candidates, *x.shape[1:]), y.expand(self.candidates, -1)
        elif len(self.seeds) < self.candidates:
            x, y = x.index_select(0, self.which), y.index_select(0, self.which)
        return arranged(x, maps=self.maps), y

    def _augmented(self, x: Tensor) -> Tensor:
        assert self.split.augment is not None
        augmented, generator = [], Generator(x.device)
        for samples, seed in zip(x, self.seeds, strict=True):
            EpochPass(seed, self.epoch).reseed(generator, self.number)
            augmented.append(self.split.augment(samples, generator))
        self.number += 1
        return torch.stack(augmented)


def arranged(x: Tensor, *, maps: bool) -> Tensor:
    """Return samples [K, B, …] in the layout of a network's input."""
    if maps:
        return x.transpose(0, 1).flatten(1, 2)
    return x.transpose(1, 2).contiguous()


def every(
    split: TensorSplit, batch_size: int, candidates: int, *, maps: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all samples once, in order, the same for all candidates; labels are [1, B]."""
    size = max(batch_size, SCORED_BYTES * len(split) // (split.nbytes * candidates))
    for x, y in batches(split, size):
        yield arranged(x.expand(candidates, *x.shape), maps=maps), y.unsqueeze(0)
