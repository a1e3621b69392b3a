"""Distance of outputs from the float ones: noise, loss and accuracy over several batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

Loss = Callable[[Any, Any], Tensor]


@dataclass
class LayerScore:
    """Sums over all batches so far."""

    signal: float = 0.0
    noise: float = 0.0
    loss: float = 0.0
    correct: int = 0
    samples: int = 0

    def add(self, output: Any, wanted: Any, target: Tensor | None, loss: Loss | None) -> None:
        """Compare `output` with the float output, and with the target if there is one."""
        for got, expected in zip(_numbers(output), _numbers(wanted), strict=True):
            self.signal += expected.double().square().sum().item()
            self.noise += (got.double() - expected.double()).square().sum().item()
        if target is None:
            return
        scores = next(iter(_numbers(output)))
        value = loss(output, target) if loss else _usual_loss(scores, target)
        self.loss += float(value) * len(target)
        self.samples += len(target)
        if not target.is_floating_point():
            self.correct += int((scores.argmax(1) == target).sum())

    @property
    def sqnr(self) -> float:
        """Signal-to-quantisation-noise ratio in decibels; infinite if there is no noise."""
        if self.noise == 0.0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf

    def row(self, float_score: LayerScore | None = None, classes: bool = False) -> dict[str, float]:
        """Return the scores and their differences from the float scores."""
        scores = {"sqnr": self.sqnr}
        if self.samples:
            scores["loss"] = self.loss / self.samples
        if self.samples and classes:
            scores["accuracy"] = self.correct / self.samples
        if float_score is not None:
            float_scores = float_score.row(classes=classes)
            scores |= {f"{k}_change": v - float_scores[k] for k, v in scores.items() if k != "sqnr"}
        return scores


def _numbers(output: Any) -> list[Tensor]:
    return [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]


def _usual_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Cross entropy for class indices, mean squared error for other targets."""
    if target.is_floating_point():
        return F.mse_loss(scores, target)
    return F.cross_entropy(scores.to(torch.float32), target)
