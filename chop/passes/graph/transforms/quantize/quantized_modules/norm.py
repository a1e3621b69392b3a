"""Normalisations: input and affine parameters are rounded, statistics stay in float."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from chop.passes.graph.transforms.quantize.quantized_modules import base
from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized


class QuantBatchNorm1d(Quantized, nn.BatchNorm1d): ...


class QuantBatchNorm2d(Quantized, nn.BatchNorm2d): ...


class QuantBatchNorm3d(Quantized, nn.BatchNorm3d): ...


class QuantInstanceNorm1d(Quantized, nn.InstanceNorm1d): ...


class QuantInstanceNorm2d(Quantized, nn.InstanceNorm2d): ...


class QuantInstanceNorm3d(Quantized, nn.InstanceNorm3d): ...


class QuantLayerNorm(Quantized, nn.LayerNorm): ...


class QuantGroupNorm(Quantized, nn.GroupNorm): ...


class QuantRMSNorm(Quantized, nn.RMSNorm):
    operands = ("data_in", "weight")

    def forward(self, x: Tensor) -> Any:  # torch calls it x here, and input everywhere else
        return super().forward(x)


LAYERS = base.layers_in(globals())
__getattr__ = base.variants(*LAYERS)
