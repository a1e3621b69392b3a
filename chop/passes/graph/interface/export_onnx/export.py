"""The pass that writes an ONNX file."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from chop.integers.digest import graph_digest
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.onnx import save_model
from chop.onnx.metadata import (
    ACCURACY_KEY,
    FORMAT_KEY,
    FORMATS_KEY,
    MADE_FROM_KEY,
    NETWORK_KEY,
    TRAINED_ON_KEY,
    VERSION_KEY,
)
from chop.onnx.targets import ExportFormat
from chop.options import Share
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.describe.formats import FormattedFunction, FormattedLayer
from chop.passes.graph.interface.export_onnx.model import onnx_model
from chop.passes.graph.interface.export_onnx.values import ExportError
from chop.passes.options import OutputPath
from chop.system.log import show_logs_unless_configured
from chop.version import __version__

__all__ = ["export_onnx_interface_pass"]

logger = logging.getLogger(__name__)

NOTES = {TRAINED_ON_KEY: "trained_on", MADE_FROM_KEY: "made_from"}  # in the meta of a graph
EXACT_BITS = 24  # up to which float32 adds integers exactly


@graph_pass("export_onnx", "interface", needs=("common",))
def export_onnx_interface_pass(
    graph: MaseGraph,
    *,
    save_path: OutputPath,
    format: ExportFormat = "onnx",
    accuracy: Share | None = None,
    silent: bool = False,
) -> dict[str, Any]:
    """Write the network to an ONNX file, op by op; the graph is only read.

    `format` is `onnx` (the float network), `qdq` or `qcdq` (QuantizeLinear, DequantizeLinear and
    Clip, for onnxruntime), `qonnx` (Quant nodes, for FINN and hls4ml) or `integer` (integers
    only). A quantised network exports exactly, or is refused by the names of its nodes. `accuracy`
    goes into the metadata of the file, with the formats of all nodes, and the classes and the
    scaler of the data (`graph.meta["trained_on"]`). `silent` logs nothing.
    """
    try:
        facts, notes = _facts(graph, format, accuracy)
        model = onnx_model(graph, format, metadata=facts)
    except ExportError as error:
        raise PassArgsError(str(error)) from error
    file = save_model(model, save_path)
    if not silent:
        show_logs_unless_configured()
        logger.info("Exported %d nodes to %s", len(model.graph.node), file)
        for note in notes:
            logger.warning("%s", note)
    return {
        "file": str(file),
        "format": format,
        "onnx_nodes": len(model.graph.node),
        "inputs": [value.name for value in model.graph.input],
        "outputs": [value.name for value in model.graph.output],
        "notes": notes,
    }


def _facts(
    graph: MaseGraph, format: ExportFormat, accuracy: float | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the metadata of a file, and what its user should know."""
    facts = {FORMAT_KEY: format, VERSION_KEY: __version__}
    if accuracy is not None:
        facts[ACCURACY_KEY] = str(accuracy)
    facts |= {
        key: json.dumps(_plain(graph.meta[n])) for key, n in NOTES.items() if graph.meta.get(n)
    }
    if format == "onnx":
        return facts, ()
    facts[FORMATS_KEY] = json.dumps(_configs(graph))
    try:
        integers = graph.to_integers()
    except PassArgsError as error:
        return facts, (f"the file cannot be verified: {error}",)
    facts[NETWORK_KEY] = graph_digest(integers)
    if format == "integer":
        return facts, tuple(integers.notes)
    widest = max(integers.accumulator_widths.values(), default=0)
    if widest <= EXACT_BITS:
        return facts, ()
    note = (
        f"the widest sum has {widest} bits, and runtimes may add in float32, which holds "
        f"{EXACT_BITS}; use `format='integer'` if every bit matters"
    )
    return facts, (note,)


def _configs(graph: MaseGraph) -> dict[str, Any]:
    """Return the config of each quantised node, in plain values."""
    found = {}
    for node in graph.nodes:
        layer = mase(node).module
        config: Any = None
        if isinstance(layer, FormattedLayer):
            config = getattr(layer, "config", None)
        elif isinstance(node.target, FormattedFunction):
            config = node.kwargs["config"]
        if config:
            found[node.name] = _plain(config)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
