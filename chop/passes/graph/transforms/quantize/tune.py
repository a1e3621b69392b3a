"""Fraction widths of a whole design: neighbours that bring its output nearer to the float one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS
from chop.numerics import FORMATS
from chop.passes.graph.transforms.quantize.marks import (
    FRACTION,
    is_fixed_point,
    marked,
    with_bias,
    without_marks,
)
from chop.passes.graph.transforms.quantize.output_error import Formats, OutputError
from chop.passes.graph.transforms.quantize.quantized_funcs import float_target, quantized_function
from chop.passes.graph.transforms.quantize.quantized_modules import layer_for, variant
from chop.passes.graph.transforms.quantize.variants import is_variant
from chop.system.progress import progress_bar

SWEEPS = 2  # over all operands of a design
GAIN = 1e-3  # the relative gain for which a fraction is changed

Config = dict[str, Any]
Plan = dict[fx.Node, Config]


def tuned(
    graph: MaseGraph, errors: OutputError, asked: Mapping[fx.Node, Config], plan: Plan
) -> Plan:
    """Return the configs of a plan with the least error of the output that a few steps find.

    They start from `plan`, or from half of each width if that is better. Only what the configs
    that were `asked` for leave to calibration is changed.
    """
    return _Search(graph, errors, asked).best(plan)


class _Search:
    """Tries other fraction widths, one operand after the other."""

    def __init__(
        self, graph: MaseGraph, errors: OutputError, asked: Mapping[fx.Node, Config]
    ) -> None:
        self._graph, self._errors, self._asked = graph, errors, asked
        self._groups: dict[Any, list[fx.Node]] = {}  # nodes that call the same layer
        self._known: dict[tuple[str, int], tuple[Config, Formats]] = {}  # by node and config
        for node in asked:
            key = node.target if node.op == "call_module" else node
            self._groups.setdefault(key, []).append(node)

    def best(self, plan: Plan) -> Plan:
        halves = {node: without_marks(with_bias(config)) for node, config in self._asked.items()}
        plans = [(self._run(candidate), candidate) for candidate in (plan, halves)]
        (error, values), plan = min(plans, key=lambda pair: pair[0][0])
        for _ in range(SWEEPS):
            before = error
            for nodes, operand in progress_bar(list(self._operands()), desc="Tuning"):
                for step in (-1, 1):
                    other = self._stepped(plan, nodes, f"{operand}_{FRACTION}", step)
                    again, changed = self._run(other, values, nodes)
                    if again < error * (1 - GAIN):
                        plan, error, values = other, again, changed
                        break
            if error == before:
                break
        return plan

    def _operands(self) -> Iterator[tuple[list[fx.Node], str]]:
        for nodes in self._groups.values():
            if is_fixed_point(config := self._asked[nodes[0]]):
                present = self._formats(nodes[0], without_marks(with_bias(config)))
                yield from ((nodes, o) for o in marked(with_bias(config)) if o in present)

    def _stepped(self, plan: Plan, nodes: list[fx.Node], key: str, step: int) -> Plan:
        old = plan[nodes[0]]
        now = self._formats(nodes[0], old)[key.removesuffix(f"_{FRACTION}")]
        config = old | {key: now.frac_width + step}  # type: ignore[attr-defined]
        return plan | dict.fromkeys(nodes, config)

    def _run(self, plan: Plan, values: Any = None, changed: list[fx.Node] | None = None) -> Any:
        design = {node.name: self._formats(node, config) for node, config in plan.items()}
        rounded = {name: formats for name, formats in design.items() if formats}
        new = self._errors.run(rounded, values, [node.name for node in changed or ()])
        return self._errors.of_run(new), new

    def _formats(self, node: fx.Node, config: Config) -> Formats:
        key = (node.name, id(config))
        if key not in self._known:
            self._known[key] = config, self._made(node, config)  # the config keeps its id
        return self._known[key][1]

    def _made(self, node: fx.Node, config: Config) -> Formats:
        """Return the formats of a node; none for a layer that is not made of formats alone."""
        name = config["name"]
        if is_variant(name):
            return {}
        if node.op != "call_module":
            op = OPS[mase(node).common.mase_op]
            return quantized_function(float_target(node), op, FORMATS[name]).formats(config)
        layer = self._graph.modules[str(node.target)]
        generic = layer_for(type(layer))
        assert generic is not None, "only layers that can be quantized are in a plan"
        return variant(generic, FORMATS[name]).from_float(layer, config).current_formats()
