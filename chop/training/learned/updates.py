"""Adam for rows of parameters, which leaves a row alone whose gradients are not finite."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.training.population.updates import BETAS, EPSILON


class RowAdam:
    """Moments and counts of steps for each row; `tensors` is all of its state."""

    def __init__(self, values: Tensor) -> None:
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
        """Update the rows; `moving` is 1 for each number that may change, else 0.

        A row with a gradient that is not finite keeps its values and moments.
        """
        finite = grad.isfinite().all(1, keepdim=True)
        self.steps += finite
        self.skipped += ~finite
        moving = moving * finite
        grad = torch.where(finite, grad, torch.zeros_like(grad))
        self.first.add_((grad - self.first) * moving, alpha=1 - BETAS[0])
        self.second.add_((grad * grad - self.second) * moving, alpha=1 - BETAS[1])
        count = self.steps.clamp(min=1)
        whole, root = 1 - BETAS[0] ** count, (1 - BETAS[1] ** count).sqrt()
        size = self.second.sqrt() / root.to(grad.dtype) + EPSILON
        values.sub_(self.first / size * (rate / whole).to(grad.dtype) * moving)
