"""Activations and pools: their input is rounded, then the float layer runs."""

from __future__ import annotations

from torch import nn

from chop.ir.ops import OPS
from chop.numerics import NumberFormat
from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized, variants


class _QuantActivation(Quantized):
    operands = ("data_in",)


class QuantReLU(_QuantActivation, nn.ReLU):
    def refine(self, operand: str, fmt: NumberFormat) -> NumberFormat:
        """Unsigned: negative inputs become 0 anyway, so the sign bit can extend the range."""
        return fmt.for_operand(operand, non_negative=operand == "data_in")


def _quantized(cls: type[nn.Module]) -> type[Quantized]:
    """QuantGELU for nn.GELU, without special behaviour."""
    return type(f"Quant{cls.__name__}", (_QuantActivation, cls), {"__module__": __name__})


LAYERS: tuple[type[Quantized], ...] = (
    QuantReLU,
    *(
        _quantized(cls)
        for op in OPS.values()
        if op.quantized == ("data_in",)
        for cls in op.modules
        if cls is not nn.ReLU
    ),
)
globals().update({layer.__name__: layer for layer in LAYERS})
__getattr__ = variants(*LAYERS)
