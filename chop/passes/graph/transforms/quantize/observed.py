"""What calibration knows of the values of an operand: a histogram, or the tensors themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS, drops_sign, has_trait
from chop.numerics import FORMATS
from chop.numerics.histograms import Histogram
from chop.numerics.thresholds import PERCENTILE
from chop.passes.graph.describe.formats import dtype_of, layer_operand, operands_of
from chop.passes.graph.describe.nodes import fetch_attr
from chop.passes.graph.transforms.quantize.quantized_funcs import (
    float_target,
    quantized_function,
)
from chop.passes.graph.transforms.quantize.quantized_modules import layer_for

ENTRY = "calibration"  # beside `stat` in the software metadata
WITHOUT_DATA = "mse"  # the method for parameters of a graph that has not been calibrated


class NotCalibrated(ValueError):
    """An activation without a histogram; the message names it and gives the fix."""


@dataclass(frozen=True)
class Observed:
    """The values of an operand, over all nodes that call the same layer."""

    name: str  # of the first of them
    op: str
    operand: str
    histograms: tuple[Histogram, ...]  # of activations
    tensors: tuple[Tensor, ...]  # parameters and constants
    method: str
    percentile: float
    fractions: dict[str, int] = field(compare=False)  # measured earlier, by format
    is_noted: bool = False  # whether the method is that of a calibration
    rank: int | None = None  # dimensions of an activation

    @property
    def is_activation(self) -> bool:
        return bool(self.histograms)

    @property
    def drops_sign(self) -> bool:
        """Whether the op sets negative values to zero, so that its format is unsigned."""
        return drops_sign(self.op, self.operand)

    def histogram(self) -> Histogram:
        """Return one histogram of all values."""
        bins = {"bins": self.histograms[0].bins} if self.histograms else {}
        own = [Histogram.of(tensor, **bins) for tensor in self.tensors]
        first, *others = (*self.histograms, *own)
        merged = first.merged(*others)
        return merged.positive() if self.drops_sign else merged

    def by_channel(self, axis: int) -> list[Histogram]:
        """Return a histogram of each channel along a dimension, which must have been kept."""
        rank = self.rank or 0
        kept = self.histograms[0].axis
        if len(self.histograms) > 1 or kept is None or axis % max(rank, 1) != kept:
            raise ValueError(
                f"{self.operand}_axis is {axis}, but calibrate has no histograms along it; run "
                f"calibrate with per_channel = true, or leave out {self.operand}_axis"
            )
        return self.histograms[0].channels()

    def points(self, histogram: Histogram) -> tuple[Tensor, Tensor | None]:
        """Return the values, and how often each occurs."""
        if self.histograms:
            return histogram.points()
        return torch.cat([t.detach().double().flatten().cpu() for t in self.tensors]), None


def observed(nodes: Sequence[fx.Node], operand: str, format_name: str) -> Observed:
    """Return what is known of an operand of nodes that call the same layer or function.

    An activation without a histogram is refused.
    """
    entries: list[Mapping[str, Any]] = []
    tensors: list[Tensor] = []
    ranks: list[int] = []
    for node in nodes:
        for part, name in places(node, operand, format_name):
            if isinstance(name, float):
                tensors.append(torch.tensor([name], dtype=torch.float64))
            elif is_parameter(node, name):
                tensors += _parameter(node, name) if node is nodes[0] else ()
            else:
                entries.append(_entry(node, part, name, operand))
                ranks.append(len(mase(node).common[part].tensor(name).shape))
    noted = entries[0] if entries else _noted(nodes[0])
    return Observed(
        nodes[0].name,
        mase(nodes[0]).common.mase_op,
        operand,
        tuple(Histogram.from_plain(entry["histogram"]) for entry in entries),
        tuple(tensors),
        str(noted.get("method", WITHOUT_DATA)),
        float(noted.get("percentile", PERCENTILE)),
        fractions_of(nodes[0], operand),
        bool(noted),
        ranks[0] if ranks else None,
    )


def parameters_of(name: str, layer: nn.Module, operand: str) -> Observed:
    """Return what is known of a weight or bias of a layer that is not in a graph."""
    generic = layer_for(type(layer))
    assert generic is not None, "only layers that can be quantized have a config"
    tensors = [p for n, p in layer.named_parameters() if generic.operand_of(n) == operand]
    return Observed(name, "", operand, (), _finite(operand, tensors), WITHOUT_DATA, PERCENTILE, {})


def places(node: fx.Node, operand: str, format_name: str) -> Iterator[tuple[str, str | float]]:
    """Yield where the values of an operand are described, or the values that are numbers.

    Indices and masks, which are not rounded, are left out.
    """
    common = mase(node).common
    if operand == "data_out":
        yield "results", "data_out_0"
        return
    if node.op == "call_module":
        for name, _ in common.args.tensors():
            if layer_operand(common.mase_op, name) == operand and _is_rounded(node, name):
                yield "args", name
        if operand == "data_in" and has_trait(common.mase_op, "inner_products"):
            yield "results", "data_out_0"  # states and values inside have the format of inputs
        return
    function = quantized_function(float_target(node), OPS[common.mase_op], FORMATS[format_name])
    for name, own in operands_of(node, function).items():
        if own == operand and _is_rounded(node, name):
            yield "args", name
    for _, own, value in function.arguments(node.args, node.kwargs):
        if own == operand and type(value) is float:
            yield "args", value


def _is_rounded(node: fx.Node, name: str) -> bool:
    return dtype_of(node, name).is_floating_point


def is_parameter(node: fx.Node, name: str) -> bool:
    """Return whether an operand in the metadata is a tensor of the layer itself."""
    return node.op == "call_module" and not name.startswith(("data_in", "data_out"))


def _parameter(node: fx.Node, name: str) -> tuple[Tensor, ...]:
    value = fetch_attr(mase(node).module, name)  # type: ignore[arg-type]
    return () if value is None else _finite(name, [value])


def _finite(name: str, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise ValueError(f"{name} has NaN or infinite values; repair them, or give numbers for it")
    return tuple(tensors)


def _entry(node: fx.Node, part: str, name: str, operand: str) -> Mapping[str, Any]:
    entry: Any = _software(node).get(part, {}).get(name, {}).get(ENTRY)
    if entry is None or "histogram" not in entry:
        raise NotCalibrated(
            f"{operand} of node {node.name!r} is to be calibrated, but the graph has no histogram "
            f"of it; run calibrate before quantize"
        )
    return entry  # type: ignore[no-any-return]


def _software(node: fx.Node) -> dict[str, Any]:
    return mase(node).parameters.get("software") or {}


def _noted(node: fx.Node) -> Mapping[str, Any]:
    """Return any entry of a node, as all have the method and percentile of the same run."""
    entries = (item.get(ENTRY) for item in _software(node).get("args", {}).values())
    return next((entry for entry in entries if entry), {})


def fractions_of(node: fx.Node, operand: str) -> dict[str, int]:
    """Return the table of measured fraction widths of an operand, which may be filled."""
    software = _software(node)
    if not software:
        return {}
    table: dict[str, dict[str, int]] = software.setdefault("fractions", {})
    return table.setdefault(operand, {})


def has_histograms(graph: MaseGraph) -> bool:
    """Return whether a graph has been calibrated."""
    return any(
        ENTRY in entry
        for node in graph.nodes
        if "mase" in node.meta
        for entry in _software(node).get("args", {}).values()
    )
