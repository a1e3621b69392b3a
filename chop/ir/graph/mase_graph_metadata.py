"""Metadata of a graph as a whole: its inputs, outputs and sources."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import fx

from chop.ir.graph.mase_metadata import Operands
from chop.ir.record import Record

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph


class GraphCommon(Record):
    nodes_in: list[fx.Node]  # first nodes that compute
    nodes_out: list[fx.Node]  # last nodes that compute
    args: Operands  # data_in_<k> of the k-th input
    results: Operands


class GraphHardware(Record):
    verilog_sources: list[str]


class GraphParameters(Record):
    common: GraphCommon
    software: Record
    hardware: GraphHardware


class MaseGraphMetadata:
    """`graph.meta["mase"]`."""

    def __init__(self, graph: MaseGraph, parameters: dict[str, Any] | None = None) -> None:
        self._graph = weakref.ref(graph)  # the graph owns its metadata, not the other way round
        self.parameters = GraphParameters(
            parameters or {"common": {}, "software": {}, "hardware": {}}
        )

    @property
    def graph(self) -> MaseGraph:
        graph = self._graph()
        assert graph is not None, "the graph of this metadata no longer exists"
        return graph

    @property
    def common(self) -> GraphCommon:
        return self.parameters.common

    @property
    def software(self) -> Record:
        return self.parameters.software

    @property
    def hardware(self) -> GraphHardware:
        return self.parameters.hardware

    def clone_for(self, graph: MaseGraph) -> MaseGraphMetadata:
        """Return the metadata for a copy, with the copy's nodes in place of the original's."""
        nodes = {node.name: node for node in graph.nodes}
        copy = MaseGraphMetadata(graph, self.parameters.clone())
        for key in ("nodes_in", "nodes_out"):
            if key in copy.common:
                # a pass may have erased some of them since
                names = (node.name for node in copy.common[key])
                copy.common[key] = [nodes[name] for name in names if name in nodes]
        return copy

    def __getitem__(self, part: str) -> Any:
        return self.parameters[part]

    def __setitem__(self, part: str, value: Any) -> None:
        self.parameters[part] = value
