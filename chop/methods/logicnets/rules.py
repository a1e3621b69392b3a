"""LogicNets layers."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from chop.integers import NeuronTables, QuantizeInput, Scale, Word
from chop.ir.ops import module_op
from chop.methods.logicnets.layers import LogicNets
from chop.passes.graph.describe.interpreter import evaluation_mode
from chop.passes.graph.transforms.integers.converter import Converter, NodeCall, converts, shape_of
from chop.passes.graph.transforms.integers.neurons import TABLE_BITS, NeuronLayout
from chop.passes.graph.transforms.integers.values import Known, Unrounded, Value
from chop.passes.graph.transforms.quantize.quantized_modules.neurons import Conv2dNeurons


class MergedLayers(nn.Module):
    """The layers that are merged before the neurons of a layer, which the network's input takes."""

    def __init__(self, layer: LogicNets) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.after_input_layers(x)


@converts("linear_logicnets", "conv2d_logicnets")
def logicnets(call: NodeCall, to: Converter) -> Value:
    """Return the results of a LogicNets layer, with the merged layers in its tables."""
    layer = call.module
    assert isinstance(layer, LogicNets)
    layer.refresh_tables()
    source = _rounded_input(layer, call, to)
    seen, valid = layer.seen_inputs().cpu(), layer.valid.cpu()
    layout = NeuronLayout.of(layer, to.codes(source).shape)
    reads = torch.where(valid, layout.places[:, seen], -1)[layout.row, layout.neuron]
    op = NeuronTables(
        reads,
        layout.neuron,
        layer.tables.cpu(),
        layer.input_format.width,
        Scale.power(-layer.output_format.frac_width),
        layout.shape,
    )
    return to.add(call.node.name, op, [source.name], call.node)


def _rounded_input(layer: LogicNets, call: NodeCall, to: Converter) -> Known:
    """Return the codes that the tables read; merged layers before them are tables of their own."""
    if not (layer.is_fused and layer.input_layers):
        return to.known(call.source, call)
    word = to.word(layer.input_format, "data_in", call)
    value = to.value_of(call.source, call)
    if call.source.op == "placeholder":
        return _network_input(layer, word, call, to)
    if isinstance(value, Unrounded) and value.exact is None:
        raise call.refusal(
            f"merges layers that take {value.what} in float; merge them into the layer before it"
        )
    source = value.exact() if isinstance(value, Unrounded) and value.exact is not None else value
    if not isinstance(source, Known):
        raise call.refusal("merges layers that take a constant; compute it beforehand")
    return _merged_tables(layer, to.uniform(source, call), word, call, to)


def _network_input(layer: LogicNets, word: Word, call: NodeCall, to: Converter) -> Known:
    """Return the codes of an input of the network after the merged layers, computed in float."""
    node, name = call.source, str(call.source.target)
    merged = ", ".join(type(each).__name__ for each in layer.input_layers)
    to.integers.notes.append(
        f"{call.node.name}: {merged} before it stays in float, as it takes the input of the network"
    )
    last_layer: Any = type(layer.input_layers[-1])
    last = module_op(last_layer)
    if last is not None and "non_negative" in last.traits:
        word = replace(word, low=max(word.low, 0))
    op = QuantizeInput(word, shape_of(node)[1:], MergedLayers(layer))
    return to.add(f"{node.name}_codes", op, [name], call.node)


def _merged_tables(
    layer: LogicNets, source: Known, word: Word, call: NodeCall, to: Converter
) -> Known:
    """Return what merged layers make of codes: a table of one input per channel."""
    codes = to.codes(source)
    if codes.width > TABLE_BITS:
        raise call.refusal(
            f"merges layers that take codes of {codes.width} bits; quantise their input to at most "
            f"{TABLE_BITS}, so that they become tables"
        )
    dim = 0 if isinstance(layer, Conv2dNeurons) else len(codes.shape) - 1
    index = torch.arange(1 << codes.width)
    every = index - ((index >> codes.width - 1) << codes.width) if codes.signed else index
    sizes = [n if d == dim else 1 for d, n in enumerate(codes.shape)]
    x = codes.values(every).float().view(-1, *[1] * len(sizes)).expand(-1, *sizes)
    with torch.no_grad(), evaluation_mode(layer):
        results = layer.after_input_layers(x.to(layer.weight.device)).cpu()
    tables = QuantizeInput(word, ()).run(results).view(len(index), -1).T
    count = torch.Size(codes.shape).numel()
    channel = torch.arange(sizes[dim]).view(sizes).expand(codes.shape).flatten()
    reads = torch.arange(count)[:, None]
    op = NeuronTables(
        reads, channel, tables.int().contiguous(), codes.width, word.scale, codes.shape
    )
    return to.add(f"{call.node.name}_in", op, [source.name], call.node)
