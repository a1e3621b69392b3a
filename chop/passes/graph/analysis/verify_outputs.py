"""The outputs of a whole network: the simulation beside the integer graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.integers import ArgMaxCodes, IntegerGraph, QuantizeInput, Word
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.nested import separated
from chop.passes.graph.analysis.layer_checks import LayerCheck, tie_reach, tolerance
from chop.passes.graph.analysis.simulation_runner import SimulationRunner, roundings_of
from chop.passes.graph.transforms.integers.converter import node_call
from chop.passes.graph.transforms.integers.needed import returned_nodes


class OutputRunner(SimulationRunner):
    """Runs the simulation in float64 from the inputs to the outputs.

    Nothing is taken from the integer graph but the side to which it rounds a tie.
    """

    def run_node(self, n: fx.Node) -> Any:
        resolved = {
            source: self._as_codes(self.env[source], rounding.op.word, rounding.name)  # type: ignore[attr-defined]
            for rounding, source in roundings_of(n, self.integers)
            if not self._several(n, source)
        }
        kept = {source: self.env[source] for source in resolved}
        self.env.update(resolved)
        try:
            return self._computed(n)
        finally:
            self.env.update(kept)

    def _several(self, n: fx.Node, source: fx.Node) -> bool:
        """Return whether a node rounds a value to several formats."""
        return [each for _, each in roundings_of(n, self.integers)].count(source) > 1

    def _computed(self, n: fx.Node) -> Any:
        made = [each for each in self.integers.nodes.values() if each.source == n.name]
        if n.op == "placeholder":
            return self.rounded_input(n, super().run_node(n))
        tabled = any(each.op.tabled for each in made)
        result = self.in_single(n) if tabled else super().run_node(n)
        roundings = self.integers.roundings.get(n.name, [])
        if len(roundings) == 1:
            ((name, word),) = roundings
            result = self._as_codes(result, word, name)
        for each in made:
            if isinstance(each.op, ArgMaxCodes):
                return self._as_place(n, each.op, result, self.codes[each.name])
        return result

    def _as_codes(self, x: Tensor, word: Word, name: str) -> Tensor:
        """Return values that round to the given codes where these lie beyond a tie."""
        own, step = self.codes[name], word.scale.value.to(x.device)
        steps = x.double() / step
        middle = own + 0.5 if word.rounding == "floor" else own
        near = (steps - middle).abs() <= 0.5 + tie_reach(steps)
        other = QuantizeInput(word, ()).run(x) != own
        return torch.where(other & near, (own * step).to(x.dtype), x)

    def _as_place(self, n: fx.Node, op: ArgMaxCodes, result: Tensor, own: Tensor) -> Tensor:
        """Return the places of the integer graph where these hold a largest value too."""
        values = self.env[n.all_input_nodes[0]]
        places = own if op.keepdim else own.unsqueeze(op.dim)
        held = values.gather(op.dim, places)
        largest = values.amax(op.dim, keepdim=True)
        tied = (largest - held <= tolerance(values)).view_as(own)
        return torch.where(tied, own.to(result.dtype), result)


def compare_outputs(
    graph: MaseGraph,
    integers: IntegerGraph,
    codes: Mapping[str, Tensor],
    found: Any,
    check: LayerCheck,
) -> None:
    """Count where the outputs of the simulation, `found`, are not those of the integer graph."""
    sources = returned_nodes(graph.fx_graph)
    left_out = [each for each in sources if each.name in integers.left_out]
    if len(set(left_out)) < len(integers.left_out):  # an argmax of a softmax may have other ties
        return
    _, wanted = separated(found)
    for source, want, name in zip(sources, wanted, integers.outputs, strict=True):
        own = integers.codes(name).values(codes[name])
        result = node_call(source).evaluate(own.float()) if source in left_out else own
        difference = (want.double() - result.double()).abs()
        # the bound of a clamp may lie between the values of a measured step
        on_grid = source not in left_out and integers.codes(name).scale.power_of_two
        exact = check.proven and on_grid
        check.count(difference > (0.0 if exact else tolerance(want)), difference, want, result)
