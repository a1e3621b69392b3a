"""The float simulation of a quantised network, node by node beside its integers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map_only

from chop.integers import IntegerGraph, IntegerNode, Requantize
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.passes.graph.describe.formats import node_formats
from chop.passes.graph.describe.interpreter import GraphRunner
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.graph.transforms.quantize.quantized_modules.neurons import Neurons


def in_double(graph: MaseGraph) -> fx.GraphModule:
    """Return the simulation in float64, with the codes that float32 gives weights and biases."""
    model = graph.clone().model
    for layer in model.modules():
        if not isinstance(layer, Quantized):
            continue
        for name, parameter in layer.named_parameters(recurse=False):
            if name in layer.formats and layer.grid_of(name) is not None:
                parameter.data = layer.q_parameter(name).detach()
    return model.double()


def roundings_of(n: fx.Node, integers: IntegerGraph) -> Iterator[tuple[IntegerNode, fx.Node]]:
    """Yield the requantisations of the operands of a node, each with the node that it rounds.

    Nodes that round a value alike share a requantisation.
    """
    sources = {integers.values.get(source.name): source for source in n.all_input_nodes}
    made = [each for each in integers.nodes.values() if each.source == n.name]
    read = {name for each in made for name in each.inputs}
    for each in integers.nodes.values():
        mine = each.source == n.name or each.name in read
        if mine and isinstance(each.op, Requantize) and each.inputs[0] in sources:
            yield each, sources[each.inputs[0]]


class SimulationRunner(GraphRunner):
    """Runs the float simulation of an integer graph, whose codes of a batch are known."""

    def __init__(
        self, model: fx.GraphModule, integers: IntegerGraph, codes: Mapping[str, Tensor]
    ) -> None:
        super().__init__(model)
        self.integers, self.codes = integers, codes

    def rounded_input(self, n: fx.Node, x: Any) -> Any:
        """Return an input on the grid of its codes, as near ties float32 and float64 differ."""
        roundings = self.integers.roundings.get(n.name, [])
        if len(roundings) != 1:
            return x
        name, _ = roundings[0]
        return self.integers.codes(name).values(self.codes[name]).to(x.dtype)

    def in_single(self, n: fx.Node) -> Tensor:
        """Run the function of a table in float32, in which its entries are computed."""
        taken, rounded = self.fetch_args_kwargs_from_env(n), node_formats(n).get("data_in")
        if isinstance(mase(n).module, Neurons):  # which may have merged layers before it
            rounded = None
        dtype = next(x.dtype for x in tree_leaves(taken) if isinstance(x, Tensor))

        def in_single(x: Tensor) -> Tensor:
            return (x if rounded is None else rounded(x)).float()

        args, kwargs = tree_map_only(Tensor, in_single, taken)
        module, call = mase(n).module, getattr(self, n.op)
        with torch.no_grad():
            if module is None:
                result: Tensor = call(n.target, args, kwargs)
            else:  # its parameters are float32 numbers, in float64 here
                result = copy.deepcopy(module).float()(*args, **kwargs)
        return result.to(dtype)
