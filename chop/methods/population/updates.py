"""Optimisers for rows of parameters, with a learning rate, decay and moments per candidate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from chop.registry import Registry
from chop.training.optimisers import BETAS, EPSILON, MOMENTUM, learning_rate
from chop.training.options import TrainOptions


class Rows:
    """Views of the parameters and moments of candidates with the same optimiser."""

    def __init__(
        self, values: Tensor, moments: Sequence[Tensor], rates: Tensor, decay: Tensor, step: Tensor
    ) -> None:
        self.values, self.moments, self.rates = values, moments, rates
        self.decay = decay if bool(decay.any()) else None
        self.step = step


Update = Callable[[Rows, Tensor], None]
UPDATES: Registry[Update] = Registry("optimizer of populations")


@UPDATES.register("adam")
def adam(rows: Rows, grad: Tensor) -> None:
    if rows.decay is not None:
        grad = torch.addcmul(grad, rows.values, rows.decay)
    _by_moments(rows, grad)


@UPDATES.register("adamw")
def adamw(rows: Rows, grad: Tensor) -> None:
    if rows.decay is not None:
        rows.values.mul_(1 - rows.rates * rows.decay)
    _by_moments(rows, grad)


def _by_moments(rows: Rows, grad: Tensor) -> None:
    first, second = rows.moments
    first.lerp_(grad, 1 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
    # in float64: 1 - 0.999 has few digits left in float32
    whole, root = 1 - BETAS[0] ** rows.step, (1 - BETAS[1] ** rows.step).sqrt()
    size = (second.sqrt() / root).add_(EPSILON)
    rows.values.addcmul_(torch.div(first, size, out=size), -rows.rates / whole)


@UPDATES.register("sgd")
def sgd(rows: Rows, grad: Tensor) -> None:
    """SGD with Nesterov momentum."""
    if rows.decay is not None:
        grad = torch.addcmul(grad, rows.values, rows.decay)
    momentum, _ = rows.moments
    momentum.mul_(MOMENTUM).add_(grad)
    rows.values.addcmul_(torch.add(grad, momentum, alpha=MOMENTUM), -rows.rates)


class Updates:
    """The optimisers of a population; its candidates are sorted by the name of the optimiser."""

    def __init__(
        self, values: Tensor, options: Sequence[TrainOptions], moments: Tensor, step: int
    ) -> None:
        self.moments = moments  # [2, K, length]
        self.step = torch.tensor(float(step), dtype=torch.float64, device=values.device)
        self.rates = values.new_zeros(len(options), 1)
        decay = values.new_tensor([[o.weight_decay] for o in options])
        clips = [[math.inf if o.gradient_clip is None else o.gradient_clip] for o in options]
        self.clips = values.new_tensor(clips)
        self.clipped = any(o.gradient_clip is not None for o in options)
        by_step = any(o.schedule_steps is not None for o in options)
        self._moving = math.inf if by_step else max(o.warmup_steps for o in options)
        self._rates_at: tuple[int, float] = (-1, -1)
        kinds = [replace(o, seed=0) for o in options]
        self._kinds = list(dict.fromkeys(kinds))
        self._kind_of = [self._kinds.index(kind) for kind in kinds]
        self._parts: list[tuple[slice, Update, Rows]] = []
        data, start = values.detach(), 0
        for name, group in itertools.groupby(options, lambda o: o.optimizer):
            part = slice(start, start := start + len(list(group)))
            kept = [moment[part] for moment in moments]
            rows = Rows(data[part], kept, self.rates[part], decay[part], self.step)
            self._parts.append((part, UPDATES[name], rows))

    def set_rates(self, *, epoch: int, step: int) -> None:
        """Set the learning rate of every candidate for the next step."""
        at = (epoch, min(step, self._moving))
        if at == self._rates_at:
            return
        self._rates_at = at
        rates = [learning_rate(kind, epoch=epoch, step=step) for kind in self._kinds]
        if len(rates) == 1:
            self.rates.fill_(rates[0])
            return
        each = [rates[kind] for kind in self._kind_of]
        self.rates.copy_(torch.tensor(each, dtype=torch.float64).view(-1, 1))

    @torch.no_grad()
    def __call__(self, grad: Tensor) -> None:
        self.step += 1
        if self.clipped:
            norms = torch.linalg.vector_norm(grad, dim=1, keepdim=True)
            grad = grad * (self.clips / (norms + 1e-6)).clamp(max=1.0)
        for part, update, rows in self._parts:
            update(rows, grad[part])
