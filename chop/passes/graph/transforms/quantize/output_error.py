"""How much the output of a network changes when operands of its nodes are rounded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map_only

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS
from chop.ir.probabilities import INVERSES, final_op
from chop.numerics import NumberFormat
from chop.passes.graph.describe.interpreter import restored_random_state
from chop.passes.graph.describe.nodes import load_arg
from chop.passes.graph.describe.rerun import Rerun, Values
from chop.passes.graph.transforms.quantize.quantized_funcs import float_target, quantized_function
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized, layer_for, variant

Formats = Mapping[str, NumberFormat]  # by operand
Distance = Literal["divergence", "squared"]
INPUTS = "calibration_inputs"  # key of a graph's meta: inputs that `calibrate` has kept


class OutputError:
    """Runs a float graph on a few inputs, with some of its operands rounded."""

    def __init__(self, graph: MaseGraph, inputs: list[Any], distance: Distance) -> None:
        self._rerun, self._distance = Rerun(graph.clone()), distance
        self._layers: dict[str, tuple[Formats, Quantized]] = {}  # by node
        with torch.no_grad(), restored_random_state(graph.model):
            self._exact = self._rerun.all(tree_map_only(Tensor, torch.clone, inputs))
        inputs_of = (name for name, node in self._rerun.nodes.items() if node.op == "placeholder")
        self._inputs = {name: self._exact[name] for name in inputs_of}
        self._last = next(reversed(self._exact))
        final = final_op(graph.model) if distance == "divergence" else None
        self._scores_of = INVERSES[final[1]] if final is not None else None
        self._wanted = self._compared(self._exact[self._last])

    @classmethod
    def of(cls, graph: MaseGraph) -> OutputError | None:
        """Return the error on the inputs that `calibrate` has kept; None without them."""
        kept = graph.meta.get(INPUTS)
        return None if kept is None else cls(graph, kept["inputs"], kept["distance"])

    def alone(self, node: str, formats: Formats) -> float:
        """Return the error if only operands of that node are rounded."""
        with torch.no_grad(), restored_random_state(self._rerun.graph.model):
            result = self._result(node, formats, self._exact)
            output, _ = self._rerun.after(node, result, self._exact)
        return self._error(output)

    def run(
        self,
        design: Mapping[str, Formats],
        values: Mapping[str, Any] | None = None,
        changed: Collection[str] = (),
    ) -> Values:
        """Return the result of every node if operands of all these nodes are rounded.

        With the `values` of another design, which differs from it in the nodes `changed`, only
        what depends on these is computed.
        """
        values = self._inputs if values is None else values
        whole, new = values is self._inputs, dict(values)
        stale = set(changed)
        with torch.no_grad(), restored_random_state(self._rerun.graph.model):
            for name, node in self._rerun.nodes.items():
                if node.op == "placeholder":
                    continue
                if whole or name in stale or any(n.name in stale for n in node.all_input_nodes):
                    stale.add(name)
                    rounded = name in design
                    new[name] = (
                        self._result(name, design[name], new)
                        if rounded
                        else self._rerun.node(name, new)
                    )
        return new

    def of_run(self, values: Values) -> float:
        """Return the error of the output among the results of all nodes."""
        return self._error(values[self._last])

    def _result(self, name: str, formats: Formats, values: Mapping[str, Any]) -> Any:
        node = self._rerun.nodes[name]
        args, kwargs = load_arg((node.args, dict(node.kwargs)), values)
        args, kwargs = tree_map_only(Tensor, torch.clone, (args, kwargs))  # it may write in place
        fmt = type(next(iter(formats.values())))
        if node.op != "call_module":
            op = OPS[mase(node).common.mase_op]
            return quantized_function(float_target(node), op, fmt).rounded(formats, args, kwargs)
        return self._layer(node, formats, fmt)(*args, **kwargs)

    def _layer(self, node: fx.Node, formats: Formats, fmt: type[NumberFormat]) -> Quantized:
        """Return the layer of a node in these formats; the last one keeps its rounded weights."""
        if self._layers.get(node.name, ({},))[0] != formats:
            layer = self._rerun.graph.modules[str(node.target)]
            generic = layer_for(type(layer))
            assert generic is not None, "only nodes that can be quantized are rounded"
            rounded = variant(generic, fmt).from_float(layer, {"name": fmt.name, "bypass": True})
            rounded.formats = dict(formats)
            self._layers[node.name] = dict(formats), rounded
        return self._layers[node.name][1]

    def _error(self, output: Any) -> float:
        pairs = zip(self._compared(output), self._wanted, strict=True)
        return sum(_distance(now, wanted, self._distance) for now, wanted in pairs)

    def _compared(self, output: Any) -> list[Tensor]:
        """Return the outputs, and of a network that ends in softmax their scores."""
        leaves = (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
        tensors = [leaf for leaf in leaves if leaf.is_floating_point()]
        return [(self._scores_of(x) if self._scores_of else x).double() for x in tensors]


def _distance(now: Tensor, wanted: Tensor, distance: Distance) -> float:
    """Return the divergence of the classes' probabilities, or the squared error per value."""
    if distance == "divergence" and wanted.ndim > 1 and wanted.shape[-1] > 1:
        ours, theirs = now.log_softmax(-1), wanted.log_softmax(-1)
        return float((theirs.exp() * (theirs - ours)).sum(-1).mean())
    return float((now - wanted).square().mean())
