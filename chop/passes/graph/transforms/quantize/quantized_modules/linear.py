"""Linear layers."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir.ops import TransposedLinear
from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized, variants


class QuantLinear(Quantized, nn.Linear):
    """y = x W' + b with all three operands rounded."""

    output_axis = 0

    def forward(self, input: Tensor) -> Any:
        return self.q("data_out", F.linear(*self.q_operands(input)))


class QuantTransposedLinear(Quantized, TransposedLinear):
    """y = x W + b with all three operands rounded."""

    float_class = TransposedLinear
    output_axis = 1

    def forward(self, x: Tensor) -> Any:
        x, weight, bias = self.q_operands(x)
        return self.q("data_out", F.linear(x, weight.T, bias))


LAYERS: tuple[type[Quantized], ...] = (QuantLinear, QuantTransposedLinear)
__getattr__ = variants(*LAYERS)  # LinearInteger, LinearLog, …: one class per number format
