"""Networks of truth tables on edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from chop.dataset.base import MaseDatasetInfo
from chop.methods.edge_tables import EdgeTable
from chop.methods.edge_tables.edge_functions import FunctionName
from chop.models.base import model
from chop.models.physical import SeqBlocks, physical_model

BITS_IN, BITS_OUT = (2.0, 3.0), (1.0, 4.0)  # to start with: integer and fraction bits


class TableNetwork(SeqBlocks):
    """Layers of tables on edges of `widths`, from input to output, with nothing between them."""

    def __init__(self, *widths: int, flatten: bool = False, **options: Any) -> None:
        layers: list[nn.Module] = [nn.Flatten()] if flatten else []
        layers += [EdgeTable(inputs, outputs, **options) for inputs, outputs in pairwise(widths)]
        super().__init__(*layers)


@physical_model("jsc-table")
def jsc_table(
    info: MaseDatasetInfo,
    *,
    hidden: int = 20,
    function: FunctionName = "mlp",
    function_size: int = 8,
    bits_in: Sequence[float] = BITS_IN,
    bits_out: Sequence[float] = BITS_OUT,
) -> nn.Module:
    """One hidden layer of tables on edges, 16-20-5 on JSC, with learned bit widths.

    `bits_in` and `bits_out` are the integer and fraction bits of an edge to start with.
    """
    return TableNetwork(
        info["num_features"],
        hidden,
        info["num_classes"],
        bits_in=bits_in,
        bits_out=bits_out,
        function=function,
        hidden=function_size,
    )


@model(
    "mlp-table",
    physical_data_point_classification=True,
    image_classification=True,
    regression=True,
)
def mlp_table(
    info: MaseDatasetInfo,
    *,
    hidden: Sequence[int] = (20,),
    function: FunctionName = "mlp",
    function_size: int = 8,
    bits_in: Sequence[float] = BITS_IN,
    bits_out: Sequence[float] = BITS_OUT,
) -> nn.Module:
    """Layers of tables on edges with hidden widths `hidden`; images are flattened.

    Bits are those of `jsc-table`. Every edge has a function of its own, so use few inputs.
    """
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden must be a list of positive widths, not {hidden!r}")
    inputs = info.num_features or math.prod(info["image_size"])
    return TableNetwork(
        inputs,
        *hidden,
        info["num_outputs"],
        flatten=not info.num_features,
        bits_in=bits_in,
        bits_out=bits_out,
        function=function,
        hidden=function_size,
    )
