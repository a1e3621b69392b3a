"""Numbers for what a config leaves to calibration: `data_in_frac_width = "calibrated"`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch import fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.numerics import NumberFormat
from chop.numerics.integer import Integer
from chop.passes.graph.transforms.quantize.calibrated import ACTIVATIONS
from chop.passes.graph.transforms.quantize.chosen import Chosen
from chop.passes.graph.transforms.quantize.fractions import format_of, integer_keys
from chop.passes.graph.transforms.quantize.marks import (
    CALIBRATED,
    FRACTION,
    is_calibrated,
    is_fixed_point,
    marked,
    with_bias,
    without_marks,
)
from chop.passes.graph.transforms.quantize.observed import (
    NotCalibrated,
    Observed,
    observed,
    parameters_of,
)
from chop.passes.graph.transforms.quantize.output_error import OutputError
from chop.system.progress import progress_bar

Config = dict[str, Any]
Plan = dict[fx.Node, Config]


class Resolver:
    """Replaces "calibrated" in configs of the nodes of a graph by numbers."""

    def __init__(self, graph: MaseGraph) -> None:
        self._graph = graph
        self._errors: OutputError | None = None
        self._known: dict[tuple[str, str, str], Observed | None] = {}
        self._calls: dict[str, list[fx.Node]] = {}
        for node in graph.nodes:
            if node.op == "call_module":
                self._calls.setdefault(str(node.target), []).append(node)

    def plan(self, plan: Mapping[fx.Node, Config]) -> tuple[Plan, list[Chosen]]:
        """Return the configs with numbers, and what was chosen; all operands are tuned together."""
        asked = sum(len(marked(with_bias(c))) for c in plan.values() if is_calibrated(c))
        with progress_bar(total=asked, desc="Choosing", disable=not asked) as bar:
            new = {node: self._noted(node, config, bar) for node, config in plan.items()}
        errors = self._output_error() if self._tunes(plan) else None
        if errors is not None:
            from chop.passes.graph.transforms.quantize.tune import tuned

            new |= tuned(self._graph, errors, plan, new)
        first = [nodes[0] for nodes in _groups(plan).values() if is_calibrated(plan[nodes[0]])]
        return new, [row for node in first for row in self._rows(node, plan[node], new[node])]

    def _noted(self, node: fx.Node, config: Config, bar: Any) -> Config:
        new = self.config(node, config)
        bar.update(len(marked(with_bias(config))) if is_calibrated(config) else 0)
        return new

    def _tunes(self, plan: Mapping[fx.Node, Config]) -> bool:
        """Return whether fraction widths are to be chosen by the error of the output."""
        fixed = any(is_fixed_point(c) and is_calibrated(c) for c in plan.values())
        return fixed and any(known and known.method == "output" for known in self._known.values())

    def config(self, node: fx.Node, config: Mapping[str, Any]) -> Config:
        """Return the config of one node with numbers."""
        if not is_calibrated(config):
            return dict(config)
        new = with_bias(config)
        for operand in marked(new):
            known = self._observed(node, operand, new["name"])
            if known is not None:
                new |= self._keys(known, new)
        return without_marks(new)  # a layer may lack an operand, such as a bias

    def _rows(
        self, node: fx.Node, asked: Mapping[str, Any], config: Mapping[str, Any]
    ) -> Iterator[Chosen]:
        """Yield what was chosen for the operands of a node."""
        for operand in marked(with_bias(asked)):
            known = self._observed(node, operand, config["name"])
            if known is not None:
                fmt: NumberFormat = format_of(config, known)
                if fmt.is_calibrated:
                    yield Chosen(known, fmt)

    def _observed(self, node: fx.Node, operand: str, name: str) -> Observed | None:
        """Return what is known of an operand; None if the node does not have it."""
        key = (node.name, operand, name)
        if key not in self._known:
            same = self._calls.get(str(node.target), []) if node.op == "call_module" else []
            try:
                found = observed(same or [node], operand, name)
            except NotCalibrated:
                if is_fixed_point({"name": name}):
                    raise
                return None  # the format itself says what it lacks
            self._known[key] = found if found.histograms or found.tensors else None
        return self._known[key]

    def _keys(self, known: Observed, config: Config) -> Config:
        if not is_fixed_point(config):
            from chop.passes.graph.transforms.quantize.scales_from_values import affine_keys

            return affine_keys(known, config)
        measure = partial(self._alone, known) if known.method == "output" else None
        return integer_keys(known, config, measure)

    def _alone(self, known: Observed, fmt: Integer) -> float | None:
        """Return the error of the output if only this operand is rounded; None without data."""
        errors = self._output_error()
        return None if errors is None else errors.alone(known.name, {known.operand: fmt})

    def _output_error(self) -> OutputError | None:
        if self._errors is None:
            self._errors = OutputError.of(self._graph)
        return self._errors


def _groups(plan: Mapping[fx.Node, Config]) -> dict[Any, list[fx.Node]]:
    """Return the nodes of a plan, those that call the same layer together."""
    groups: dict[Any, list[fx.Node]] = {}
    for node in plan:
        groups.setdefault(node.target if node.op == "call_module" else node, []).append(node)
    return groups


def layer_config(name: str, layer: nn.Module, config: Mapping[str, Any]) -> Config:
    """Return the config of a layer outside a graph, with numbers for its weights and biases."""
    if not is_fixed_point(config) or not is_calibrated(config):
        return dict(config)
    new = with_bias(config)
    for operand in marked(new):
        if operand in ACTIVATIONS:
            raise ValueError(
                f"{operand}_{FRACTION} is {CALIBRATED!r}, which needs a graph; give a number, or "
                f"use the graph style"
            )
        known = parameters_of(name, layer, operand)
        new |= integer_keys(known, new) if known.tensors else {}
    return without_marks(new)
