"""Convolutions and transposed convolutions."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from chop.passes.graph.transforms.quantize.quantized_modules import base
from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized


class _QuantConv(Quantized):
    output_axis = 0

    def forward(self, input: Tensor) -> Any:
        convolve: Any = self._conv_forward
        return self.q("data_out", convolve(*self.q_operands(input)))


class QuantConv1d(_QuantConv, nn.Conv1d): ...


class QuantConv2d(_QuantConv, nn.Conv2d): ...


class QuantConv3d(_QuantConv, nn.Conv3d): ...


class _QuantConvTranspose(Quantized):
    output_axis = 1


class QuantConvTranspose1d(_QuantConvTranspose, nn.ConvTranspose1d): ...


class QuantConvTranspose2d(_QuantConvTranspose, nn.ConvTranspose2d): ...


class QuantConvTranspose3d(_QuantConvTranspose, nn.ConvTranspose3d): ...


LAYERS = base.layers_in(globals())
__getattr__ = base.variants(*LAYERS)
