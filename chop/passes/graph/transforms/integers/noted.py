"""The integer graph of a circuit, whose values have the formats that the metadata has for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from chop.integers import Requantize, Word
from chop.ir.graph.mase_metadata import TensorMeta, mase
from chop.ir.operands import bind_operands, flatten
from chop.ir.ops import identify
from chop.numerics import NumberFormat
from chop.passes.graph.describe.formats import argument_formats, node_formats
from chop.passes.graph.describe.in_place import writes_in_place
from chop.passes.graph.transforms.integers.converter import Converter, node_call
from chop.passes.graph.transforms.integers.values import Constant, Known, Value, refuse
from chop.registry import UnknownName

NAMES = {"in": "rounded_input", "out": "rounded"}  # of the nodes that round
NOT_A_FORMAT = ("model_specific_input", "NA")


class NotedConverter(Converter):
    """Rounds each value also to the format that the metadata has for it, where it has one.

    The metadata may say that a result has 8 bits, though the layer does not round it: a circuit
    then stores these 8 bits. Formats of the weights and the inputs of a quantised layer are those
    of the layer; metadata that contradicts it is refused.
    """

    def _input(self, node: fx.Node) -> None:
        super()._input(node)
        if node in self.values:
            self.values[node] = self.results[node] = self._result(node, self.values[node])

    def _compute(self, node: fx.Node) -> None:
        _check_arguments(node)
        before = dict(self._operands(node))
        rounded = {source: self.values[source] for source in before}
        super()._compute(node)
        for source, value in before.items():
            if self.values[source] is rounded[source]:  # unless the node wrote to it in place
                self.values[source] = value
        if node.name not in self.integers.left_out:
            self.values[node] = self.results[node] = self._result(node, self.values[node])
        if writes_in_place(node) and node.all_input_nodes:
            self.values[node.all_input_nodes[0]] = self.values[node]

    def _output(self, node: fx.Node) -> None:
        noted = mase(node).common.results
        for i, source in enumerate(flatten(node.args[0])):
            if not isinstance(source, fx.Node) or source.name in self.integers.left_out:
                continue
            if source in self.values:
                self.values[source] = self._returned(source, noted.get(f"data_out_{i}"))
        super()._output(node)

    def _returned(self, source: fx.Node, tensor: Any) -> Value:
        """Return the value that a node returns, in as many bits as its format has."""
        value = self._rounded(source, self.values[source], tensor, "out")
        fmt = noted_format(source, tensor)
        if fmt is None or not isinstance(value, Known):
            return value
        codes, call = self.codes(value), node_call(source)
        word: Word = self.word(fmt, "data_out", call)
        if (codes.width, codes.signed) == (word.width, word.signed):
            return value
        return self.add(f"{source.name}_port", Requantize(word), [value.name], source)

    def _operands(self, node: fx.Node) -> Iterator[tuple[fx.Node, Value]]:
        """Round the operands of a node that is not quantised; yield what they were before."""
        if node_formats(node):
            return
        for name, source in _sources(node).items():
            tensor = mase(node).common.args.get(name)
            if source in self.values and isinstance(tensor, TensorMeta):
                value = self.values[source]
                yield source, value
                self.values[source] = self._rounded(node, value, tensor, "in")

    def _result(self, node: fx.Node, value: Value) -> Value:
        tensor = mase(node).common.results.get("data_out_0")
        return value if tensor is None else self._rounded(node, value, tensor, "out")

    def _rounded(self, node: fx.Node, value: Value, tensor: Any, suffix: str) -> Value:
        """Return a value in the format that the metadata has for it."""
        fmt = noted_format(node, tensor)
        if fmt is None or isinstance(value, Constant):
            return value
        call = node_call(node)
        word: Word = self.word(fmt, f"data_{suffix}", call)
        return self.in_word(value, word, f"{node.name}_{NAMES[suffix]}", call)


def noted_format(node: fx.Node, tensor: Any) -> NumberFormat | None:
    """Return the format of a tensor in the metadata; None for a float, or for integers."""
    if not isinstance(tensor, TensorMeta) or tensor.get("type") in NOT_A_FORMAT:
        return None
    if "torch_dtype" in tensor and not tensor.torch_dtype.is_floating_point:
        return None
    try:
        fmt = tensor.format
    except (UnknownName, ValueError, TypeError) as error:
        raise refuse(node, f"has a format in its metadata that does not exist: {error}") from error
    return fmt if fmt.rounds else None


def _sources(node: fx.Node) -> dict[str, fx.Node]:
    """Return the nodes that a node takes, by the names of its arguments."""
    by_name = {source.name: source for source in node.all_input_nodes}
    module = mase(node).module
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: TensorMeta(from_=n.name))
    bound = bind_operands(node, identify(node, module), module, args, kwargs)
    return {
        name: by_name[leaf["from_"]]
        for name, entry in bound.items()
        for leaf in flatten(entry)
        if isinstance(leaf, TensorMeta)
    }


def _check_arguments(node: fx.Node) -> None:
    """Refuse formats of arguments in the metadata that differ from what the layer computes with."""
    if not node_formats(node):
        return
    computed = argument_formats(node)
    for name, tensor in mase(node).common.args.tensors():
        noted = noted_format(node, tensor)
        if noted is None or name not in computed or _same(noted, computed[name]):
            continue
        raise refuse(
            node,
            f"rounds {name!r} to {computed[name].name} {computed[name].precision}, but its "
            f"metadata says {tensor.type} {tensor.precision}; quantise it to this format",
        )


def _same(one: NumberFormat, other: NumberFormat) -> bool:
    """Return whether two formats round alike."""
    alike = one.name == other.name and list(one.precision) == list(other.precision)
    return alike and one.shown_options == other.shown_options
