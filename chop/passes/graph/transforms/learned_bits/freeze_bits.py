"""Make ordinary quantised layers of layers that have learned their bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chop.dotted import deepsetattr
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms import metadata_sync as sync
from chop.passes.graph.transforms.quantize.quantize import note_quantized
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.graph.transforms.quantize.quantized_modules.format_tensors import tensor_name
from chop.passes.graph.transforms.quantize.quantized_modules.widths import LearnsWidths


@graph_pass("freeze_bits", "transform", needs=("common",))
def freeze_bits_transform_pass(graph: MaseGraph) -> dict[str, Any]:
    """Make ordinary quantised layers of all layers that learn their bits; outputs stay equal.

    A layer with bits per tensor gets the format `integer`, others `mixed_integer` with their
    bits, which are not trained any more; those that have it already stay.
    """
    mixed = [
        (layer, nodes)
        for layer, nodes in sync.calls(graph).items()
        if isinstance(layer, Quantized) and isinstance(layer, LearnsWidths)
    ]
    if not mixed:
        raise PassArgsError("the graph has no layer that learns its bits; run learn_bits first")
    layers = [(layer, nodes) for layer, nodes in mixed if _learns(layer)]
    for layer, nodes in layers:
        deepsetattr(graph.model, str(nodes[0].target), frozen_layer(layer))
        for node in nodes:
            note_quantized(graph, node)
    graph.model.recompile()
    return {"frozen": [node.name for _, nodes in layers for node in nodes]}


def _learns(layer: Any) -> bool:
    return bool(layer.width_parameters())


def frozen_layer(layer: Quantized) -> Quantized:
    """Return a layer with the bits that another has learned; both share their parameters."""
    bits = {name: pair for name in layer.formats if (pair := layer.bits_of(name)) is not None}
    formats: dict[str, Any] = {n: fmt for n, fmt in layer.current_formats().items() if n in bits}
    uniform = all(
        fmt.granularity == "tensor" and fmt.mean_width for fmt in formats.values()
    )  # a number of no bits has no format but this one
    config: dict[str, Any] = {"name": "integer" if uniform else "mixed_integer"}
    for operand, fmt in formats.items():
        keys = ["width", "frac_width", "signed", "rounding", "overflow"]
        keys += [] if uniform else ["granularity"]
        config |= {f"{operand}_{key}": getattr(fmt, key) for key in keys}
        if not uniform and fmt.sample_shape is not None:
            config[f"{operand}_sample_shape"] = list(fmt.sample_shape)
    new = type(layer).__new__(type(layer))
    vars(new).update(sync.own_attributes(layer))
    vars(new).pop("reads_input", None)  # only the costs of learned bits need it
    for name in layer.format_tensors():
        new._parameters.pop(name, None)
        new._buffers.pop(name, None)
    new.configure(config)
    if not uniform:
        tensors = {
            tensor_name(operand, kind): _frozen(part)
            for operand, pair in bits.items()
            for kind, part in zip(("integer_bits", "frac_bits"), pair, strict=True)
        }
        new.set_tensors(new.formats, tensors)
    return new


def _frozen(bits: Tensor) -> Tensor:
    """Return numbers of bits as integers."""
    return bits.detach().round().clamp(-128, 127).to(torch.int8).clone()
