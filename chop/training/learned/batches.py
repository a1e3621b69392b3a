"""Batches for many networks at once: each network has its own, which depend only on the step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator, Tensor, nn

from chop.dataset.nested import Inputs, map_tensors, rows_of
from chop.dataset.tensors import TensorSplit
from chop.training.feed import Feed
from chop.training.outputs import Predictor
from chop.training.tasks import CLASSIFICATION, TrainingTask

BLOCK = 32  # steps whose samples are drawn at once


class MemberBatches:
    """Samples of the training split, drawn with replacement for each network and step.

    What a network gets depends on the seed, its number and the step, not on the other networks.
    """

    def __init__(
        self,
        feed: Feed,
        count: int,
        seed: int,
        teacher: nn.Module | None,
        task: TrainingTask = CLASSIFICATION,
    ) -> None:
        split = feed.split
        if not isinstance(split, TensorSplit) or not feed.resident:
            raise ValueError(
                "a front is trained on data in memory; use a data set that is stored as tensors, "
                "such as jsc-sim or cifar10, and that fits on the device"
            )
        self.split, self.size, self.count, self.seed = split, feed.batch_size, count, seed
        self._block, self._drawn = -1, torch.empty(0)
        self._generator = Generator(split.device) if split.augment is not None else None
        self._predict = Predictor(teacher, scores=task.of_scores) if teacher is not None else None
        self._targets = self._all_targets(feed) if split.augment is None else None

    @property
    def is_plain(self) -> bool:
        """Whether gathering a batch draws no random numbers."""
        return self.split.augment is None

    def indices(self, step: int) -> Tensor:
        """Return the positions of the samples of each network, of shape (networks, batch)."""
        block, place = divmod(step, BLOCK)
        if block != self._block:
            each = [self._of_member(member, block) for member in range(self.count)]
            self._block, self._drawn = block, torch.stack(each, 1)
        if self._generator is not None:
            self._generator.manual_seed(_mixed(self.seed, self.count, step))
        drawn: Tensor = self._drawn[place]
        return drawn

    def _of_member(self, member: int, block: int) -> Tensor:
        device = self.split.device
        generator = Generator(device).manual_seed(_mixed(self.seed, member, block))
        shape = (BLOCK, self.size)
        return torch.randint(len(self.split), shape, generator=generator, device=device)

    def gathered(self, index: Tensor) -> tuple[Inputs, Tensor, Tensor | None]:
        """Return inputs, labels and the outputs of the teacher for positions of samples."""
        flat = index.flatten()
        x = rows_of(self.split.x, flat)
        if self.split.augment is not None and self._generator is not None:
            x = self.split.augment(x, self._generator)
        x = self.split.prepare(x) if self.split.prepare is not None else x
        target = None
        if self._predict is not None:
            with torch.no_grad():
                target = self._targets[flat] if self._targets is not None else self._predict(x)
            target = _by_member(target, index)
        x = map_tensors(lambda tensor: _by_member(tensor, index), x)
        return x, _by_member(self.split.y[flat], index), target

    @torch.no_grad()
    def _all_targets(self, feed: Feed) -> Tensor | None:
        """Return the outputs of the teacher for all samples, which are computed once."""
        if self._predict is None:
            return None
        return torch.cat([self._predict(x) for x, _ in feed.every()])


def _by_member(tensor: Tensor, index: Tensor) -> Tensor:
    by_member: Tensor = tensor.unflatten(0, index.shape)
    return by_member


def _mixed(*numbers: int) -> int:
    state = np.random.SeedSequence([abs(number) for number in numbers])
    return int(state.generate_state(1, np.uint64)[0] >> np.uint64(1))
