"""Correct biases: a quantised layer gets the mean results of the float one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from chop.ir.graph.mase_graph import MaseGraph
from chop.options import PositiveInt
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms.pruning.masks import masks_of
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.graph.transforms.repair import layers as repair
from chop.passes.graph.transforms.repair.layer_inputs import (
    LayerInputs,
    repair_in_order,
    samples_for,
)
from chop.passes.graph.transforms.repair.layers import QuantizedLayer
from chop.passes.select import By


@graph_pass("correct_bias", "transform", needs=("common",))
def correct_bias_transform_pass(
    graph: MaseGraph,
    *,
    by: By = "name",
    nodes: Sequence[str] = (),
    input_generator: Any = None,
    num_samples: PositiveInt = 1024,
) -> dict[str, Any]:
    """Add to the biases of quantised layers by how much their mean results are off.

    The mean over `num_samples` samples of `input_generator` of what each output channel gives in
    the float network, minus what it gives in the quantised one, is added to the bias, which is
    rounded in its format again. A layer without a bias gets one. Layers are corrected in the order
    of the graph, on the inputs that the corrected network gives them. `by` and `nodes` choose
    layers; by default all quantised linear layers and convolutions.
    """
    targets, skipped = repair.chosen_layers("correct_bias", graph, by, nodes, _why_not)
    batches = samples_for("correct_bias", graph, input_generator, num_samples)
    corrections = repair_in_order(graph, batches, targets, "Correcting biases", _corrected)
    return {"corrected": list(corrections), "corrections": corrections, "skipped": skipped}


correct_bias_transform_pass.chooses(repair.chosen_nodes)


def _why_not(target: QuantizedLayer) -> str | None:
    if "bias" in masks_of(target.layer):
        return "has a mask on its bias; run the pass 'prune_detach_hook' first"
    return None


def _corrected(target: QuantizedLayer, inputs: LayerInputs) -> tuple[Quantized, float]:
    """Return the layer with its bias corrected, and by how much at most."""
    layer = target.layer
    in_float = inputs.in_float[layer]
    total: Any = 0.0
    count = 0
    for quantised, float_input in inputs.of(target.nodes):
        gap = by_channel(layer, in_float(float_input)) - by_channel(layer, layer(quantised))
        total, count = total + gap.double().sum(1), count + gap.shape[1]
    correction = total / max(1, count)
    if not bool(torch.as_tensor(correction).isfinite().all()):
        raise PassArgsError(f"the results of node {target.name!r} are not finite; check the data")
    bias: Any = layer._parameter("bias")
    before = torch.zeros_like(correction) if bias is None else layer.q("bias", bias.detach())
    new = with_bias(layer, (before + correction).to(layer._parameter("weight").dtype))
    return new, (new._parameter("bias") - before).abs().max().item()


def with_bias(layer: Quantized, bias: Tensor) -> Quantized:
    """Return a copy of a layer with a bias, rounded in its format."""
    new = repair.with_parameter(layer, "bias", bias)
    if layer._parameter("bias") is None:  # nor has its format the tensors that it needs
        kept = {name: tensor.detach() for name, tensor in new.format_tensors().items()}
        new.set_tensors(new.formats, new.initial_tensors(new.formats) | kept)
    return repair.with_parameter(new, "bias", new.q("bias", bias))


def by_channel(layer: nn.Module, results: Tensor) -> Tensor:
    """Return the results of a layer as [output channels, all else]."""
    if not isinstance(layer, _ConvNd):
        return results.flatten(0, -2).mT if results.ndim > 1 else results[:, None]
    channels = 1 if results.ndim == len(layer.kernel_size) + 2 else 0
    return results.movedim(channels, 0).flatten(1)
