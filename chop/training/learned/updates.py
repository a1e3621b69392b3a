"""Adam for rows of parameters, which leaves a row alone whose gradients are not finite."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chop.training.optimisers import BETAS, EPSILON


class RowAdam:
    """Moments and counts of steps for each row; `tensors` is all of its state.

    The last columns, which may be kept from moving, learn `factor` times as fast as the others.
    """

    def __init__(self, values: Tensor, factor: float = 1.0) -> None:
        self.factor = factor
        self.first, self.second = torch.zeros_like(values), torch.zeros_like(values)
        self.first.requires_grad_(False)
        self.second.requires_grad_(False)
        # in float64: 1 - 0.999 has few digits left in float32
        self.steps = torch.zeros(len(values), 1, dtype=torch.float64, device=values.device)
        self.skipped = torch.zeros_like(self.steps)

    @property
    def tensors(self) -> dict[str, Tensor]:
        names = ("first", "second", "steps", "skipped")
        return {name: getattr(self, name) for name in names}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Continue from saved tensors."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    def copy_row(self, source: int, target: int) -> None:
        """Let a row continue with the moments of another."""
        for name, tensor in self.tensors.items():
            if name != "skipped":
                tensor[target] = tensor[source]

    @torch.no_grad()
    def __call__(self, values: Tensor, grad: Tensor, rate: Tensor, moving: Tensor) -> None:
        """Update the rows; `moving` tells which numbers of the last columns may change.

        A row with a gradient that is not finite keeps its values and moments.
        """
        finite = grad.sum(1, keepdim=True).isfinite()  # as no number that is not finite cancels
        self.steps += finite
        self.skipped += ~finite
        tensors = (values, self.first, self.second)
        start = values.shape[1] - moving.shape[1]
        last = [tensor[:, start:] for tensor in tensors]
        kept = [_Unmoved(tensors, finite), _Unmoved(last, moving)]
        self._update(values, grad, rate, start)
        for each in kept:
            each.restore()

    def _update(self, values: Tensor, grad: Tensor, rate: Tensor, start: int) -> None:
        self.first.lerp_(grad, 1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
        count = self.steps.clamp(min=1)
        whole, root = 1 - BETAS[0] ** count, (1 - BETAS[1] ** count).sqrt()
        size = self.second.sqrt().div_(root.to(grad.dtype)).add_(EPSILON)
        change = torch.div(self.first, size, out=size)
        if self.factor != 1:
            change[:, start:].mul_(self.factor)
        values.addcmul_(change, (-rate / whole).to(grad.dtype))


class _Unmoved:
    """Numbers that an update must leave alone; on a CPU nothing is copied if there are none."""

    def __init__(self, tensors: Sequence[Tensor], changes: Tensor) -> None:
        self.tensors, self.changes = tensors, changes
        needed = changes.is_cuda or not bool(changes.all())  # a captured step cannot decide
        self.before = [tensor.clone() for tensor in tensors] if needed else []

    def restore(self) -> None:
        for tensor, before in zip(self.tensors, self.before, strict=False):
            tensor.copy_(torch.where(self.changes, tensor, before))
