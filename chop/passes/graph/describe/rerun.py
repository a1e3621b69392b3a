"""Run a graph once, then again from any node on; other activations are reused."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph.describe.in_place import latest_values, writes_in_place
from chop.passes.graph.describe.nodes import load_arg

Values = dict[str, Any]  # the result of each node, by its name


class Rerun:
    """A copy of a graph that runs node by node in eval mode; nodes are looked up by name."""

    def __init__(self, graph: MaseGraph) -> None:
        self.graph = graph
        graph.model.eval()
        self.nodes: dict[str, fx.Node] = {node.name: node for node in graph.nodes}
        self._interpreter = fx.Interpreter(graph.model)
        self._in_place = {node.name for node in graph.nodes if writes_in_place(node)}
        self._latest = latest_values(graph.fx_graph)

    def node(self, name: str, values: MutableMapping[str, Any]) -> Any:
        """Compute one node from the results of others, which are not modified."""
        node = self.nodes[name]
        written = {old: values[new] for old, new in self._latest[name].items()}
        args, kwargs = load_arg((node.args, dict(node.kwargs)), ChainMap(written, values))
        if name in self._in_place:
            args, kwargs = tree_map_only(Tensor, torch.clone, (args, kwargs))
        return getattr(self._interpreter, node.op)(node.target, args, kwargs)

    def all(self, inputs: Sequence[Any]) -> Values:
        """Compute the result of every node for these inputs."""
        values: Values = {}
        arguments = iter(inputs)
        for name, node in self.nodes.items():
            values[name] = next(arguments) if node.op == "placeholder" else self.node(name, values)
        return values

    def after(self, name: str, result: Any, values: Values) -> tuple[Any, int]:
        """Return the output if node `name` gave `result`, and how many nodes were run for it."""
        changed: Values = {name: result}
        known = ChainMap(changed, values)
        for later, node in self.nodes.items():
            latest = self._latest[later]
            sources = {latest.get(source.name, source.name) for source in node.all_input_nodes}
            if later != name and sources & changed.keys():
                changed[later] = self.node(later, known)
        return known[next(reversed(self.nodes))], len(changed)
