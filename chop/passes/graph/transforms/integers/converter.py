"""Walk a quantised graph, and build the integer graph node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop import integers
from chop.integers import (
    Codes,
    IntegerGraph,
    IntegerOp,
    MixedWord,
    QuantizeInput,
    Requantize,
    Scale,
    TooWide,
    Word,
)
from chop.integers.wrapping import sums_that_may_wrap
from chop.ir.dotted import deepgetattr
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS, has_trait
from chop.numerics import NumberFormat
from chop.passes.base import PassArgsError
from chop.passes.graph.describe.formats import node_formats
from chop.passes.graph.describe.in_place import writes_in_place
from chop.passes.graph.describe.interpreter import evaluation_mode
from chop.passes.graph.transforms.integers.needed import needed_nodes, returned_nodes, returns
from chop.passes.graph.transforms.integers.values import (
    CodesOf,
    Constant,
    Known,
    Unrounded,
    Value,
    refuse,
    tabled_value,
)
from chop.passes.graph.transforms.integers.weights import clipped, dyadic
from chop.passes.graph.transforms.quantize.quantized_modules.base import Quantized
from chop.registry import Registry

Rule = Callable[["NodeCall", "Converter"], Value]

# rules of ops, of layer variants (linear_lutnet), and of the integer ops that rows of ops name
RULES: Registry[Rule] = Registry(
    "rule for integers",
    *(f"{__package__}.{name}_rules" for name in ("pointwise", "joining", "moving", "weighted")),
    room="rules",
)
converts = RULES.register  # decorates a rule


def rule_of(op: str) -> Rule | None:
    """Return the rule of an op or a layer variant: its own, or that of its op in integers."""
    known = OPS[op].integer if op in OPS else ""
    return RULES.quoted(op) or (RULES.quoted(known) if known else None) or RULES.get(op)


@dataclass(frozen=True)
class NodeCall:
    """A node of the quantised graph that computes."""

    node: fx.Node
    op: str
    module: nn.Module | None
    formats: Mapping[str, NumberFormat]

    @property
    def operands(self) -> list[Any]:
        """The positional arguments; those of a list come one by one."""
        first = self.node.args[0] if self.node.args else None
        whole = [*first] if isinstance(first, list | tuple) else [first, *self.node.args[1:]]
        if not self.node.args:
            whole = [value for key, value in self.node.kwargs.items() if key != "config"]
        return whole

    @property
    def source(self) -> fx.Node:
        """The first operand."""
        found = next((x for x in self.operands if isinstance(x, fx.Node)), None)
        if found is None:
            raise self.refusal("takes no value of the graph; compute it outside")
        return found

    def setting(self, name: str, default: Any = None) -> Any:
        """Return an option of the layer or an argument of the function."""
        if self.module is not None:
            return getattr(self.module, name, default)
        return mase(self.node).common.args.get(name, default)

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the result without the batch."""
        return shape_of(self.node)[1:]

    def refusal(self, reason: str) -> PassArgsError:
        return refuse(self.node, reason)

    def evaluate(self, x: Tensor) -> Tensor:
        """Return the float result of the node for another first operand."""
        function: Any = self.module if self.module is not None else self.node.target
        source = self.source
        args, kwargs = fx.node.map_arg(
            (self.node.args, self.node.kwargs), lambda n: x if n is source else n
        )
        if self.node.op == "call_method":
            function = getattr(Tensor, str(self.node.target))
        with torch.no_grad(), evaluation_mode(self.module or nn.Identity()):
            result: Tensor = function(*args, **kwargs)
        return result


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's result in the metadata."""
    return tuple(mase(node).common.results.tensor("data_out_0").shape)


def is_tensor(node: fx.Node) -> bool:
    """Return whether a node gives a tensor, rather than a size and the like."""
    result = mase(node).common.results.get("data_out_0", {})
    return isinstance(result, dict) and "torch_dtype" in result


def formats_of(node: fx.Node) -> Mapping[str, NumberFormat]:
    """Return the formats of a node, with the scales that it uses now."""
    module = mase(node).module
    return module.current_formats() if isinstance(module, Quantized) else node_formats(node)


def node_call(node: fx.Node) -> NodeCall:
    """Return a node with its op, its layer and its formats."""
    return NodeCall(node, mase(node).common.mase_op, mase(node).module, formats_of(node))


def _check_layer(call: NodeCall) -> None:
    """Refuse layers with hooks, which may compute something else than their op."""
    layer = call.module
    if layer is not None and (layer._forward_hooks or layer._forward_pre_hooks):
        raise call.refusal("has hooks, which may change its values; remove them first")


def _check_part_of_input(call: NodeCall) -> None:
    """Refuse a part of an input that is a dict or a tuple."""
    source = next(iter(call.node.all_input_nodes), None)
    if call.op != "getitem" or source is None or source.op != "placeholder":
        return
    part, several = call.node.args[1], "data_out_1" in mase(source).common.results
    if isinstance(part, str) or several:
        raise call.refusal(
            f"takes {part!r} out of the input {source.name!r}; let forward take tensors instead of "
            f"a dict or a tuple"
        )


class Converter:
    """Builds the integer graph of a quantised graph; the rules of the ops call its methods."""

    def __init__(self, graph: MaseGraph) -> None:
        self.graph = graph
        self.integers = IntegerGraph()
        self.values: dict[fx.Node, Value] = {}
        self.results: dict[fx.Node, Value] = {}  # before another node writes to them in place
        self.requantized: dict[tuple[str, Any], Known] = {}

    def convert(self) -> IntegerGraph:
        """Return the integer graph; raises an error that names the first node without one."""
        needed = needed_nodes(self.graph.fx_graph)
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self._input(node)
            elif node not in needed:
                continue
            elif node.op == "get_attr":
                self.values[node] = Constant(deepgetattr(self.graph.model, str(node.target)))
            elif node.op == "output":
                self._output(node)
            elif is_tensor(node) and not returns(node):
                self._compute(node)
        self._note_values()
        self.integers.findings += sums_that_may_wrap(self.integers)
        return self.integers

    def _note_values(self) -> None:
        """Write down which integer nodes have the values of a node."""
        for node, value in self.results.items():
            if isinstance(value, Known):
                self.integers.values[node.name] = value.name
            elif isinstance(value, Unrounded):
                made = [(known.name, word) for known, word in value.cached.values()]
                self.integers.roundings[node.name] = made

    def _input(self, node: fx.Node) -> None:
        if not is_tensor(node):
            return
        dtype = mase(node).common.results.tensor("data_out_0").torch_dtype
        if not dtype.is_floating_point:
            raise refuse(
                node,
                f"is an input of {dtype}; an integer graph takes floats: give float data to "
                f"add_common_metadata, and leave an embedding outside",
            )
        name, shape = str(node.target), shape_of(node)[1:]
        self.integers.inputs.append(name)

        def rounded(word: Word) -> Known:
            return self.add(f"{node.name}_codes", QuantizeInput(word, shape), [name], node)

        what = "the input of the network"
        self.values[node] = self.results[node] = Unrounded(rounded, what, by_element=True)

    def _compute(self, node: fx.Node) -> None:
        call = node_call(node)
        _check_layer(call)
        _check_part_of_input(call)
        value = self._mapped(call) or self._rule(call)(call, self)
        if "data_out" in call.formats and node.name not in self.integers.left_out:
            value = self.in_format(value, "data_out", call)
        self.values[node] = self.results[node] = value
        if writes_in_place(node) and node.all_input_nodes:
            self.values[node.all_input_nodes[0]] = value  # later readers see the new value

    def _rule(self, call: NodeCall) -> Rule:
        """Return the rule of an op, or of a layer variant such as `linear_logicnets`."""
        variant = getattr(call.module, "variant_name", None)
        rule = rule_of(call.op if variant is None else f"{call.op}_{variant}")
        if rule is not None:
            return rule
        if variant is not None:
            raise call.refusal(
                f"is a {variant} layer, which has no integer meaning; use integer or affine"
            )
        raise call.refusal(f"is {call.op}, which has no integer meaning; replace or remove it")

    def _mapped(self, call: NodeCall) -> Value | None:
        """Return a function of a value that becomes part of the tables of its readers, or None."""
        sources, float_layer = call.node.all_input_nodes, not call.formats
        value = self.values.get(sources[0]) if len(sources) == 1 and float_layer else None
        by_channel = has_trait(call.op, "activation") or call.op.startswith("batch_norm")
        if not isinstance(value, Unrounded) or value.tabled is None or not by_channel:
            return None
        before = value.tabled

        def tabled(name: str, codes_of: CodesOf, scale: Scale) -> Known:
            return before(name, lambda x: codes_of(call.evaluate(x)), scale)

        return tabled_value(tabled, call.node.name, f"the result of {call.op}")

    def _output(self, node: fx.Node) -> None:
        sources = returned_nodes(self.graph.fx_graph)
        if not sources or not all(is_tensor(source) for source in sources):
            raise refuse(node, "returns other results than tensors; return tensors only")
        for source in sources:
            value = self.values.get(source)
            if isinstance(value, Unrounded) and value.exact is not None:
                value = value.exact()
            if not isinstance(value, Known):
                what = getattr(value, "what", "a constant")
                raise refuse(
                    source, f"returns {what} without rounding it; give it data_out_width and so on"
                )
            self.integers.outputs.append(value.name)

    def add(self, name: str, op: IntegerOp, inputs: list[str], node: fx.Node) -> Known:
        """Append an op to the integer graph."""
        try:
            return Known(self.integers.add(name, op, inputs, node.name))
        except TooWide as error:
            raise refuse(node, str(error)) from error
        except (ValueError, OverflowError) as error:
            raise refuse(node, f"has no integer meaning: {error}") from error

    def codes(self, value: Known) -> Codes:
        return self.integers.codes(value.name)

    def word(self, fmt: NumberFormat, operand: str, call: NodeCall) -> Word:
        """Return the word of an activation's format."""
        layer = call.module if "frac_bits" in fmt.layer_tensors else None
        try:
            bits = layer.bits_of(operand) if isinstance(layer, Quantized) else None
            if (grid := fmt.uniform().grid()) is not None:
                if bits is not None:
                    return MixedWord.with_bits(grid, *bits)
                shape = shape_of(call.node if operand == "data_out" else call.source)
                return Word.of(grid, len(shape))
        except ValueError as error:
            raise call.refusal(f"cannot hold {operand}: {error}") from error
        reason = "has one exponent or scale for each block of an activation, known only at run time"
        if fmt.elementwise:
            reason = "is not a format of integers"
        raise call.refusal(f"rounds {operand} to {fmt.name}, which {reason}; use integer or affine")

    def in_format(self, value: Value, operand: str, call: NodeCall) -> Known:
        """Return a value in the format that a node has for an operand."""
        fmt = call.formats[operand]
        if isinstance(value, Constant):
            rounding = (
                call.module.rounding(operand, fmt) if isinstance(call.module, Quantized) else fmt
            )
            constant = rounding(value.tensor)
            self.note_clipped(call, operand, value.tensor, constant, fmt)
            return self.constant(constant, call)
        word = self.word(fmt, operand, call)
        return self.in_word(value, word, f"{call.node.name}_{operand.removeprefix('data_')}", call)

    def note_clipped(
        self,
        call: NodeCall,
        operand: str,
        values: Tensor,
        rounded: Tensor,
        fmt: NumberFormat | None,
    ) -> None:
        """Write down a constant that its format does not hold."""
        if count := clipped(values, rounded, fmt):
            self.integers.findings.append(
                f"node {call.node.name!r}: {count} of {values.numel()} numbers of its {operand} "
                f"are clipped by their format, here and in every file and circuit; give it more "
                f"bits, or a larger step"
            )

    def in_word(self, value: Known | Unrounded, word: Word, name: str, call: NodeCall) -> Known:
        """Return a value rounded to a word."""
        if isinstance(value, Unrounded):
            alike = word.scale.uniform and not isinstance(word, MixedWord)
            if alike or value.by_element:
                return value.in_word(word)
            if value.exact is None:
                raise call.refusal(
                    f"rounds {value.what} to bits or scales that differ by element, and one table "
                    f"serves all of them; use one format for the whole tensor"
                )
            value = value.exact()
        if word.holds(self.codes(value)):
            return value
        key = (value.name, word.key)
        if key not in self.requantized:
            self.requantized[key] = self.add(name, Requantize(word), [value.name], call.node)
        return self.requantized[key]

    def value_of(self, source: Any, call: NodeCall) -> Value:
        """Return the value of an operand: of a node, or a number."""
        if isinstance(source, fx.Node) and source in self.values:
            return self.values[source]
        if isinstance(source, int | float) and not isinstance(source, bool):
            return Constant(torch.tensor(float(source), dtype=torch.float64))
        raise call.refusal(f"takes {source}, which is not a tensor of the graph; remove it")

    def operand(self, source: Any, call: NodeCall, operand: str = "data_in") -> Value:
        """Return an operand as the node takes it: rounded if it has a format for it."""
        value = self.value_of(source, call)
        whole = isinstance(source, int) and not isinstance(source, bool)
        if operand in call.formats and not whole:
            return self.in_format(value, operand, call)
        return value

    def known(self, source: Any, call: NodeCall, operand: str = "data_in") -> Known:
        """Return an operand as codes."""
        value = self.operand(source, call, operand)
        if isinstance(value, Constant):
            return self.constant(value.tensor, call)
        if isinstance(value, Unrounded):
            if value.exact is None:
                raise call.refusal(
                    f"takes {value.what} in float; quantise this node, so that it rounds its input"
                )
            return value.exact()
        return value

    def constant(self, tensor: Tensor, call: NodeCall) -> Known:
        """Append a constant, whose values are multiples of one power of two."""
        rank = len(shape_of(call.node))
        if rank == 0:
            raise call.refusal("computes with constants only; compute its result beforehand")
        if tensor.ndim == rank and tensor.shape[0] != 1:
            raise call.refusal("takes a constant with its own batch; give it a batch of one")
        while tensor.ndim < rank:
            tensor = tensor.unsqueeze(0)
        try:
            codes, exponent = dyadic(tensor.squeeze(0))
        except ValueError as error:
            raise call.refusal(str(error)) from error
        op = integers.ConstantCodes(codes, Scale.power(exponent))
        return self.add(f"{call.node.name}_constant", op, [], call.node)

    def uniform(self, value: Known, call: NodeCall) -> Known:
        """Return the value with one scale for all elements."""
        scale = self.codes(value).scale
        if scale.uniform:
            return value
        if not scale.exact:
            raise call.refusal(
                "takes a value with one float scale per channel; give it one scale per tensor"
            )
        least = Scale(scale.exponent.min(), scale.divisor.flatten()[0], scale.factor.flatten()[0])
        for divisor in scale.divisor.flatten():
            least = least.common(Scale(least.exponent, divisor, least.factor))
        return self.refined(value, least, call)

    def by_channel(self, value: Known, call: NodeCall) -> Known:
        """Return the value with one scale for all elements of a channel."""
        codes = self.codes(value)
        known = codes.scale.by_channel(codes.shape) is not None
        return value if known else self.uniform(value, call)

    def refined(self, value: Known, scale: Scale, call: NodeCall) -> Known:
        """Return the value on a finer grid."""
        try:
            factor = self.codes(value).scale.multiple_of(scale)
        except OverflowError as error:
            raise call.refusal(f"needs more than 63 bits: {error}; use closer formats") from error
        if bool((factor == 1).all()):
            return value
        return self.add(f"{call.node.name}_finer", integers.Refine(factor), [value.name], call.node)

    def aligned(self, values: list[Known], call: NodeCall) -> list[Known]:
        """Return the values on one grid."""
        scales = [self.codes(value).scale for value in values]
        if all(scale.same(scales[0]) for scale in scales):
            return values
        if not all(scale.exact for scale in scales):
            raise call.refusal("combines values of different float scales; give it a format")
        common = scales[0]
        for scale in scales[1:]:
            common = common.common(scale)
        return [self.refined(value, common, call) for value in values]
