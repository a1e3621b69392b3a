"""Walk a graph, and write the ONNX nodes of each of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.dotted import deepgetattr
from chop.onnx import ModelBuilder
from chop.passes.graph.describe.interpreter import input_name
from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.memory import (
    check_writes,
    homes_of,
    writes_to_input,
    written_nodes,
)
from chop.passes.graph.interface.export_onnx.observe import KnownGraph
from chop.passes.graph.interface.export_onnx.registry import writer_of
from chop.passes.graph.interface.export_onnx.rounding import FloatOperands, WrittenOperands
from chop.passes.graph.interface.export_onnx.values import (
    DTYPES,
    DynamicSize,
    ExportError,
    OnnxSize,
    OnnxTensor,
    TensorFacts,
    as_array,
    with_leaves,
)

__all__ = ["GraphWriter", "named_leaves"]

BATCH = "batch"
SKIPPED = ("_assert", "assert_metadata")  # checks of the inputs, which a file does not have
NAMED = ("named_output",)


class GraphWriter:
    """Writes one graph; `rounding` says what the operands of a node go through."""

    def __init__(
        self,
        known: KnownGraph,
        builder: ModelBuilder,
        rounding: Callable[[fx.Node], WrittenOperands] | None = None,
        *,
        gemm: bool = True,
    ) -> None:
        """`gemm`: whether linear layers become Gemm; FINN and hls4ml expect MatMul and Add."""
        self.known, self.builder, self.gemm = known, builder, gemm
        self.rounding = rounding or (lambda node: FloatOperands())
        self.values: dict[fx.Node, Any] = {}
        self.first_names: dict[str, str] = {}  # of results that were named after their node
        self.constants: dict[int, tuple[Tensor, str]] = {}  # by identity, kept alive
        self.names = {id(p): name for name, p in known.model.state_dict(keep_vars=True).items()}

    def write(self) -> None:
        """Add all nodes to the builder; ops without a function are refused together."""
        needed = self._needed()
        self._check_ops(needed)
        self._check_sizes(needed)
        check_writes(self.known, needed)
        for node in self.known.model.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._input(node)
        for node in self.known.model.graph.nodes:
            if node.op == "output":
                self._outputs(node)
            elif node in needed and node.op != "placeholder":
                self._node(node)
        self._remove_unused()

    def _remove_unused(self) -> None:
        """Remove nodes and constants that nothing reads, such as values that became codes."""
        used, kept = {output.name for output in self.builder.outputs}, []
        for node in reversed(self.builder.nodes):
            if used.isdisjoint(node.output):
                continue
            used |= {*node.input}
            kept.append(node)
        self.builder.nodes[:] = reversed(kept)
        constants = self.builder.constants
        self.builder.constants = {name: c for name, c in constants.items() if name in used}

    def _needed(self) -> set[fx.Node]:
        """Return the nodes that the output depends on, and those that write to such memory."""
        homes = homes_of(self.known)
        needed: set[fx.Node] = set()
        memory: set[fx.Node] = set()
        for node in reversed(self.known.model.graph.nodes):
            writes = homes[node] in memory and writes_to_input(node, self.known)
            if node.op != "output" and node not in needed and not writes:
                continue
            sources = [] if node in self.known.constants else node.all_input_nodes
            needed |= {node, *sources}
            memory |= {homes[source] for source in sources}
        return needed

    def _check_ops(self, needed: set[fx.Node]) -> None:
        missing: dict[str, list[str]] = {}
        for node in self.known.model.graph.nodes:
            is_call = node.op in ("call_function", "call_method", "call_module")
            if not is_call or node not in needed or node in self.known.constants:
                continue
            op = self.known.op(node)
            if op in SKIPPED or op in NAMED or writer_of(op):
                continue
            name = op if not op.startswith("user_defined") else f"{op} {_target(node)}"
            missing.setdefault(name, []).append(node.name)
        if not missing:
            return
        told = "; ".join(f"{op} ({', '.join(names)})" for op, names in missing.items())
        raise ExportError(f"these ops cannot be exported to ONNX: {told}; replace or remove them")

    def _check_sizes(self, needed: set[fx.Node]) -> None:
        unclear = [node.name for node in self.known.model.graph.nodes if node in self.known.unclear]
        if used := [name for name in unclear if name in {node.name for node in needed}]:
            raise ExportError(
                f"node {used[0]!r} computes a number from the size of the batch, which a file "
                f"cannot hold; compute with sizes that are fixed"
            )

    # --- inputs and outputs

    def _input(self, node: fx.Node) -> Any:
        facts = self.known.facts[node]
        if not isinstance(facts, TensorFacts):
            return facts
        name = input_name(node)
        if facts.dtype not in DTYPES:
            raise ExportError(f"the input {name!r} has {facts.dtype}; give float32 or int64")
        shape = [BATCH if size is None else size for size in facts.shape]
        return OnnxTensor(self.builder.input(name, DTYPES[facts.dtype], shape), facts)

    def _outputs(self, node: fx.Node) -> None:
        value = self._returned(node.args[0])
        leaves = named_leaves(value)
        renamed: dict[str, str] = {}
        if not leaves:
            raise ExportError("the network returns no tensors; let forward return some")
        for name, leaf in leaves:
            if isinstance(leaf, Tensor):
                facts = TensorFacts(leaf.dtype, tuple(leaf.shape))
                leaf = OnnxTensor(self.stored(leaf), facts)
            if not isinstance(leaf, OnnxTensor):
                raise ExportError(f"the network returns {type(leaf).__name__}; return tensors only")
            batch = leaf.facts.batch_dims
            shape = enumerate(leaf.facts.shape)
            free = [BATCH if place in batch else n for place, n in shape]
            value = renamed.get(leaf.name, leaf.name)
            if not self.gemm and value not in {output.name for output in self.builder.outputs}:
                value = name = self._renamed(value, name, 0)  # hls4ml drops an Identity
                renamed[leaf.name] = value
            self.builder.output(value, name, DTYPES[leaf.facts.dtype], free)

    def _returned(self, value: Any) -> Any:
        """Return the results; those by name are a dict."""
        if isinstance(value, fx.Node) and value not in self.values:
            if self.known.op(value) in NAMED or isinstance(value.target, type):
                return self._by_name(value)
            return self.given(value)
        if isinstance(value, fx.Node):
            return self.values[value]
        if isinstance(value, Mapping):
            return {key: self._returned(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return tuple(self._returned(item) for item in value)
        return self.given(value)

    def _by_name(self, node: fx.Node) -> dict[str, Any]:
        facts: dict[str, Any] = self.known.facts[node]
        leaves: list[fx.Node] = []
        fx.node.map_arg((node.args, node.kwargs), leaves.append)
        names = [key for key, value in facts.items() if value is not None]
        values = [self._returned(leaf) for leaf in leaves]
        return dict(zip(names, values, strict=False))

    # --- nodes

    def _node(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            self.values[node] = deepgetattr(self.known.model, str(node.target))
            return
        if node in self.known.constants:
            self.values[node] = self.known.constants[node]
        elif self.known.op(node) not in (*SKIPPED, *NAMED):
            self.values[node] = self._called(node)
        if node in self.values and writes_to_input(node, self.known):
            written = dict.fromkeys(written_nodes(node, self.known), self.values[node])
            self.values.update(written)

    def _called(self, node: fx.Node) -> Any:
        start, call = len(self.builder.nodes), OpCall(self, node)
        write = writer_of(call.op)
        assert write is not None
        given = write(call)
        result = self._described(given, call.facts, node)
        if isinstance(result, OnnxTensor):
            rounded = call.rounding.result(call, result.name, result.facts)
            result = OnnxTensor(self._renamed(rounded, node.name, start), result.facts)
        elif isinstance(result, OnnxSize):
            result = OnnxSize(self._renamed(result.name, node.name, start))
        return result

    def _described(self, given: Any, facts: Any, node: fx.Node) -> Any:
        """Return the names that a function gave with the facts of their values."""
        if isinstance(facts, TensorFacts):
            return given if isinstance(given, OnnxTensor | Tensor) else OnnxTensor(given, facts)
        if isinstance(facts, DynamicSize):
            return given if isinstance(given, OnnxSize) else OnnxSize(given)
        if isinstance(facts, tuple | list) and isinstance(given, tuple | list):
            pairs = zip(given, facts, strict=True)
            return tuple(self._described(one, about, node) for one, about in pairs)
        if isinstance(given, str):
            raise ExportError(f"node {node.name!r} gives {facts!r:.40}, which a file cannot hold")
        return given

    def _renamed(self, name: str, wanted: str, start: int) -> str:
        """Give a result the name of its node, if one of the new nodes computes it."""
        new = self.builder.nodes[start:]
        maker = next((n for n in new if name in n.output), None)
        if maker is None:
            return name
        unique = self.builder.unique(wanted)
        self.first_names[unique] = name
        for node in new:
            for names in (node.input, node.output):
                for place, old in enumerate(names):
                    if old == name:
                        names[place] = unique
        maker.name = unique
        return unique

    def first_name(self, name: str) -> str:
        """Return the name under which a function made a value."""
        return self.first_names.get(name, name)

    def given(self, value: Any) -> Any:
        """Return arguments with their nodes replaced by what these have become."""
        return with_leaves(value, self._leaf)

    def _leaf(self, value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return value
        if value in self.values:
            return self.values[value]
        return self.known.constants[value]

    def stored(self, tensor: Tensor, name: str | None = None) -> str:
        """Return the name of a constant; one of the model has its name in the state dict."""
        if id(tensor) in self.constants:
            return self.constants[id(tensor)][1]
        name = self.names.get(id(tensor), name)
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise ExportError(f"{name or 'a constant'} has NaN; train or load it again")
        found = self.builder.constant(as_array(tensor), name)
        self.constants[id(tensor)] = (tensor, found)
        return found


def _target(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def named_leaves(value: Any, name: str = "output") -> list[tuple[str, Any]]:
    """Return the results with their names: output, output_0, …, or the keys of a dict."""
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in named_leaves(item, str(key))]
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return [pair for i, item in enumerate(value) for pair in named_leaves(item, f"{name}_{i}")]
    return [] if value is None else [(name, value)]
