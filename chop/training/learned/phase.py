"""Some steps of training for a stack of networks: the main run, or the retraining of designs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from chop.dataset.nested import Inputs
from chop.training.learned.batches import MemberBatches
from chop.training.learned.chain import chain_gradients
from chop.training.learned.members import Members
from chop.training.learned.options import FrontOptions
from chop.training.learned.prices import CONTROLS, Prices
from chop.training.learned.updates import RowAdam
from chop.training.steps import Captured
from chop.training.tasks import TrainingTask

logger = logging.getLogger(__name__)


class TrainingPhase:
    """Networks in training; `tensors` and `counts` are all of its state.

    Every step reads its batch, rate and prices from tensors, so that it can be captured.
    """

    def __init__(
        self,
        members: Members,
        batches: MemberBatches,
        options: FrontOptions,
        task: TrainingTask,
        *,
        steps: int,
        prices: Prices | None,
        rate: float,
    ) -> None:
        self.members, self.batches, self.options, self.task = members, batches, options, task
        self.steps, self.prices, self.top_rate = steps, prices, rate
        self.step = 0
        self.adam = RowAdam(members.values.detach(), options.width_factor)
        count, device = members.count, members.device
        self.price = torch.zeros(count, device=device)
        self.rate = torch.zeros((), device=device)
        self.moving = torch.ones_like(members.widths, dtype=torch.bool)
        self.frozen = torch.zeros(count, dtype=torch.bool)
        if prices is None:
            self.freeze(torch.ones(count, dtype=torch.bool))
        self.index = torch.zeros(count, batches.size, dtype=torch.int64, device=device)
        self._chain = chain_gradients(members, batches, options, task)
        self._losses: Callable[..., Tensor] = self._summed_loss
        if options.compile:
            self._losses = torch.compile(self._summed_loss)
        self._work: Callable[[], Any] = self._update
        if device.type == "cuda" and not options.compile and batches.is_plain:
            self._work = self._captured(Captured(self._update, device, before=lambda: None))

    def _captured(self, capture: Captured[None]) -> Callable[[], Any]:
        """Return work that is captured, unless a layer looks at values, which a graph cannot."""

        def work() -> None:
            try:
                capture()
            except RuntimeError as error:
                if "captur" not in str(error):
                    raise
                logger.info("Steps are not captured: %s", str(error).partition("\n")[0])
                self._work = self._update
                self._update()  # a capture that fails has changed nothing

        return work

    @property
    def part(self) -> float:
        """The part of the steps that were taken."""
        return self.step / self.steps

    @property
    def is_done(self) -> bool:
        return self.step >= self.steps

    def take(self) -> None:
        """Take one step."""
        self._steer()
        self.rate.fill_(self._rate(self.part))
        if self.prices is not None:
            self.price.copy_(self.prices.at(self.part))
        self.index.copy_(self.batches.indices(self.step))
        self._work()
        self.step += 1

    def freeze(self, which: Tensor) -> None:
        """Let the widths of some networks stay as they are."""
        self.frozen |= which.cpu()
        self.moving[self.frozen.to(self.moving.device)] = False

    @property
    def reach(self) -> float:
        """By how many bits a width can become smaller in all steps: Adam moves it by its rate."""
        first, last = self.options.price_starts, 1 - self.options.freeze_last
        parts = (step / self.steps for step in range(self.steps))
        rates = sum(self._rate(part) for part in parts if first <= part < last)
        return self.options.width_factor * rates

    def _rate(self, part: float) -> float:
        """Return the learning rate; a ramp keeps its rate until the widths are frozen."""
        low = min(self.options.eta_min, self.top_rate)
        if self.options.way == "ramp" and self.prices is not None:
            last = max(self.options.freeze_last, 1 / self.steps)
            part = max(0.0, (part - (1 - last)) / last)
        return low + (self.top_rate - low) * 0.5 * (1 + math.cos(math.pi * part))

    def _steer(self) -> None:
        """Tell the controller what the networks cost, and freeze widths near the end."""
        if self.prices is None or self.step % max(1, self.steps // CONTROLS):
            return
        is_last = self.options.freeze_last > 0 and self.part >= 1 - self.options.freeze_last
        if not self.prices.tensors and not (is_last and not self.frozen.all()):
            return
        costs = self.members.exact_costs()
        self.prices.tell(costs, self.part)
        if is_last:
            self.freeze(self.prices.is_met(costs))

    def _update(self) -> None:
        grad = self._gradients()
        self.adam(self.members.values.detach(), grad, self.rate, self.moving)
        self.members.widths.clamp_(*self.options.bounds)

    def _gradients(self) -> Tensor:
        if self._chain is not None:
            return self._chain(self.index, self.price)
        loss = self._losses(*self.batches.gathered(self.index))
        (grad,) = torch.autograd.grad(loss, self.members.values)
        return grad

    def _summed_loss(self, x: Inputs, y: Tensor, target: Tensor | None) -> Tensor:
        """Return the sum over all networks of loss + price · cost."""
        outputs, costs = self.members.forward(x, shared=False)
        loss: Tensor = vmap(self.task.loss)(outputs, y)
        if target is None:
            return (loss + self.price * costs).sum()
        share, temperature = self.options.distill, self.options.temperature
        # a mean over the samples of all networks, which vmap would compute one by one
        flat = (outputs.flatten(0, 1), target.flatten(0, 1))
        distance = len(outputs) * self.task.distance(*flat, temperature)
        return ((1 - share) * loss + self.price * costs).sum() + share * distance

    def restart(self, source: int, target: int) -> None:
        """Let a network continue from the state of another, at its own price."""
        self.members.copy_row(source, target)
        self.adam.copy_row(source, target)
        self.frozen[target] = self.frozen[source]
        self.moving[target] = self.moving[source]

    def at_bounds(self) -> list[int]:
        """Return how many numbers of bits of each network are at a bound."""
        low, high = self.options.bounds
        widths = self.members.widths
        counts: list[int] = ((widths <= low) | (widths >= high)).sum(1).tolist()
        return counts

    # --- snapshots

    @property
    def tensors(self) -> dict[str, Any]:
        """All of its state."""
        return {
            "step": self.step,
            "values": self.members.values.detach(),
            "buffers": self.members.buffers,
            "adam": self.adam.tensors,
            "prices": self.prices.tensors if self.prices is not None else {},
            "frozen": self.frozen,
        }

    @torch.no_grad()
    def load(self, saved: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.step = saved["step"]
        self.members.values.copy_(saved["values"])
        for name, buffer in self.members.buffers.items():
            buffer.copy_(saved["buffers"][name])
        self.adam.load(saved["adam"])
        for name, tensor in (self.prices.tensors if self.prices is not None else {}).items():
            tensor.copy_(saved["prices"][name])
        self.freeze(saved["frozen"])
