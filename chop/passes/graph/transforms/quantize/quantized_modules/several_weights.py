"""Layers with several weights and biases: all weights share a format, and so do all biases."""

from __future__ import annotations

from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized
from chop.passes.graph.transforms.quantize.quantized_modules.format_tensors import parameter_names


class SeveralWeights(Quantized):
    """Mixin before a float layer that has its parameters under names such as `weight_ih_l0`."""

    def _present(self) -> list[str]:
        return [*self.operands]

    @classmethod
    def operand_of(cls, parameter: str) -> str:
        return "bias" if "bias" in parameter else "weight"

    def _rounded_parameters(self) -> list[str]:
        return parameter_names(self)
