"""What is known of each node before anything is written: dtypes, sizes and constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import TensorMeta, mase
from chop.ir.nested import contents
from chop.ir.ops import identify
from chop.passes.graph.describe.interpreter import GraphRunner, RunError, input_name
from chop.passes.graph.interface.export_onnx.values import (
    BATCHES,
    DynamicSize,
    ExportError,
    TensorFacts,
    is_fact,
    merged_facts,
    with_leaves,
)
from chop.system.memory import OutOfMemory

_RANDOM = """
    rand randn randint randperm multinomial normal bernoulli rand_like randn_like randint_like
    uniform random exponential empty empty_like new_empty gumbel_softmax
"""
RANDOM = frozenset(_RANDOM.split())


@dataclass
class KnownGraph:
    """The graph that is written, with its own functions inlined, and what is known of its nodes."""

    model: fx.GraphModule
    batch: int | None  # a size of the batch; None if the graph only runs with one
    facts: dict[fx.Node, Any] = field(default_factory=dict)
    constants: dict[fx.Node, Any] = field(default_factory=dict)
    shared: dict[fx.Node, fx.Node] = field(default_factory=dict)  # whose memory a result is in
    unclear: set[fx.Node] = field(default_factory=set)  # numbers that may depend on the batch

    def op(self, node: fx.Node) -> str:
        """Return the name of a node's op in the table."""
        layer = self.model.get_submodule(str(node.target)) if node.op == "call_module" else None
        return identify(node, layer).name


def observed(graph: MaseGraph) -> KnownGraph:
    """Run the graph for two sizes of the batch, and return what both runs have in common."""
    model = fx.GraphModule(graph.model, _inlined(graph.fx_graph))
    model.train(graph.model.training)
    inputs = _input_facts(graph)
    tensors = [facts for facts in inputs if isinstance(facts, TensorFacts)]
    batch: Any = next((facts.shape[0] for facts in tensors if facts.shape), None)
    runs = _runs(model, inputs, batch)
    found = KnownGraph(model, batch if len(runs) == 2 else None, shared=runs[0].shared)
    for node in model.graph.nodes:
        found.facts[node] = merged_facts(runs[0].facts[node], runs[-1].facts[node])
        if _is_unclear(node, found):
            found.unclear.add(node)
        if _is_constant(node, found, runs[0]):
            found.constants[node] = runs[0].kept[node]
    return found


def _is_unclear(node: fx.Node, found: KnownGraph) -> bool:
    """Return whether a number is computed from the batch, but is not a size that differs by it.

    Half of the batch is 1 for batches of 2 and of 3, and 1 / batch is not an integer.
    """
    sized = any(isinstance(found.facts[n], DynamicSize) for n in node.all_input_nodes)
    return sized and isinstance(found.facts[node], bool | int | float)


def _is_constant(node: fx.Node, found: KnownGraph, run: _Recorder) -> bool:
    """Return whether a node gives the same for all inputs: a size, a mask, a sum of weights."""
    if node.op in ("output", "get_attr") or node not in run.kept:
        return False
    leaves = _leaves(found.facts[node])
    if any(isinstance(leaf, DynamicSize) for leaf in leaves):
        return False
    if not any(isinstance(leaf, TensorFacts) for leaf in leaves):
        return True
    sources = node.all_input_nodes
    fixed = all(source in found.constants or source.op == "get_attr" for source in sources)
    return node.op != "placeholder" and fixed and found.op(node) not in RANDOM


def _leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    with_leaves(value, found.append)
    return found


def _has_tensors(facts: Any) -> bool:
    return any(isinstance(leaf, TensorFacts) for leaf in _leaves(facts))


def _runs(model: fx.GraphModule, inputs: list[Any], batch: int | None) -> list[_Recorder]:
    """Return the runs with two sizes of the batch.

    It is one run with the given size if others fail, or give other numbers of results or of
    dimensions, as `unbind` and `squeeze` may.
    """
    if batch is not None:
        try:
            runs = [_run(model, inputs, batch, size) for size in BATCHES]
            ones = [_run(model, inputs, batch, batch)] if batch == 1 else []
        except (RunError, RuntimeError) as error:
            if isinstance(error, OutOfMemory):
                raise
        else:
            first, *others = ({n: _form(run.facts[n]) for n in run.facts} for run in (*runs, *ones))
            if all(form == first for form in others):
                return runs
    return [_run(model, inputs, batch, batch)]


def _form(facts: Any) -> Any:
    """Return how results are nested, and their numbers of dimensions."""
    if isinstance(facts, TensorFacts):
        return len(facts.shape)
    inside = contents(facts) if isinstance(facts, list | tuple | dict) else None
    return None if inside is None else {key: _form(item) for key, item in inside.items()}


def _run(model: fx.GraphModule, inputs: list[Any], batch: int | None, size: Any) -> _Recorder:
    recorder = _Recorder(model)
    recorder.run_unchanged([_example(facts, batch, size) for facts in inputs])
    return recorder


def _example(facts: Any, batch: int | None, size: Any) -> Any:
    if not isinstance(facts, TensorFacts):
        return facts
    shape = [*facts.shape]
    if shape and shape[0] == batch:
        shape[0] = size
    return torch.zeros(shape, dtype=facts.dtype)  # type: ignore[arg-type]


def _input_facts(graph: MaseGraph) -> list[Any]:
    found: list[Any] = []
    for node in graph.inputs:
        results = mase(node).common.results
        meta = results.get("data_out_0")
        name = input_name(node)
        if "data_out_1" in results or str(node.target).startswith("*"):
            raise ExportError(
                f"the input {name!r} is not one tensor; let forward take tensors by name"
            )
        is_tensor = isinstance(meta, TensorMeta) and "torch_dtype" in meta
        if is_tensor:
            found.append(TensorFacts(meta.torch_dtype, tuple(meta.shape)))  # type: ignore[union-attr]
        else:
            found.append(node.args[0] if node.args else None)
    return found


class _Recorder(GraphRunner):
    """Records the facts of all results, and those results that depend on no number of an input."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.facts: dict[fx.Node, Any] = {}
        self.kept: dict[fx.Node, Any] = {}
        self.shared: dict[fx.Node, fx.Node] = {}

    def run_node(self, n: fx.Node) -> Any:
        before = {source: _memory(self.env[source]) for source in n.all_input_nodes}
        result = super().run_node(n)
        self.facts[n] = with_leaves(_opened(result), _facts_of)
        if self._is_fixed(n):
            self.kept[n] = with_leaves(result, _copy)  # later nodes may write to it
        own = _memory(result)
        for source, memory in before.items():
            if memory & own:
                self.shared.setdefault(n, source)
        return result

    def _is_fixed(self, node: fx.Node) -> bool:
        if node.op == "placeholder":
            return not _has_tensors(self.facts[node])
        layer = self.fetch_attr(str(node.target)) if node.op == "call_module" else None
        if node.op != "output" and is_fact(identify(node, layer).name):
            return not _has_tensors(self.facts[node])
        return all(n in self.kept or n.op == "get_attr" for n in node.all_input_nodes)


def _memory(value: Any) -> set[int]:
    """Return where the tensors of a value are stored; a view shares its memory with another."""
    tensors = (leaf for leaf in _leaves(_opened(value)) if isinstance(leaf, Tensor))
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _opened(value: Any) -> Any:
    """Return results by name, as of a model of a library, as a dict."""
    inside = contents(value)
    if inside is None or isinstance(value, list | tuple | dict | slice):
        return value
    return dict(inside)


def _facts_of(value: Any) -> Any:
    if isinstance(value, torch.Size):
        return tuple(value)
    return TensorFacts(value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else value


def _inlined(graph: fx.Graph) -> fx.Graph:
    """Return a copy of the graph in which functions that are not in the table are traced."""
    new = fx.Graph()
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        body = _traced(node)
        if body is None:
            values[node] = new.node_copy(node, lambda n: values[n])
            continue
        args = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        values[node] = _copied(new, body, node, *args)
    return new


def _traced(node: fx.Node) -> fx.Graph | None:
    """Return the graph of a function that is not in the table of ops."""
    function = node.target
    is_own = node.op == "call_function" and isinstance(function, FunctionType)
    if not is_own or identify(node).name != "user_defined_function":
        return None
    try:
        return fx.Tracer().trace(function)  # type: ignore[arg-type]
    except Exception:
        return None


def _copied(graph: fx.Graph, body: fx.Graph, call: fx.Node, args: Any, kwargs: Any) -> Any:
    """Copy the nodes of a function; the result has the name of the call."""
    given = iter(args)
    values: dict[fx.Node, Any] = {}
    (output,) = (node for node in body.nodes if node.op == "output")
    for node in body.nodes:
        if node.op == "placeholder":
            default = node.args[0] if node.args else None
            values[node] = next(given, kwargs.get(str(node.target), default))
        elif node.op != "output":
            values[node] = graph.node_copy(node, lambda n: values[n])
    result = fx.node.map_arg(output.args[0], lambda n: values[n])
    if isinstance(result, fx.Node):
        result._rename(call.name)
    return result
