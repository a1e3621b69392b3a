"""Observe the inputs of the layers of a graph that can be pruned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.utils.rnn import PackedSequence

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import OperandStats, SoftwareMeta, StatsTable, mase
from chop.passes.base import PassArgsError
from chop.passes.graph.describe.interpreter import GraphRunner, RunError, input_values

# called for each call of a layer with its node, the layer, and its input
Watch = Callable[[fx.Node, nn.Module, Tensor], None]


class _Watching(GraphRunner):
    def __init__(self, graph: MaseGraph, watch: Watch) -> None:
        super().__init__(graph.model)
        self.watch = watch

    def run_node(self, n: fx.Node) -> Any:
        from chop.passes.graph.transforms.pruning.plan import is_prunable

        if is_prunable(n):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            module = self.fetch_attr(str(n.target))
            data = args[0] if args else next(iter(kwargs.values()))
            self.watch(n, module, data.data if isinstance(data, PackedSequence) else data)
        return super().run_node(n)


def watch_layers(graph: MaseGraph, dummy_in: Mapping[str, Any] | None, watch: Watch) -> None:
    """Run the graph once and call `watch` for every layer that can be pruned; hooks are removed."""
    inputs = input_values(graph, dummy_in or {}, "dummy_in")
    try:
        _Watching(graph, watch).run_unchanged(inputs)
    except RunError as error:
        raise PassArgsError(str(error)) from error.__cause__


def software_entry(node: fx.Node, operand: str) -> OperandStats:
    """Return `software.args.<operand>`, creating it if necessary."""
    parameters = mase(node).parameters
    if not parameters.get("software"):
        parameters.software = SoftwareMeta(args={}, results={})
    args: StatsTable = parameters.software.args
    if operand not in args:
        args[operand] = {"stat": {}}
    entry: OperandStats = args[operand]
    return entry
