"""What one network costs in many formats: shapes are counted once, then only widths are read.

The numbers are those of the passes `cost` and `calculate_avg_bits` on a newly
quantized graph. Formats are read from the layers and functions, so metadata need not be up to date.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph.mase_metadata import TensorMeta, mase
from chop.ir.ops import OPS, has_trait
from chop.numerics import NumberFormat, from_dtype, from_precision
from chop.numerics.float import Float
from chop.passes.graph.analysis.cost.call import Count
from chop.passes.graph.analysis.cost.cost import (
    batch_size,
    counts_of,
    guard_bits,
    own_bit_ops,
    per_sample,
    whole,
)
from chop.passes.graph.analysis.cost.liveness import lifetimes, peak, shares_memory
from chop.passes.graph.analysis.cost.tensors import (
    element_width,
    format_of,
    parameters_of,
    readers_of,
    real_tensors,
    sources,
    stored_bits,
)
from chop.passes.graph.analysis.quantization.calculate_avg_bits import averaged_weights
from chop.passes.graph.describe.formats import (
    dtype_of,
    format_tensor_ids,
    layer_operand,
    operand_shape,
    operands_of,
)
from chop.passes.graph.describe.in_place import named_in_place
from chop.passes.graph.transforms.pruning.masks import masks_of
from chop.passes.graph.transforms.quantize.quantized_funcs import (
    QuantizedFunction,
    float_target,
    has_function,
    quantized_function,
)
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.graph.transforms.quantize.quantized_modules.widths import LearnsWidths
from chop.system.caches import Lru

Formats = Mapping[str, NumberFormat]
Measure = Callable[[NumberFormat], Any]
TensorBits = tuple[float | None, int]
NONE: Formats = {}
MAX_CACHED = 1000  # formats of one operand
MAX_LEDGERS = 4  # networks that keep their ledger; each ledger keeps its network alive


@dataclass(frozen=True)
class Numbers:
    """Costs of a network in its current formats; arithmetic and activations are for one sample."""

    macs: int | float
    flops: int | float
    bit_ops: int | float
    parameter_bits: int
    saved_bits: int  # of parameters and buffers
    peak_activation_bits: int | float
    # bits per element (None in float) and number of elements, of the weights of layers, and of all
    # parameters and buffers; masks of pruning are neither
    weights: tuple[TensorBits, ...]
    tensors: tuple[TensorBits, ...]


class _CostSlot(dict[NumberFormat | None, Any]):
    """Bits of one operand of a node in each format, computed on demand.

    `key` is the name of its format among those of the node; the format None is torch's dtype.
    """

    def __init__(self, key: str, measure: Measure, own: NumberFormat) -> None:
        self.key, self.measure, self.own = key, measure, measure(own)
        super().__init__({None: self.own})

    def __missing__(self, fmt: NumberFormat) -> Any:
        if len(self) > MAX_CACHED:
            self.clear()
            self[None] = self.own
        self[fmt] = bits = self.measure(fmt)
        return bits

    def __call__(self, formats: Formats) -> Any:
        return self[formats.get(self.key)]


@dataclass
class _Result:
    """One result of a node: its size, and how many bits its readers need."""

    shape: tuple[int, ...]
    own: _CostSlot
    grid: _CostSlot | None  # set if results stay on the grid of the input
    readers: list[tuple[int, list[_CostSlot]]] = field(default_factory=list)

    def stored(self, formats: Formats, all_formats: list[Formats]) -> int:
        slot = self.own if self.grid is None or "data_out" in formats else self.grid
        size: int = slot(formats)
        needed = 0
        for user, slots in self.readers:
            theirs = all_formats[user]
            if not theirs or not slots:  # a reader in float reads every bit
                return size
            for slot in slots:
                needed = max(needed, slot(theirs))
        return min(size, needed) if self.readers else size


@dataclass
class Line:
    """One node: where its formats are stored, and the quantities that depend on them."""

    node: fx.Node
    module: nn.Module | None
    count: Count
    target: Any  # the float function of a function node
    products: list[tuple[int, int, _CostSlot, _CostSlot]]  # how many, guard bits, both widths
    parameters: list[tuple[_CostSlot, int]]  # with the number of elements
    is_parameter: bool
    results: list[_Result]
    activation: bool  # whether its results have memory of their own
    # of a layer with weights: bits of each and number of elements
    weights: list[tuple[_CostSlot, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.in_place = self.target is not None and named_in_place(self.target)
        self.quantized = isinstance(self.node.target, QuantizedFunction)

    def formats(self) -> Formats:
        if isinstance(self.module, Quantized):
            return self.module.counted_formats()
        if isinstance(self.node.target, QuantizedFunction):
            config: Any = self.node.kwargs["config"]
            return self.node.target.formats(config)
        return NONE

    def read_bits(self, stored: int) -> TensorBits:
        """Return the bits per element of the parameter that a node reads; None in float."""
        elements = sum(math.prod(result.shape) for result in self.results)
        full = sum(result.own.own for result in self.results)
        return (stored / elements if stored < full and elements else None), elements

    def bit_ops(self, formats: Formats) -> int | float:
        if (own := own_bit_ops(self.module, self.count)) is not None:
            return own[0] + own[1]
        multiply = accumulate = 0.0
        for macs, guard, left_slot, right_slot in self.products:
            left, right = left_slot(formats), right_slot(formats)
            multiply += macs * left * right
            accumulate += macs * (left + right + guard)
        return whole(multiply) + whole(accumulate)


class Ledger:
    """The costs of a graph that do not depend on formats; `read` adds the current widths."""

    def __init__(self, model: fx.GraphModule) -> None:
        self.model, self.graph = model, model.graph
        self.nodes = list(model.graph.nodes)
        self.links = _links(model, self.nodes)
        self.batch = batch_size(self.nodes)
        counts, _ = counts_of(self.nodes)
        self.macs = per_sample(sum(call.macs for call in counts), self.batch)
        self.flops = per_sample(sum(call.flops for call in counts), self.batch)
        counted: set[int] = set()
        calls = zip(self.nodes, counts, strict=True)
        self.lines = [_line(node, call, counted) for node, call in calls]
        _connect_readers(self.lines)
        _record_weights(self.lines)
        self.layers = [(line, *_place(line.node)) for line in self.lines if line.module is not None]
        self.functions = [line for line in self.lines if line.target is not None]
        self.rest = _other_saved_bits(model, counted)
        self.other_tensors = [(None, n) for n in _other_sizes(model, counted)]
        self.dying = lifetimes(self.nodes)
        self._last: tuple[list[Formats], Numbers] | None = None

    def holds(self) -> bool:
        """Whether the network still has the nodes and modules that were counted."""
        if self.model.graph is not self.graph or list(self.graph.nodes) != self.nodes:
            return False
        if any(parent.get(name) is not module for parent, name, module in self.links):
            return False
        for line, parent, name in self.layers:
            module = parent.get(name)
            if module is not line.module and not _is_form_of(module, line.module):
                return False
            line.module = module
        return all(_is_quantized_form(line) for line in self.functions)

    def read(self) -> Numbers:
        """Return the costs in the current formats of the layers."""
        formats = [line.formats() for line in self.lines]
        last = self._last
        # formats give the means of widths that differ by element, but products need each
        mixed = any(isinstance(line.module, LearnsWidths) for line in self.lines)
        if last is not None and last[0] == formats and not mixed:
            return last[1]
        numbers = self._read(formats)
        # formats are compared by value next time, in case the dict has been modified
        self._last = ([dict(each) if each else NONE for each in formats], numbers)
        return numbers

    def _read(self, formats: list[Formats]) -> Numbers:
        bit_ops: int | float = 0
        parameter_bits, sizes = 0, []
        weights: list[TensorBits] = []
        tensors: list[TensorBits] = [*self.other_tensors]
        for line, own in zip(self.lines, formats, strict=True):
            size = 0
            for result in line.results:
                size += result.stored(own, formats)
            sizes.append(size if line.activation else 0)
            if line.products:
                bit_ops += line.bit_ops(own)
            if line.is_parameter:
                parameter_bits += size
                tensors.append(line.read_bits(size))
            for slot, elements in line.parameters:
                parameter_bits += slot(own)
                is_rounded = slot.key in own and elements
                tensors.append((slot(own) / elements if is_rounded else None, elements))
            for slot, elements in line.weights:
                weights.append((slot(own) if slot.key in own else None, elements))
        return Numbers(
            self.macs,
            self.flops,
            per_sample(bit_ops, self.batch),
            parameter_bits,
            parameter_bits + self.rest,
            per_sample(peak(sizes, self.dying)[0], self.batch),
            tuple(weights),
            tuple(tensors),
        )


_LEDGERS: Lru[int, Ledger] = Lru(MAX_LEDGERS)


def ledger_of(model: fx.GraphModule) -> Ledger:
    """Return the ledger of a model with common metadata, cached until its shapes change."""
    ledger = _LEDGERS.get(id(model))
    if ledger is None or ledger.model is not model or not ledger.holds():
        ledger = _LEDGERS.put(id(model), Ledger(model))
    return ledger


def _links(
    model: nn.Module, nodes: Iterable[fx.Node]
) -> list[tuple[dict[str, nn.Module | None], str, nn.Module]]:
    """Every container with a name and a module in it, on the path to a called module."""
    links = {}
    for node in (node for node in nodes if node.op == "call_module"):
        parent = model
        for name in str(node.target).split(".")[:-1]:
            child = parent.get_submodule(name)
            links[id(parent), name] = (parent._modules, name, child)
            parent = child
    return list(links.values())


def _line(node: fx.Node, call: Count, counted: set[int]) -> Line:
    """The format-independent quantities of a node, before its readers are known."""
    products = [
        (p.macs, guard_bits(p), _width(node, p.left), _width(node, p.right)) for p in call.products
    ]
    new = {n: p for n, p in parameters_of(node).items() if id(p) not in counted}
    counted.update(id(p) for p in new.values())
    reads = node.op == "get_attr"  # its parameter is the same size as its result
    held = {} if reads else new
    return Line(
        node,
        mase(node).module,
        call,
        float_target(node) if node.op in ("call_function", "call_method") else None,
        products,
        [(_operand(node, name, _stored(p.shape)), p.numel()) for name, p in held.items()],
        reads and bool(new),
        [_result(node, n, t) for n, t in real_tensors(mase(node).common.results)],
        node.op not in ("get_attr", "output") and not shares_memory(node),
    )


def _place(node: fx.Node) -> tuple[dict[str, nn.Module | None], str]:
    """Return the dict and key under which the module that a node calls is stored."""
    parent, _, name = str(node.target).rpartition(".")
    return mase(node).model.get_submodule(parent)._modules, name


def _is_form_of(new: nn.Module | None, old: nn.Module | None) -> bool:
    """Whether two modules are the same layer in different formats; either may be float."""
    if new is None or old is None:
        return False
    quantized = next((m for m in (new, old) if isinstance(m, Quantized)), None)
    kind = quantized.float_class if quantized is not None else type(old)
    return (
        isinstance(new, kind)
        and isinstance(old, kind)
        and vars(new).get("inplace") is vars(old).get("inplace")
        and _same_values(new._parameters, old._parameters)
        and _same_values(new._modules, old._modules)
    )


def _same_values(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return len(one) == len(other) and all(other.get(k, one) is value for k, value in one.items())


def _is_quantized_form(line: Line) -> bool:
    """Whether a node still calls the counted function, quantized or not."""
    node, now = line.node, isinstance(line.node.target, QuantizedFunction)
    # in float it may write in place, which changes lifetimes of tensors
    return float_target(node) == line.target and (not line.in_place or now is line.quantized)


def _width(node: fx.Node, name: str | None) -> _CostSlot:
    """The slot with an operand's element width; values inside the op are as wide as the result."""
    if name is not None and (name in mase(node).common.args or name in parameters_of(node)):
        return _operand(node, name, element_width)
    key = layer_operand(mase(node).common.mase_op, name or "") if node.op == "call_module" else None
    for result, tensor in real_tensors(mase(node).common.results):
        slot = _result_slot(node, result, tensor, element_width)
        return slot if key is None else _CostSlot(key, element_width, format_of(tensor))
    return _CostSlot("", lambda fmt: 32.0, from_dtype(torch.float32))


def _operand(node: fx.Node, name: str, measure: Measure) -> _CostSlot:
    """The slot of an operand; a function's metadata stores only the precision of a format."""
    if node.op == "call_module":
        key = layer_operand(mase(node).common.mase_op, name)
        return _CostSlot(key or "", measure, _float_format(node, name))
    fmt, function = _float_format(node, name), _rounded(node)
    if function is None or fmt.rounds:
        return _CostSlot("", measure, fmt)
    return _CostSlot(operands_of(node, function).get(name) or "", _published(measure), fmt)


def _rounded(node: fx.Node) -> QuantizedFunction | None:
    """Return a node's function with quantized operands, or None; formats do not matter here."""
    spec = OPS.get(mase(node).common.mase_op)
    if node.op not in ("call_function", "call_method") or spec is None or not has_function(spec):
        return None
    return quantized_function(float_target(node), spec, Float)


def _float_format(node: fx.Node, name: str) -> NumberFormat:
    """The format of an operand in torch's dtype; metadata may still name an earlier one."""
    args = mase(node).common.args
    if name not in args:  # a parameter that is stored in another form
        return from_dtype(parameters_of(node)[name].dtype)
    tensor = args.tensor(name)
    if node.op == "call_module" or ("torch_dtype" in tensor and _rounded(node) is not None):
        return from_dtype(dtype_of(node, name))
    return format_of(tensor)


def _published(measure: Measure) -> Measure:
    return lambda fmt: measure(from_precision(fmt.name, fmt.precision, **fmt.shown_options))


def _stored(shape: Sequence[int]) -> Measure:
    return lambda fmt: stored_bits(fmt, list(shape))


def _result(node: fx.Node, name: str, tensor: TensorMeta) -> _Result:
    """A result of a node, before its readers are known."""
    measure = _stored(tensor.shape)
    slot = _result_slot(node, name, tensor, measure)
    grid = None
    if slot.key and has_trait(mase(node).common.mase_op, "keeps_grid"):
        floating = from_dtype(tensor.torch_dtype)
        published = _published(measure)
        zero = lambda fmt: published(fmt if fmt(0.0) == 0.0 else floating)  # noqa: E731
        grid = _CostSlot("data_in", zero, floating)
    return _Result(tuple(tensor.shape), slot, grid)


def _result_slot(node: fx.Node, name: str, tensor: TensorMeta, measure: Measure) -> _CostSlot:
    if name != "data_out_0" or not _can_be_quantized(node) or "torch_dtype" not in tensor:
        return _CostSlot("", measure, format_of(tensor))
    return _CostSlot("data_out", _published(measure), from_dtype(tensor.torch_dtype))


def _can_be_quantized(node: fx.Node) -> bool:
    return node.op == "call_module" or _rounded(node) is not None


def _connect_readers(lines: Sequence[Line]) -> None:
    """Record for each result which operands read it."""
    number = {line.node: i for i, line in enumerate(lines)}
    origins = {line.node: sources(line.node) for line in lines if _can_be_quantized(line.node)}
    for line in lines:
        for result in line.results:
            measure = _stored(result.shape)
            for user in readers_of(line.node):
                read = [name for name, node in origins.get(user, {}).items() if node is line.node]
                slots = [_operand(user, name, measure) for name in read]
                result.readers.append((number[user], slots))


def _record_weights(lines: Iterable[Line]) -> None:
    """Record the weights of layers; a layer that is called twice counts once."""
    weighed = set()
    for line in lines:
        node, common = line.node, mase(line.node).common
        owner = node.target if node.op == "call_module" else node
        names = averaged_weights(node) if owner not in weighed else []
        if names:
            weighed.add(owner)
        for name in names:
            shape = operand_shape(node, name)
            average = methodcaller("average_bits", shape)
            key = layer_operand(common.mase_op, name) or ""
            slot = _CostSlot(key, average, from_dtype(dtype_of(node, name)))
            line.weights.append((slot, math.prod(shape)))


def _other_saved_bits(model: nn.Module, counted: set[int]) -> int:
    """Bits of saved tensors that are not parameters of nodes, as torch stores them."""
    saved = {id(t): t for t in model.state_dict(keep_vars=True).values() if isinstance(t, Tensor)}
    scales = format_tensor_ids(model)  # which the bits of their tensors contain
    return sum(8 * t.nbytes for key, t in saved.items() if key not in counted | scales)


def _other_sizes(model: nn.Module, counted: set[int]) -> list[int]:
    """Return the sizes of parameters and buffers that no node holds, without masks and scales."""
    masks = {id(mask) for module in model.modules() for mask in masks_of(module).values()}
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    unseen = counted | masks | format_tensor_ids(model)
    return [t.numel() for key, t in tensors.items() if key not in unseen]
