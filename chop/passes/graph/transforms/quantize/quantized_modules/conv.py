"""Convolutions and transposed convolutions."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized, variants


class _QuantConv(Quantized):
    def forward(self, input: Tensor) -> Any:
        convolve: Any = self._conv_forward
        return self.q("data_out", convolve(*self.q_operands(input)))


class QuantConv1d(_QuantConv, nn.Conv1d): ...


class QuantConv2d(_QuantConv, nn.Conv2d): ...


class QuantConv3d(_QuantConv, nn.Conv3d): ...


class QuantConvTranspose1d(Quantized, nn.ConvTranspose1d): ...


class QuantConvTranspose2d(Quantized, nn.ConvTranspose2d): ...


class QuantConvTranspose3d(Quantized, nn.ConvTranspose3d): ...


LAYERS: tuple[type[Quantized], ...] = (
    QuantConv1d,
    QuantConv2d,
    QuantConv3d,
    QuantConvTranspose1d,
    QuantConvTranspose2d,
    QuantConvTranspose3d,
)
__getattr__ = variants(*LAYERS)
