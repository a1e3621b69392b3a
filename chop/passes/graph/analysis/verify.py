"""Check that the metadata agrees with the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import COMMON_KEYS, MaseMetadata, Operands, TensorMeta, mase
from chop.ir.operands import bind_operands, flatten
from chop.ir.ops import MASE_TYPES, identify
from chop.passes.base import graph_pass, has_metadata
from chop.passes.graph.describe.formats import operand_parameters
from chop.passes.graph.describe.hardware import verilog_params
from chop.passes.graph.describe.hardware_components import component_of
from chop.passes.graph.describe.nodes import fetch_attr
from chop.passes.graph.utils import get_module_by_target, vf
from chop.registry import UnknownName

__path__: list[str] = []  # so that chop.aliases is asked for modules below this one
Problems = dict[str, list[str]]
Check = Callable[[fx.Node], Iterator[str]]
NOT_A_FORMAT = ("model_specific_input", "NA")


class MetadataError(ValueError):
    """Metadata that contradicts the graph; the message starts with the node's name."""


@graph_pass("verify_metadata", "analysis")
def verify_metadata_analysis_pass(graph: MaseGraph, *, strict: bool = False) -> Problems:
    """Check all parts of the metadata that exist; returns node name -> list of problems.

    An empty dict means that there are no problems; `strict = True` raises an error instead.
    """
    return _verify(graph, strict, _common, _software, _hardware, _unique_verilog_names(graph))


@graph_pass("verify_common_metadata", "analysis")
def verify_common_metadata_analysis_pass(graph: MaseGraph, *, strict: bool = False) -> Problems:
    """Check ops, operand names, shapes along every edge, formats and parameters."""
    return _verify(graph, strict, _common)


@graph_pass("verify_software_metadata", "analysis", needs=("software",))
def verify_software_metadata_analysis_pass(graph: MaseGraph, *, strict: bool = False) -> Problems:
    """Check that every entry of the statistics belongs to an existing tensor."""
    return _verify(graph, strict, _software)


@graph_pass("verify_hardware_metadata", "analysis", needs=("hardware",))
def verify_hardware_metadata_analysis_pass(graph: MaseGraph, *, strict: bool = False) -> Problems:
    """Check toolchains, storage, Verilog names and parameters."""
    return _verify(graph, strict, _hardware, _unique_verilog_names(graph))


def _verify(graph: MaseGraph, strict: bool, *checks: Check) -> Problems:
    by_node = {node.name: [p for check in checks for p in check(node)] for node in graph.nodes}
    problems = {name: texts for name, texts in by_node.items() if texts}
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
    if meta.node is not node:
        yield "has the metadata of another node"
    missing = [k for k in COMMON_KEYS if k not in meta.common]
    if missing:
        yield f"has no {', '.join(missing)}"
        return
    if node.op in ("call_module", "get_attr"):
        try:
            fetch_attr(meta.model, str(node.target))
        except RuntimeError as error:
            yield f"{node.op} target does not exist: {error}"
            return
    yield from _op(node, meta)
    yield from _edges(node, meta)
    yield from _owned(node, meta)
    for kind, operands in (("argument", meta.common.args), ("result", meta.common.results)):
        for name, tensor in operands.tensors():
            yield from _format(f"{kind} {name!r}", tensor)
    if not meta.common.results:
        yield "has no results"


def _op(node: fx.Node, meta: MaseMetadata) -> Iterator[str]:
    mase_type, mase_op = meta.common.mase_type, meta.common.mase_op
    if mase_type not in MASE_TYPES:
        yield f"mase_type {mase_type!r} is not one of {', '.join(MASE_TYPES)}"
    op = identify(node, meta.module)
    layers = tuple(getattr(meta.model, "patched_custom_layers", ()))
    patched = mase_type == "patched_func" and (
        op.name.startswith("user_defined") or isinstance(meta.module, layers)
    )
    if not patched and (mase_op, mase_type) != (op.name, op.mase_type):
        yield f"is recorded as {mase_type}/{mase_op}, but it is {op.mase_type}/{op.name}"


def _known(source: fx.Node) -> Any:
    """The result of a node as its metadata records it; each tensor knows its source node."""
    if not has_metadata(source, "common"):
        return None
    results = mase(source).common.get("results", Operands())
    tensors = {name: TensorMeta(meta, given_by=source.name) for name, meta in results.tensors()}
    known = [tensors.get(name, entry.get("value")) for name, entry in results.items()]
    return known[0] if len(known) == 1 else known


def _edges(node: fx.Node, meta: MaseMetadata) -> Iterator[str]:
    """Check that each tensor that a node takes is recorded as its producer records it."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), _known)
    if node.op == "output":
        actual = {f"data_out_{i}": leaf for i, leaf in enumerate(flatten(args[0]))}
        yield from _differences(meta.common.results, Operands(actual))
    if node.op in ("call_module", "call_function", "call_method"):
        actual = bind_operands(node, identify(node, meta.module), meta.module, args, kwargs)
        parameters = dict(operand_parameters(meta.module)) if meta.module is not None else {}
        recorded = {name: arg for name, arg in meta.common.args.items() if name not in parameters}
        yield from _differences(Operands(recorded), Operands(actual))
        for name in recorded.keys() & actual.keys():
            if _differ(recorded[name], actual[name]):
                yield f"takes {name!r} = {actual[name]!r}, but {recorded[name]!r} is recorded"


def _differences(of_node: Operands, of_sources: Operands) -> Iterator[str]:
    recorded, actual = dict(of_node.tensors()), dict(of_sources.tensors())
    for name in recorded.keys() - actual.keys():
        yield f"does not take the tensor {name!r} that is recorded"
    for name, produced in actual.items():
        if name not in recorded:
            yield f"takes a tensor {name!r} that is not recorded"
            continue
        for key in ("shape", "torch_dtype"):
            ours, theirs, source = recorded[name].get(key), produced.get(key), produced["given_by"]
            if ours != theirs:
                yield f"takes {name!r} with {key} {ours}, but {source!r} gives {theirs}"


def _differ(recorded: Any, actual: Any) -> bool:
    """Whether two plain values differ; a list equals a tuple with the same items."""
    if isinstance(recorded, TensorMeta) or isinstance(actual, TensorMeta):
        return False
    if isinstance(recorded, list | tuple) and isinstance(actual, list | tuple):
        return len(recorded) != len(actual) or any(map(_differ, recorded, actual))
    try:
        return bool(recorded != actual)
    except (TypeError, ValueError, RuntimeError):  # some values cannot be compared
        return False


def _owned(node: fx.Node, meta: MaseMetadata) -> Iterator[str]:
    """Check the recorded shapes of a module's parameters or of a get_attr's attribute."""
    if meta.module is not None:
        for name, parameter in operand_parameters(meta.module):
            yield from _shape(f"parameter {name!r}", parameter, meta.common.args.get(name))
    if node.op == "get_attr":
        recorded = meta.common.results.get("data_out_0")
        attribute = fetch_attr(meta.model, str(node.target))
        yield from _shape(f"attribute {node.target!r}", attribute, recorded)


def _shape(what: str, tensor: Any, recorded: Any) -> Iterator[str]:
    shape = recorded.get("shape") if isinstance(recorded, TensorMeta) else None
    if isinstance(tensor, Tensor) and shape != list(tensor.shape):
        yield f"{what} has shape {list(tensor.shape)}, but {shape} is recorded"


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
    for part in ("args", "results"):
        operands: Operands = meta.common.get(part, Operands())
        recorded = meta.software.get(part, {})
        for name, entry in recorded.items():
            if "stat" not in entry:
                yield f"software {part} {name!r} has no stat"
        if node.op == "output":
            continue  # its common arguments are empty
        for name, _ in operands.tensors():
            if name not in recorded:
                yield f"software {part} lacks {name!r}"
        for name in recorded.keys() - operands.keys() - _buffer_names(node):
            yield f"software {part} has {name!r}, which the node does not have"


def _buffer_names(node: fx.Node) -> set[str]:
    target = str(node.target) if node.op == "call_module" else ""
    module = get_module_by_target(mase(node).model, target)  # None if the module no longer exists
    return {name for name, _ in module.named_buffers()} if target and module else set()


def _hardware(node: fx.Node) -> Iterator[str]:
    if not has_metadata(node, "hardware"):
        return
    hardware = mase(node).hardware
    if "is_implicit" not in hardware:
        yield "hardware metadata has no is_implicit"
    if hardware.get("is_implicit") or "toolchain" not in hardware:
        return
    if hardware.toolchain not in MaseMetadata.known_toolchain:
        known = ", ".join(MaseMetadata.known_toolchain)
        yield f"toolchain {hardware.toolchain!r} is not one of {known}"
    for name, port in hardware.get("interface", {}).items():
        storage = port.get("storage", "BRAM")
        if storage not in MaseMetadata.known_storage:
            yield f"storage {storage!r} of {name!r} is not one of {MaseMetadata.known_storage}"
    if (most := hardware.get("max_parallelism", 1)) < 1:
        yield f"max_parallelism is {most}, and must be at least 1"
    common, params = mase(node).common, hardware.get("verilog_param", {})
    if hardware.toolchain == "INTERNAL_RTL" and "mase_op" in common:
        module, _ = component_of(common.mase_op) or (None, [])
        if (noted := hardware.get("module")) != module:
            yield f"module {noted!r} is not the component of {common.mase_op}: {module}"
    if "parallelism" in hardware and "args" in common and "results" in common:
        expected = dict(verilog_params(common, hardware.parallelism))
        for name in expected.keys() | params.keys():
            recorded, correct = params.get(name), expected.get(name)
            if recorded != correct:
                yield f"verilog_param {name} = {recorded}, but common metadata says {correct}"


def _unique_verilog_names(graph: MaseGraph) -> Check:
    first = {vf(node.name).lower(): node.name for node in reversed(graph.nodes)}

    def check(node: fx.Node) -> Iterator[str]:
        if first[vf(node.name).lower()] != node.name:
            yield f"has the same Verilog name as {first[vf(node.name).lower()]!r}"

    return check
