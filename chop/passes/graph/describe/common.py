"""Run the model once and record the op, arguments and results of every node."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map_only

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import CommonMeta, Operands, TensorMeta, mase
from chop.ir.operands import bind_operands, described, flatten, mapped_leaves
from chop.ir.ops import OPS, OpSpec, identify
from chop.passes.base import PassArgsError
from chop.passes.graph.describe.formats import node_formats, note_formats, operand_parameters
from chop.passes.graph.describe.interpreter import (
    GraphRunner,
    RunError,
    device_of,
    input_name,
    input_values,
)
from chop.passes.graph.describe.nodes import first_computing, last_computing, outer_nodes

logger = logging.getLogger(__name__)

# below this many multiplications, computing is faster than the meta device, which loads a compiler
LITTLE_WORK = 10**8


def describe(
    graph: MaseGraph, dummy_in: Mapping[str, Any], keep_values: bool, on_meta: bool = False
) -> None:
    """Record op, arguments and results of each node from one run, and formats of quantized nodes.

    `dummy_in`, `keep_values` and `on_meta` are the options of the pass `add_common_metadata`;
    without inputs, those of the capture are used.
    """
    inputs = input_values(graph, dummy_in or _captured_inputs(graph), "dummy_in")
    without_values = any(p.is_meta for p in graph.model.parameters())
    run = _Annotate(graph, keep_values, on_meta or without_values)
    try:
        run.run_unchanged(inputs)
    except RunError as error:
        raise PassArgsError(f"pass 'add_common_metadata': {error}") from error.__cause__
    for node, common in run.described.items():
        mase(node).parameters.common = common
    for node in graph.nodes:
        if node_formats(node):
            note_formats(node)
    annotate_graph(graph)


def _captured_inputs(graph: MaseGraph) -> dict[str, Any]:
    """Return the inputs that a graph was captured on, where its model is now."""
    names, device = [input_name(node) for node in graph.inputs], device_of(graph.model)
    inputs = {name: value for name, value in graph.example_inputs.items() if name in names}
    return tree_map_only(Tensor, lambda x: x.to(device), inputs)  # type: ignore[no-any-return]


class _Snapshots:
    """Clones of tensors, one per state in which a tensor was seen."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}

    def of(self, x: Tensor) -> Tensor:
        if x.is_inference():  # its changes are not counted
            return x.detach().clone()
        seen = self._seen.get(id(x))
        if seen is None or seen[0]() is not x or seen[1] != x._version:
            seen = self._seen[id(x)] = (weakref.ref(x), x._version, x.detach().clone())
        return seen[2]


def described_parameter(p: Tensor, keep: Callable[[Tensor], Tensor] | None) -> dict[str, Any]:
    """Return the metadata of a module's parameter; `keep(p)` is stored as its value."""
    meta = described(p, keep)
    keys = ("type", "precision", "shape", "from", "value")
    return {key: meta.get(key) for key in keys if key != "value" or keep}


class _Annotate(GraphRunner):
    """Runs the graph node by node and records arguments before in-place ops change them."""

    def __init__(self, graph: MaseGraph, keep_values: bool, on_meta: bool) -> None:
        super().__init__(graph.model, on_meta)
        self.patched_layers = tuple(getattr(graph.model, "patched_custom_layers", ()))
        self.patched_names = set(getattr(graph.model, "patched_op_names", ()))
        self.extra_inputs = getattr(graph.model, "additional_inputs", {})
        self.keep = _Snapshots().of if keep_values else None
        self.described: dict[fx.Node, CommonMeta] = {}

    def run_node(self, n: fx.Node) -> Any:
        module = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        spec = self._identify(n, module)
        operands: dict[str, Any] = {}
        if n.op in ("call_module", "call_function", "call_method"):
            metas = described(args, self.keep), described(kwargs, self.keep)
            operands = bind_operands(n, spec, module, *metas)
        for name, parameter in operand_parameters(module) if module is not None else ():
            operands[name] = described_parameter(parameter, self.keep)
        result = super().run_node(n)
        results = self._results(result)
        if n.op == "placeholder" and input_name(n) in self.extra_inputs:
            results["data_out_0"]["type"] = "model_specific_input"
        common = CommonMeta(mase_type=spec.mase_type, mase_op=spec.name)
        if module is None:
            common |= {"results": results, "args": operands}
        else:
            common |= {"args": operands, "results": results}
        if n.op == "placeholder" and not isinstance(result, Tensor) and len(results) > 0:
            common |= _nesting_of(result)
        self.described[n] = common
        return result

    def _identify(self, n: fx.Node, module: nn.Module | None) -> OpSpec:
        if isinstance(module, self.patched_layers):
            return OPS["patched_custom_layers"]
        spec = identify(n, module)
        name = getattr(n.target, "__name__", "").lower()
        if spec.name == "user_defined_function" and name in self.patched_names:
            return OpSpec(name, "patched_func")
        return spec

    def _results(self, result: Any) -> Operands:
        leaves = list(flatten(described(result, self.keep)))
        if not any(isinstance(leaf, TensorMeta) for leaf in leaves):
            leaves = [result]
        entries = (
            leaf
            if isinstance(leaf, TensorMeta)
            else {"type": type(leaf), "shape": [1], "value": leaf}
            for leaf in leaves
        )
        return Operands({f"data_out_{i}": entry for i, entry in enumerate(entries)})


def _nesting_of(value: Any) -> dict[str, Any]:
    """Return how the tensors of an input are nested: their numbers in place of the tensors."""
    numbers = count()
    nesting = mapped_leaves(value, lambda leaf: next(numbers))
    return {"nesting": nesting} if not isinstance(nesting, int) else {}


def _input_like(node: fx.Node, device: torch.device | None) -> Any:
    """Return an input like the one that a placeholder was described with."""
    common = mase(node).common
    values = [
        result["value"]
        if "value" in result
        else torch.zeros(result["shape"], dtype=result["torch_dtype"], device=device)
        for result in common.results.values()
    ]
    return mapped_leaves(common.get("nesting", 0), values.__getitem__)


def describe_again(graph: MaseGraph) -> None:
    """Describe a graph again after shapes changed inside it, on inputs like the previous ones.

    Without stored values a large network is described on the meta device, which computes nothing,
    unless one of its layers cannot run there.
    """
    inputs: dict[str, Any] = {}
    values_kept = False
    parameters = list(graph.model.parameters())
    device = parameters[0].device if parameters else None
    for node in graph.inputs:
        results = mase(node).common.results.values()
        values_kept |= any("torch_dtype" in result and "value" in result for result in results)
        inputs[input_name(node)] = _input_like(node, device)
    elements = sum(x.numel() for x in flatten(inputs) if isinstance(x, Tensor))
    # a weight is used at most once per input element
    work = elements * sum(p.numel() for p in parameters)
    if not values_kept and work > LITTLE_WORK and not _knows_its_device(graph):
        try:
            describe(graph, inputs, keep_values=False, on_meta=True)
        except PassArgsError:
            logger.debug("a layer cannot run on the meta device; running on real tensors instead")
        else:
            return
    describe(graph, inputs, keep_values=values_kept)


def _knows_its_device(graph: MaseGraph) -> bool:
    """Whether a node returns a device, which would be "meta" if nothing was computed."""
    results = (mase(node).common.results["data_out_0"] for node in graph.nodes)
    return any(result.get("type") is torch.device for result in results)


def annotate_graph(graph: MaseGraph) -> None:
    """Record the graph's inputs and results, and the first and last nodes that compute."""
    common = graph.meta["mase"].common
    common.nodes_in, common.nodes_out = first_computing(graph), last_computing(graph)
    for node in outer_nodes(graph):
        mase(node).hardware.is_implicit = True
    inputs = [mase(node).common.results["data_out_0"].clone() for node in graph.inputs]
    common.args = Operands({f"data_in_{k}": meta for k, meta in enumerate(inputs)})
    output = next(node for node in graph.nodes if node.op == "output")
    common.results = mase(output).common.results.clone()
