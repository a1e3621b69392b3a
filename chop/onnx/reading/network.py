"""An ONNX file as a network of torch layers."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from chop.onnx.metadata import FORMAT_KEY, metadata_of
from chop.onnx.reading.bodies import has_body
from chop.onnx.reading.errors import GIVE_SIZE, UnreadableModel
from chop.onnx.reading.files import FIRST_READ, load_proto, opset_of
from chop.onnx.reading.lowering import FIXES, inlined, lowered, upgraded
from chop.onnx.reading.names import identifier, shortened
from chop.onnx.reading.nodes import Scope, read_nodes, uses_of
from chop.onnx.reading.reader import LARGEST_RESULT, Reader
from chop.onnx.reading.registry import OnnxNode, operator_name
from chop.onnx.reading.table import operator_of
from chop.onnx.reading.tensors import Stored, stored_tensor, torch_type, type_name
from chop.onnx.reading.values import known

__all__ = ["NetworkInput", "OnnxNetwork", "read_model", "read_network"]

logger = logging.getLogger(__name__)

BATCH = "batch"
LONG_NAMES = "onnx_names"  # in the meta of a model
TRIALS = (6, 13)  # batches, of which all quotients by up to 13 differ
# other free sizes; no pair is a multiple of another, and networks can halve them five times
FREE_TRIALS = ((96, 64), (160, 224), (352, 416), (544, 608))
MAX_NAMED = 20  # operators in a message


@dataclass(frozen=True)
class NetworkInput:
    """An input: its name, its type, and its shape, in which a text is a free size."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]

    def example(self, batch: int = 2) -> torch.Tensor:
        """Return zeros of its shape, with free sizes other than the batch as in trials."""
        sizes = [size if isinstance(size, int) else FREE_TRIALS[0][0] for size in self.shape]
        if self.shape and isinstance(self.shape[0], str):
            sizes[0] = batch
        return torch.zeros(sizes, dtype=self.dtype)


@dataclass(frozen=True)
class OnnxNetwork:
    """A network that was read: in float, and the number formats that the file rounds to.

    `formats` maps names of nodes to configs of the pass `quantize`. `long_names` maps layers and
    nodes whose names are shorter than in the file to those there; the model's `meta` has them too.
    """

    model: fx.GraphModule
    formats: Mapping[str, Mapping[str, Any]]
    inputs: tuple[NetworkInput, ...]
    outputs: tuple[str, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    long_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def quantize_options(self) -> dict[str, Any]:
        """The options of the pass `quantize` that make the network round as the file does."""
        return {"by": "name", **{k: {"config": dict(v)} for k, v in self.formats.items()}}


def read_model(file: str | Path, *, sizes: Mapping[str, int] | None = None) -> fx.GraphModule:
    """Return the network of an ONNX file, in float: `read_network(file).model`."""
    return read_network(file, sizes=sizes).model


def read_network(file: str | Path, *, sizes: Mapping[str, int] | None = None) -> OnnxNetwork:
    """Read an ONNX file as a network of torch layers, which accepts any batch.

    `sizes` fixes free sizes other than the batch, by their name in the file.
    """
    proto = upgraded(load_proto(file), FIRST_READ, str(file))
    path = Path(file).expanduser()
    weights = {t.name: stored_tensor(t, str(file), path.parent) for t in proto.graph.initializer}
    return network_of(proto, weights, str(file), dict(sizes or {}))


def network_of(
    proto: Any, weights: Mapping[str, Stored], owner: str, sizes: Mapping[str, int]
) -> OnnxNetwork:
    """Return the network of a parsed file; for the batch of the file, if it accepts no other."""
    if proto.graph.sparse_initializer:
        raise UnreadableModel(f"{owner} has sparse weights; export the network with dense ones")
    proto = lowered(inlined(proto, owner))
    _check_operators(proto, owner)
    inputs = _inputs(proto, weights, owner, sizes)
    free, single = _with_free_batch(inputs), _of_batch_one(inputs)
    refusals = []
    for each in [free, *(each for each in (inputs, single) if each != free)]:
        batch = _fixed_batch(inputs) if each == free else None
        try:
            return _read(proto, weights, owner, each, batch)
        except UnreadableModel as error:
            refusals.append(error)
    raise refusals[free != inputs]  # of the sizes in the file


def _check_operators(proto: Any, owner: str) -> None:
    """Refuse all operators that are not known at once."""
    unknown = Counter(
        name
        for node in proto.graph.node
        if operator_of(name := operator_name(node.domain, node.op_type)) is None
        and (node.op_type in FIXES or not has_body(node.domain, node.op_type, opset_of(proto)))
    )
    if unknown:
        names = [f"{op} ({count})" for op, count in sorted(unknown.items())]
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        word = "operator" if len(names) == 1 else "operators"
        if metadata_of(proto).get(FORMAT_KEY) == "integer":
            raise UnreadableModel(
                f"{owner} computes in integers, which cannot be read: export the network as "
                f"qdq, qcdq or qonnx, or run the file as it is with `runtime='onnxruntime'`"
            )
        fix = next((FIXES[op] for op in unknown if op in FIXES), "")
        raise UnreadableModel(
            f"{owner} uses the {word} {', '.join(names[:MAX_NAMED])}{more}, which cannot be read; "
            f"{fix or 'docs/reading_onnx.md lists those that can'}"
        )


def _inputs(
    proto: Any, weights: Mapping[str, Stored], owner: str, sizes: Mapping[str, int]
) -> list[NetworkInput]:
    found = [each for each in proto.graph.input if each.name not in weights]
    if not found or not proto.graph.output:
        raise UnreadableModel(f"{owner} has no input or no output; export the network again")
    shaped = [_input(each, owner, {}) for each in found]
    free = dict.fromkeys(size for each in shaped for size in each.shape if isinstance(size, str))
    for name, size in sizes.items():
        if name not in free:
            names = ", ".join(map(str, free)) or "none"
            raise UnreadableModel(f"{owner} has no free size {name!r}; its free sizes are: {names}")
        if size < 1:
            raise UnreadableModel(f"{owner}: the size {name!r} must be at least 1, not {size}")
    return [_input(each, owner, sizes) for each in found]


def _input(proto: Any, owner: str, sizes: Mapping[str, int]) -> NetworkInput:
    kind = proto.type.tensor_type
    if not proto.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise UnreadableModel(
            f"{owner}: input {proto.name!r:.80} is no tensor, or has no shape; export the network "
            f"with the shapes of its inputs"
        )
    dtype = torch_type(kind.elem_type, f"{owner}: input {proto.name!r:.80}")
    shape: list[int | str] = []
    for place, dim in enumerate(kind.shape.dim):
        name = dim.dim_param or (BATCH if place == 0 else f"size_{place}")
        # some exporters write 0, or -1, for a batch that is free
        is_fixed = dim.HasField("dim_value") and dim.dim_value >= (1 if place == 0 else 0)
        size = dim.dim_value if is_fixed else name
        shape.append(sizes.get(size, size) if isinstance(size, str) else size)
    return NetworkInput(proto.name, dtype, tuple(shape))


def _with_free_batch(inputs: list[NetworkInput]) -> list[NetworkInput]:
    """Return the inputs of a file without any free size for any batch."""
    if any(isinstance(size, str) for each in inputs for size in each.shape):
        return inputs
    return [replace(e, shape=(BATCH, *e.shape[1:])) if e.shape else e for e in inputs]


def _of_batch_one(inputs: list[NetworkInput]) -> list[NetworkInput]:
    """Return the inputs with one sample, as states of a fixed batch beside free sizes need it."""
    free = {size for each in inputs for size in each.shape if isinstance(size, str)}
    first = {each.shape[0] for each in inputs if each.shape and isinstance(each.shape[0], str)}
    batches = {name for name in free if BATCH in name.lower()} or first
    if all(each.shape and each.shape[0] in batches for each in inputs):
        return inputs
    return [
        replace(each, shape=tuple(1 if size in batches else size for size in each.shape))
        for each in inputs
    ]


def _fixed_batch(inputs: list[NetworkInput]) -> int | None:
    """Return the batch that a file is exported for; None if any is accepted."""
    sizes = {each.shape[0] for each in inputs if each.shape}
    (size,) = sizes if len(sizes) == 1 else (None,)
    return size if isinstance(size, int) else None


def _read(
    proto: Any,
    weights: Mapping[str, Stored],
    owner: str,
    inputs: list[NetworkInput],
    batch: int | None,
) -> OnnxNetwork:
    num_stored = sum(stored.tensor.numel() for stored in weights.values())
    reader = Reader(opset_of(proto), batch, num_stored)
    graph = proto.graph
    reader.uses = uses_of(graph.node, (output.name for output in graph.output))
    scope = Scope(owner)
    for name, stored in weights.items():
        scope.values[name] = known(stored.tensor, name, stored.kind)
    trials = dict(_trials(inputs, owner))
    kinds = {each.name: type_name(each.type.tensor_type.elem_type) for each in graph.input}
    for each in inputs:
        pair = [[s if isinstance(s, int) else trials[s][i] for s in each.shape] for i in (0, 1)]
        if max(map(math.prod, pair)) > LARGEST_RESULT:
            raise UnreadableModel(
                f"{owner}: input {each.name!r:.80} has the shape {list(each.shape)}, which is too "
                f"large to be computed; export the network with smaller inputs"
            )
        samples = [torch.empty(sizes, dtype=each.dtype, device="meta") for sizes in pair]
        value = reader.input(each.name, (samples[0], samples[1]))
        if kinds[each.name] in ("UINT16", "UINT32"):  # which torch holds, but does not compute with
            assert value.node is not None
            value = replace(value, node=reader.graph.call_method("to", (value.node, each.dtype)))
        scope.values[each.name] = replace(value, kind=kinds[each.name])
    read_nodes(reader, graph.node, scope)
    outputs = tuple(output.name for output in graph.output)
    results = [_output(reader, scope, name) for name in outputs]
    reader.graph.output(results[0] if len(results) == 1 else tuple(results))
    model = fx.GraphModule(reader.root, reader.graph, "OnnxModel")
    model.graph.eliminate_dead_code()
    model.delete_all_unused_submodules()
    model.recompile()
    model.eval()
    inputs = [
        replace(each, name=str(node.target))
        for each, node in zip(inputs, [v.node for v in reader.inputs if v.node], strict=True)
    ]
    model.meta[LONG_NAMES] = dict(reader.long_names)
    names = tuple(shortened(identifier(name)) for name in outputs)
    metadata, long_names = metadata_of(proto), reader.long_names
    return OnnxNetwork(model, reader.configs(model), tuple(inputs), names, metadata, long_names)


def _trials(inputs: list[NetworkInput], owner: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield two sizes for each free dimension; the first one of the first input is the batch."""
    free = [size for each in inputs for size in each.shape if isinstance(size, str)]
    batches = {each.shape[0] for each in inputs if each.shape and isinstance(each.shape[0], str)}
    number = 0
    for name in dict.fromkeys(free):
        if name in batches:
            yield name, TRIALS
        else:
            if number == len(FREE_TRIALS):
                raise UnreadableModel(
                    f"{owner} has more than {number} free sizes besides the batch "
                    f"({', '.join(dict.fromkeys(free))}); {GIVE_SIZE}"
                )
            yield name, FREE_TRIALS[number]
            number += 1


def _output(reader: Reader, scope: Scope, name: str) -> Any:
    value = scope.values.get(name)
    if value is None:
        raise UnreadableModel(
            f"{scope.owner}: no node computes the output {name!r:.80}; export it again"
        )
    reader.current = reader.current or OnnxNode.__new__(OnnxNode)
    return reader._argument(reader.settled(value))
