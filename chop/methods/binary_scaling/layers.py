"""Binary layers with trained scales: signs of inputs times scaled signs of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from chop.ir.graph.tensor_rules import TensorRule
from chop.numerics import NumberFormat
from chop.numerics.base import from_config
from chop.numerics.binary import Binary
from chop.passes.graph.transforms.pruning.masks import masks_of
from chop.passes.graph.transforms.quantize.config import check_known, known_keys, without_na
from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized
from chop.passes.graph.transforms.quantize.quantized_modules.conv import QuantConv2d
from chop.passes.graph.transforms.quantize.quantized_modules.linear import QuantLinear
from chop.passes.graph.transforms.quantize.variants import layer_variant

FORMAT = "binary"  # configs have the keys of this format


class BinaryScaling(Quantized):
    """y = |gamma| · (binary input) (binary weight times its mean magnitude) + bias.

    Each output channel of the weight has its own mean, and `gamma` is trained. Pruned weights stay
    zero. The bias is not rounded. With `binary_training = false` only `gamma` is applied.
    """

    format_name: ClassVar[str | None] = "binary_scaling"
    variant_name: ClassVar[str]
    weight: Tensor
    gamma: nn.Parameter

    @classmethod
    def check_config(cls, config: Mapping[str, Any]) -> None:
        check_known("binary_scaling", config, known_keys(FORMAT))
        if config.get("binary_training") not in (None, True, False):
            raise ValueError(f"binary_training is {config['binary_training']!r}; use true or false")
        _formats_of(config)

    def configure(self, config: Mapping[str, Any]) -> Self:
        config = {**without_na(config), "name": "binary_scaling"}
        self.check_config(config)
        self._take(config)
        if "gamma" not in self._parameters:
            self.gamma = nn.Parameter(torch.ones_like(self.weight.flatten()[0].detach()))
        return self

    def derive(self) -> None:
        """Check the config of a loaded layer, and make its formats."""
        self.check_config(self.config)
        self._take(self.config)

    def tensor_rules(self) -> dict[str, TensorRule]:
        return {**super().tensor_rules(), "gamma": TensorRule(())}

    def _take(self, config: Mapping[str, Any]) -> None:
        self.config, self._kept = config, {}
        off = config.get("bypass") or config.get("binary_training") is False
        self.formats: dict[str, NumberFormat] = {} if off else _formats_of(config)

    def q_parameter(self, name: str) -> Any:
        value = super().q_parameter(name)
        if name != "weight" or self.bypass:
            return value
        mask = masks_of(self).get("weight")
        kept = value if mask is None else value * mask
        return kept * self.gamma.abs()

    def get_quantized_weight(self) -> Tensor:
        weight: Tensor = self.q_parameter("weight")
        return weight


def _formats_of(config: Mapping[str, Any]) -> dict[str, NumberFormat]:
    formats = {o: from_config({**config, "name": FORMAT}, o) for o in ("data_in", "weight")}
    weight = formats["weight"]
    assert isinstance(weight, Binary)
    # without signs, a binary number is the mean magnitude or zero anyway
    formats["weight"] = replace(weight, scaled=bool(weight.bipolar))
    return formats


@layer_variant("linear", "binary_scaling")
class LinearBinaryScaling(BinaryScaling, QuantLinear):
    """A linear layer with binary inputs, scaled binary weights and a trained scale."""


@layer_variant("conv2d", "binary_scaling")
class Conv2dBinaryScaling(BinaryScaling, QuantConv2d):
    """A convolution with binary inputs, scaled binary weights and a trained scale."""
