"""The weight of a quantised linear layer as int8 codes, with the scale of each output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.methods.deploy.codes import (
    HIGHEST,
    LOWEST,
    Multiples,
    NotDeployed,
    check_width,
    input_multiples,
)
from chop.numerics import NumberFormat

MOST = 2**31 - 1  # of int32, in which products are added


@dataclass(frozen=True)
class WeightCodes:
    """weight = (codes + offset) · scale; offset and scale have a number per output."""

    codes: Tensor  # int8 [outputs, inputs]
    offset: Tensor  # int64 [outputs]
    scale: Tensor  # float64 [outputs]

    @classmethod
    def of(cls, layer: Any) -> WeightCodes:
        """Return the codes of what a quantised linear layer multiplies with."""
        multiples, scale = _multiples(layer, layer.formats["weight"])
        low, high = multiples.aminmax(dim=1)
        offset = torch.where((low >= LOWEST) & (high <= HIGHEST), 0, low - LOWEST)
        codes = (multiples - offset.unsqueeze(1)).to(torch.int8).contiguous()
        return cls(codes, offset, scale.double().expand(len(codes)))

    def correction(self, data: Multiples) -> Tensor:
        """Return what offsets add to each output, besides the weights' times the sum of codes.

        Σ (x + a)(w + b) = Σ x·w + b Σ x + (a Σ w + n·a·b)
        """
        total = self.codes.sum(1, dtype=torch.int64)
        return data.offset * (total + self.codes.shape[1] * self.offset)

    def check_sums(self, data: Multiples) -> None:
        """Refuse a layer whose sums may not fit into int32."""
        inputs, offset = self.codes.shape[1], self.offset.abs()
        sizes = self.codes.short().abs().sum(1, dtype=torch.int64)  # int8 does not hold 128
        parts = -LOWEST * sizes + -LOWEST * inputs * offset + self.correction(data).abs()
        most = int(parts.max()) if len(parts) else 0
        if most > MOST:
            raise NotDeployed(
                f"its sums of {inputs:,} products may reach {most:,}, and int32 holds {MOST:,}; "
                f"use fewer bits, or split the layer"
            )


def _multiples(layer: Any, fmt: NumberFormat) -> tuple[Tensor, Tensor]:
    """Return [outputs, inputs] whole multiples of scales, int64, and the scale of each output."""
    weight = layer._parameter("weight").detach().float()
    by_output = layer.output_axis == 0
    grid = layer.grid_of("weight")
    if bool(weight.isnan().any()):
        raise NotDeployed("has a NaN; train it again, or load other weights")
    if grid is not None:
        check_width(fmt)
        if grid.axis is not None and grid.axis % weight.dim() != layer.output_axis:
            raise NotDeployed(f"has a scale per input; use weight_axis = {layer.output_axis}")
        whole = grid.encode(weight) - grid.zero_point(weight.shape).to(weight.device)
        scale = torch.tensor(grid.scales, dtype=torch.float32, device=weight.device)
    elif fmt.has_row_codes and not by_output:
        raise NotDeployed(
            "has a scale per input, as its weight is stored transposed; quantise it to integer or "
            "affine"
        )
    else:
        steps, rows = input_multiples(fmt).of(weight)
        assert rows is not None, "formats with one scale have a grid"
        whole, scale = steps.round().to(torch.int64), rows.flatten()
    return (whole if by_output else whole.t()), scale
