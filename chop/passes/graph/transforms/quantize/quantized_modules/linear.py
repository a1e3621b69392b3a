"""Linear layers."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized, variants


class QuantLinear(Quantized, nn.Linear):
    """y = x W' + b with all three operands rounded."""

    def forward(self, input: Tensor) -> Any:
        return self.q("data_out", F.linear(*self.q_operands(input)))


__getattr__ = variants(QuantLinear)  # LinearInteger, LinearLog, …: one class per number format
