"""Does the metadata tell the truth about the graph?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import MaseMetadata, Operands, TensorMeta, mase
from chop.ir.operands import bind_operands
from chop.ir.ops import MASE_TYPES, OPS, OpSpec, identify
from chop.passes.base import graph_pass, has_metadata
from chop.passes.graph.utils import vf
from chop.registry import UnknownName

Problems = dict[str, list[str]]
Check = Callable[[fx.Node], Iterator[str]]
NOT_A_FORMAT = ("model_specific_input", "NA")


class MetadataError(ValueError):
    """Metadata that contradicts the graph; the message starts with the node's name."""


@graph_pass("verify_metadata", "analysis")
def verify_metadata_analysis_pass(graph: MaseGraph, *, strict: bool = False) -> Problems:
    """Check all parts of the metadata that are there: node name -> what is wrong with it.

    An empty dict means that all is well; `strict = True` raises instead of returning problems.
    """
    return _verify(graph, strict, _common, _software, _hardware)


@graph_pass("verify_common_metadata", "analysis")
def verify_common_metadata_analysis_pass(graph: MaseGraph, *, strict: bool = False) -> Problems:
    """Check ops, operand names, shapes along every edge, formats and parameters."""
    return _verify(graph, strict, _common)


@graph_pass("verify_software_metadata", "analysis", needs=("software",))
def verify_software_metadata_analysis_pass(graph: MaseGraph, *, strict: bool = False) -> Problems:
    """Check that statistics stand beside tensors that exist."""
    return _verify(graph, strict, _software)


@graph_pass("verify_hardware_metadata", "analysis", needs=("hardware",))
def verify_hardware_metadata_analysis_pass(graph: MaseGraph, *, strict: bool = False) -> Problems:
    """Check toolchains, storage, Verilog names and parameters."""
    return _verify(graph, strict, _hardware, _unique_verilog_names(graph))


def _verify(graph: MaseGraph, strict: bool, *checks: Check) -> Problems:
    found = {node.name: [p for check in checks for p in check(node)] for node in graph.nodes}
    problems = {name: texts for name, texts in found.items() if texts}
    if problems and strict:
        name, texts = next(iter(problems.items()))
        more = f" (and {len(problems) - 1} more nodes)" if len(problems) > 1 else ""
        raise MetadataError(f"node {name!r}: {'; '.join(texts)}{more}")
    return problems


def _common(node: fx.Node) -> Iterator[str]:
    if not has_metadata(node, "common"):
        yield "has no common metadata; run add_common_metadata_analysis_pass"
        return
    meta = mase(node)
    missing = [k for k in ("mase_type", "mase_op", "args", "results") if k not in meta.common]
    if missing:
        yield f"has no {', '.join(missing)}"
        return
    yield from _op(node, meta)
    yield from _edges(node, meta)
    yield from _parameters(meta)
    for kind, operands in (("argument", meta.common.args), ("result", meta.common.results)):
        for name, tensor in operands.tensors():
            yield from _format(f"{kind} {name!r}", tensor)
    if not any(True for _ in meta.common.results):
        yield "has no results"


def _op(node: fx.Node, meta: MaseMetadata) -> Iterator[str]:
    mase_type, mase_op = meta.common.mase_type, meta.common.mase_op
    if mase_type not in MASE_TYPES:
        yield f"mase_type {mase_type!r} is none of {', '.join(MASE_TYPES)}"
    found = identify(node, meta.module)
    patched = mase_type == "patched_func"
    if not patched and (mase_op, mase_type) != (found.name, found.mase_type):
        yield f"is noted as {mase_type}/{mase_op}, but it is {found.mase_type}/{found.name}"


def _known(source: fx.Node) -> Any:
    """What a node computes, as its own metadata has it."""
    if not has_metadata(source, "common"):
        return None
    results = mase(source).common.get("results", Operands())
    metas = [
        m if "precision" in m or not isinstance(m.get("type"), type) else m.get("value")
        for m in results.values()
    ]
    return metas[0] if len(metas) == 1 else metas


def _edges(node: fx.Node, meta: MaseMetadata) -> Iterator[str]:
    """Each tensor that a node takes has the shape with which its producer gives it."""
    if node.op not in ("call_module", "call_function", "call_method"):
        return
    spec = OPS[meta.common.mase_op] if meta.common.mase_op in OPS else OpSpec("", "patched_func")
    given = bind_operands(
        node,
        spec,
        meta.module,
        fx.node.map_arg(node.args, _known),
        fx.node.map_arg(node.kwargs, _known),
    )
    for name, produced in given.items():
        if not isinstance(produced, TensorMeta):
            continue
        noted = meta.common.args.get(name)
        if not isinstance(noted, TensorMeta):
            yield f"takes a tensor {name!r} that its arguments do not list"
        elif noted.get("shape") != produced.get("shape"):
            yield (
                f"takes {name!r} with shape {noted.get('shape')}, "
                f"but its producer gives {produced.get('shape')}"
            )


def _parameters(meta: MaseMetadata) -> Iterator[str]:
    if meta.module is None:
        return
    for name, parameter in meta.module.named_parameters():
        noted = meta.common.args.get(name, {}).get("shape")
        if noted != list(parameter.shape):
            yield f"parameter {name!r} has shape {list(parameter.shape)}, but {noted} is noted"


def _format(what: str, tensor: TensorMeta) -> Iterator[str]:
    missing = [key for key in ("type", "precision", "shape") if key not in tensor]
    if missing:
        yield f"{what} has no {', '.join(missing)}"
        return
    if tensor.type in NOT_A_FORMAT:
        return
    try:
        _ = tensor.format
    except (UnknownName, ValueError, TypeError) as error:
        yield f"{what}: {error}"


def _software(node: fx.Node) -> Iterator[str]:
    if not has_metadata(node, "software"):
        return
    meta = mase(node)
    for part, operands in (("args", meta.common.args), ("results", meta.common.results)):
        noted = meta.software.get(part, {})
        for name, entry in noted.items():
            if "stat" not in entry:
                yield f"software {part} {name!r} has no stat"
        if node.op == "output":
            continue  # its common arguments are empty
        for name, _ in operands.tensors():
            if name not in noted:
                yield f"software {part} lacks {name!r}"


def _hardware(node: fx.Node) -> Iterator[str]:
    if not has_metadata(node, "hardware"):
        return
    hardware = mase(node).hardware
    if "is_implicit" not in hardware:
        yield "hardware does not say whether the node is implicit"
    if hardware.get("is_implicit") or "toolchain" not in hardware:
        return
    if hardware.toolchain not in MaseMetadata.known_toolchain:
        known = ", ".join(MaseMetadata.known_toolchain)
        yield f"toolchain {hardware.toolchain!r} is none of {known}"
    for name, port in hardware.interface.items():
        storage = port.get("storage", "BRAM")
        if storage not in MaseMetadata.known_storage:
            yield f"storage {storage!r} of {name!r} is none of {MaseMetadata.known_storage}"
    for name, value in hardware.verilog_param.items():
        size = hardware.verilog_param.get(name.replace("_PARALLELISM_", "_TENSOR_SIZE_"))
        if "_PARALLELISM_" in name and (not size or size % value):
            yield f"verilog_param {name} = {value} does not divide the tensor's size {size}"


def _unique_verilog_names(graph: MaseGraph) -> Check:
    first = {vf(node.name).lower(): node.name for node in reversed(graph.nodes)}

    def check(node: fx.Node) -> Iterator[str]:
        if first[vf(node.name).lower()] != node.name:
            yield f"has the same Verilog name as {first[vf(node.name).lower()]!r}"

    return check
