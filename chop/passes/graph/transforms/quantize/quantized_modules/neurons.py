"""Layers as neurons: each result has a row of inputs, of which a neuron reads a part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized
from chop.passes.graph.transforms.quantize.quantized_modules.conv import QuantConv2d
from chop.passes.graph.transforms.quantize.quantized_modules.linear import QuantLinear
from chop.registry import not_defined


class Neurons(Quantized):
    """What a table layer needs to know about the layer that it is built from."""

    weight: Tensor
    bias: Any

    num_neurons: int
    num_inputs: int  # for which one neuron has weights

    def __init__(self, *args: Any, config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        if config is None:
            raise TypeError(
                f"{type(self).__name__} needs config = {{'name': {self.format_name!r}, …}}"
            )
        super().__init__(*args, config=config, **kwargs)

    def rows(self, x: Tensor) -> Tensor:
        """[rows, numbers]: the inputs of the neurons, one row per result."""
        raise not_defined(self, "rows", "layer of neurons")

    def from_rows(self, results: Tensor, x: Tensor) -> Tensor:
        """Reshape results [rows, neurons] to the layer's output for `x`."""
        raise not_defined(self, "from_rows", "layer of neurons")

    def first_inputs(self) -> Tensor:
        """[neurons]: position in a row of each neuron's first input."""
        return torch.zeros(self.num_neurons, dtype=torch.long, device=self.weight.device)


class LinearNeurons(Neurons, QuantLinear):
    """One row is the features of one sample."""

    @property
    def num_neurons(self) -> int:
        return self.out_features

    @property
    def num_inputs(self) -> int:
        return self.in_features

    def rows(self, x: Tensor) -> Tensor:
        return x.reshape(-1, self.in_features)

    def from_rows(self, results: Tensor, x: Tensor) -> Tensor:
        return results.reshape(*x.shape[:-1], self.out_features)


class Conv2dNeurons(Neurons, QuantConv2d):
    """One row is a patch of all channels; a neuron reads the part of its group."""

    @property
    def num_neurons(self) -> int:
        return self.out_channels

    @property
    def num_inputs(self) -> int:
        height, width = self.kernel_size
        return self.in_channels // self.groups * height * width

    def rows(self, x: Tensor) -> Tensor:
        if x.dim() not in (3, 4) or x.shape[-3] != self.in_channels:
            raise ValueError(
                f"the layer takes [batch, {self.in_channels}, height, width], not {list(x.shape)}"
            )
        images = self._padded(x if x.dim() == 4 else x[None])
        patches = F.unfold(images, self.kernel_size, self.dilation, 0, self.stride)
        return patches.transpose(1, 2).flatten(0, 1)

    def _padded(self, images: Tensor) -> Tensor:
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(images, self._reversed_padding_repeated_twice, mode)

    def from_rows(self, results: Tensor, x: Tensor) -> Tensor:
        height, width = self._result_size(x)
        images = results.reshape(-1, height * width, self.out_channels).transpose(1, 2)
        return images.reshape(*x.shape[:-3], self.out_channels, height, width)

    def _result_size(self, x: Tensor) -> list[int]:
        left, right, top, bottom = self._reversed_padding_repeated_twice
        padded = (x.shape[-2] + top + bottom, x.shape[-1] + left + right)
        geometry = zip(padded, self.kernel_size, self.dilation, self.stride, strict=True)
        return [(size - d * (k - 1) - 1) // s + 1 for size, k, d, s in geometry]

    def first_inputs(self) -> Tensor:
        neurons = torch.arange(self.out_channels, device=self.weight.device)
        return neurons // (self.out_channels // self.groups) * self.num_inputs
