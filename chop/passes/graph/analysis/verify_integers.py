"""Compare the integer graph with the float simulation, layer by layer."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from annotated_types import Ge
from tabulate import tabulate
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map_only

from chop.files import write_whole
from chop.integers import (
    ChannelAffine,
    ConstantCodes,
    IntegerGraph,
    IntegerNode,
    IntegerOp,
    Lookup,
    NeuronTables,
    QuantizeInput,
    Requantize,
    ResidualSigns,
    Word,
)
from chop.integers.vectors import InputWord, boundary_inputs, input_words, random_inputs
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.nested import separated
from chop.log import show_logs_unless_configured
from chop.numerics.affine import Affine
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.describe.batches import batches, check_count, check_generator
from chop.passes.graph.describe.formats import node_formats
from chop.passes.graph.describe.interpreter import GraphRunner, device_of, input_name
from chop.passes.graph.transforms.integers import integer_graph
from chop.passes.graph.transforms.integers.converter import node_call
from chop.passes.graph.transforms.integers.needed import returned_nodes
from chop.passes.graph.transforms.neurons import Neurons
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.options import OutputPath

logger = logging.getLogger(__name__)

BATCH = 256
TABLES: tuple[type[IntegerOp], ...] = (Lookup, NeuronTables)
ROUNDING: tuple[type[IntegerOp], ...] = (QuantizeInput, Requantize, Lookup, ConstantCodes)
GRIDS: tuple[type[IntegerOp], ...] = (*ROUNDING, NeuronTables, ResidualSigns)
OUTPUT_TOLERANCE = 2.0**-16  # of an output that float32 rounds, relative to the largest
TIE = 2.0**-20  # of a step

__all__ = ["verify_integers_analysis_pass"]


@graph_pass("verify_integers", "analysis", needs=("common",))
def verify_integers_analysis_pass(
    graph: MaseGraph,
    *,
    input_generator: Any = None,
    num_samples: Annotated[int, Ge(1)] = 1024,
    strict: bool = False,
    silent: bool = False,
    file_name: OutputPath | None = None,
) -> dict[str, Any]:
    """Compare the integer graph with the float simulation, on data and on boundary vectors.

    `num_samples` samples come from `input_generator`, which yields dicts of inputs; without one
    they are random. Boundary vectors have the lowest and the highest codes everywhere, in turns,
    and at single places. Each layer gets the inputs of the integer graph. Its equality is "proven"
    if no sum reaches 2^24 steps, so that float32 is exact in any order, and "observed" otherwise,
    as is what takes an observed value before it is rounded; an observed layer is compared with the
    simulation in float64. `strict` raises an error for a mismatch; `silent` leaves out the table,
    and `file_name` also writes it to a file.
    """
    integers = integer_graph(graph)
    vectors = _vectors(graph, integers, input_generator, num_samples)
    layers, whole = compare_simulation(graph, integers, vectors)
    if not whole.values:
        logger.warning("the outputs are not compared, as %s", "; ".join(integers.notes))
    info = _info(layers, whole)
    text = _table([*layers.values(), whole])
    if not silent:
        show_logs_unless_configured()
        logger.info("Integer graph and float simulation:\n%s", text)
    if file_name is not None:
        write_whole(file_name, text + "\n")
    if strict and info["mismatches"]:
        wrong = next(layer for layer in layers.values() if layer.mismatches)
        raise PassArgsError(
            f"node {wrong.node!r} differs from the float simulation in {wrong.mismatches} of "
            f"{wrong.values} values; use scales that are powers of two or narrower formats"
        )
    return info


def compare_simulation(
    graph: MaseGraph, integers: IntegerGraph, vectors: Iterable[list[Any]]
) -> tuple[dict[str, LayerCheck], LayerCheck]:
    """Return the checks of all layers, and that of the outputs; `vectors` are batches of inputs."""
    layers = _checks(graph, integers)
    doubled = _doubled(graph)
    whole = LayerCheck("whole network", "", "", False)
    for inputs in vectors:
        _compare(graph, doubled, integers, layers, inputs)
        _compare_outputs(graph, integers, inputs, whole)
    return layers, whole


def _doubled(graph: MaseGraph) -> fx.GraphModule:
    """Return the simulation in float64, with the codes that float32 gives weights and biases."""
    model = graph.clone().model
    for layer in model.modules():
        if not isinstance(layer, Quantized):
            continue
        for name, parameter in layer.named_parameters(recurse=False):
            if isinstance(layer.formats.get(name), Affine):
                parameter.data = layer.q_parameter(name).detach()
    return model.double()


@dataclass(frozen=True)
class FirstMismatch:
    """Where a layer differed first, in steps of the code that was expected."""

    sample: int
    place: tuple[int, ...]
    expected: float
    got: float


@dataclass
class LayerCheck:
    """What was compared for one node, and how often it differed."""

    node: str
    op: str
    kind: str
    proven: bool
    counted: bool = True  # whether its values lie on a grid, so that a difference is a mismatch
    returned: bool = False  # without being rounded, so that a tolerance says what a mismatch is
    accumulator: int | None = None
    samples: int = 0
    values: int = 0
    mismatches: int = 0
    largest: float = 0.0
    first: FirstMismatch | None = None
    table: bool = field(default=False, repr=False)
    rounding: IntegerNode | None = field(default=None, repr=False)  # of an operand

    @classmethod
    def of(
        cls, node: fx.Node, integers: IntegerGraph, proven: Mapping[str, bool]
    ) -> LayerCheck | None:
        """Return the check of a node, or None for one that no integer node stands for."""
        made = [each for each in integers.nodes.values() if each.source == node.name]
        name = integers.values.get(node.name)
        roundings = integers.roundings.get(node.name, [])
        computes = node.op not in ("placeholder", "get_attr", "output")
        if not computes or node.name in integers.left_out or not (name or roundings):
            return None
        names = [name] if name else [each for each, _ in roundings]
        kinds = " ".join(dict.fromkeys(integers.codes(each).kind for each in names))
        widths = [each.codes.width for each in made if each.accumulates]
        return cls(
            node.name,
            mase(node).common.mase_op,
            kinds,
            all(proven[each] for each in (*names, *(each.name for each in made))),
            counted=not name or on_grid(name, integers),
            returned=name in integers.outputs,
            accumulator=max(widths, default=None),
            table=any(isinstance(each.op, TABLES) for each in made),
        )

    @classmethod
    def of_rounding(
        cls, rounding: IntegerNode, integers: IntegerGraph, proven: Mapping[str, bool]
    ) -> LayerCheck:
        """Return the check of a requantisation."""
        kind = integers.codes(rounding.name).kind
        return cls(rounding.name, "requantize", kind, proven[rounding.name], rounding=rounding)

    def count(self, wrong: Tensor, difference: Tensor, got: Tensor, expected: Tensor) -> None:
        """Add a batch: where codes differ, by how much the values do, and what they are."""
        if self.first is None and bool(wrong.any()):
            at = tuple(wrong.nonzero()[0].tolist())
            codes = float(expected[at]), float(got[at])
            self.first = FirstMismatch(self.samples + at[0], at[1:], *codes)
        self.samples += len(wrong)
        self.values += wrong.numel()
        self.mismatches += int(wrong.sum())
        self.largest = max(self.largest, float(difference.max()) if difference.numel() else 0.0)

    @property
    def row(self) -> dict[str, Any]:
        return {
            "Node": self.node,
            "Op": self.op,
            "Type": self.kind,
            "Accumulator": self.accumulator or "",
            "Equality": "proven" if self.proven else "observed",
            "Values": self.values or "not compared",
            "Mismatches": self._mismatches,
            "Largest difference": f"{self.largest:.3g}" if self.values else "",
        }

    @property
    def _mismatches(self) -> int | str:
        if not self.values:
            return "not compared"
        return self.mismatches if self.counted or self.returned else "where it is rounded"


def _checks(graph: MaseGraph, integers: IntegerGraph) -> dict[str, LayerCheck]:
    """Return a check for each layer, after one for each rounding of values without a grid."""
    proven = _proven(integers)
    found: dict[str, LayerCheck] = {}
    for node in graph.nodes:
        for rounding in _roundings_before(node, integers):
            found[rounding.name] = LayerCheck.of_rounding(rounding, integers, proven)
        check = LayerCheck.of(node, integers, proven)
        if check is not None:
            found[check.node] = check
    return found


def _roundings_before(node: fx.Node, integers: IntegerGraph) -> list[IntegerNode]:
    """Return the requantisations of operands of a node that the layers before do not count."""
    taken = {integers.values.get(source.name) for source in node.all_input_nodes}
    return [
        each
        for each in integers.nodes.values()
        if each.source == node.name
        and isinstance(each.op, Requantize)
        and each.inputs[0] in taken
        and not on_grid(each.inputs[0], integers)
    ]


def _proven(integers: IntegerGraph) -> dict[str, bool]:
    """Return for each integer node whether float32 computes it exactly.

    What takes an observed value is observed too, up to the rounding of a value on a grid: the
    comparison goes on from its codes.
    """
    proven: dict[str, bool] = {}
    for name, node in integers.nodes.items():
        taken = [each for each in node.inputs if each in integers.nodes]
        ends = isinstance(node.op, ROUNDING) and all(on_grid(each, integers) for each in taken)
        proven[name] = node.proven and (ends or all(proven[each] for each in taken))
    return proven


def on_grid(name: str, integers: IntegerGraph) -> bool:
    """Return whether the float simulation has the same grid of values as an integer node.

    A batch norm that is not folded and sums with float scales have their own; the next rounding
    shows whether they agree.
    """
    node = integers.nodes[name]
    if isinstance(node.op, GRIDS):
        return True
    if isinstance(node.op, ChannelAffine):
        return False
    scale, alone = node.codes.scale, len(node.inputs) == 1
    moved = alone and integers.codes(node.inputs[0]).scale.same(scale)
    return (scale.power_of_two or moved) and all(on_grid(each, integers) for each in node.inputs)


def _compare(
    graph: MaseGraph,
    doubled: fx.GraphModule,
    integers: IntegerGraph,
    layers: Mapping[str, LayerCheck],
    inputs: list[Any],
) -> None:
    """Compare one batch: proven layers with float32, and others with float64."""
    try:
        codes = integers.trace(*(x for x in inputs if isinstance(x, Tensor)))
    except (TypeError, ValueError) as error:
        raise PassArgsError(str(error)) from error
    single = {name for name, layer in layers.items() if layer.proven}
    _SimulationWatch(graph.model, integers, layers, codes, single).run_unchanged(inputs)
    wide = [x.double() if isinstance(x, Tensor) else x for x in inputs]
    _SimulationWatch(doubled, integers, layers, codes, layers.keys() - single).run_unchanged(wide)


class _SimulationWatch(GraphRunner):
    """Runs the float simulation; after each node its values are replaced by those of the codes."""

    def __init__(
        self,
        model: fx.GraphModule,
        integers: IntegerGraph,
        layers: Mapping[str, LayerCheck],
        codes: Mapping[str, Tensor],
        counted: Iterable[str],
    ) -> None:
        super().__init__(model)
        self.integers, self.layers, self.codes = integers, layers, codes
        self.counted = set(counted)
        self.before: dict[str, list[IntegerNode]] = {}
        for layer in layers.values():
            if (rounding := layer.rounding) is not None:
                self.before.setdefault(rounding.source, []).append(rounding)

    def run_node(self, n: fx.Node) -> Any:
        rounded = self._rounded_operands(n)
        kept = {source: self.env[source] for source in rounded}
        self.env.update(rounded)
        try:
            return self._compared(n)
        finally:
            self.env.update(kept)

    def _compared(self, n: fx.Node) -> Any:
        """Run a node and compare its result; returns the values of the codes."""
        layer = self.layers.get(n.name)
        if layer is None:
            result = super().run_node(n)
            return self._rounded_input(n, result) if n.op == "placeholder" else result
        result = self._in_single(n) if layer.table else super().run_node(n)
        name = self.integers.values.get(n.name)
        if name is None:
            tie = 0.0 if layer.proven or layer.table else TIE
            for each, word in self.integers.roundings[n.name] if n.name in self.counted else ():
                self._count_rounded(layer, result, each, word, tie)
            return result
        described, codes = self.integers.codes(name), self.codes[name]
        values = described.values(codes)
        if n.name in self.counted:
            difference = (result.double() - values).abs()
            exact = described.scale.power_of_two
            steps = result.double() / described.scale.value.to(result.device)
            wrong = result.double() != values if exact else steps.round() != codes
            if not layer.counted:
                wrong = (difference > tolerance(result)) & layer.returned
            layer.count(wrong, difference, steps, codes)
        return values.to(result.dtype) if layer.counted else result

    def _rounded_operands(self, n: fx.Node) -> dict[fx.Node, Tensor]:
        """Compare operands that have no grid before they are rounded; returns those of the codes.

        Without a common grid, a tie between two codes is not a tie in float, so both are right.
        """
        found, values = {}, self.integers.values
        before = self.before.get(n.name, ())
        taken = [rounding.inputs[0] for rounding in before]
        for rounding in before:
            assert isinstance(rounding.op, Requantize)
            name, word = rounding.name, rounding.op.word
            source = next(x for x in n.all_input_nodes if values.get(x.name) == rounding.inputs[0])
            if name in self.counted:
                self._count_rounded(self.layers[name], self.env[source], name, word, TIE)
            if taken.count(rounding.inputs[0]) > 1:  # each reader of a clamp has its own grid
                continue
            codes = self.integers.codes(name).values(self.codes[name])
            found[source] = codes.to(self.env[source].dtype)
        return found

    def _rounded_input(self, n: fx.Node, x: Any) -> Any:
        """Return an input on the grid of its codes, as near ties float32 and float64 differ."""
        roundings = self.integers.roundings.get(n.name, [])
        if len(roundings) != 1:
            return x
        name, _ = roundings[0]
        return self.integers.codes(name).values(self.codes[name]).to(x.dtype)

    def _count_rounded(
        self, layer: LayerCheck, result: Tensor, name: str, word: Word, tie: float = 0.0
    ) -> None:
        """Compare a float value after rounding; `tie` is how near to one both codes are right."""
        step, own = word.scale.value.to(result.device), self.codes[name]
        near = [result + way * tie * step for way in ((0, 1, -1) if tie else (0,))]
        codes = [QuantizeInput(word, ()).run(x.to(result.dtype)) for x in near]
        wrong = torch.stack([each != own for each in codes]).all(0)
        difference = (codes[0] - own).double() * step
        layer.count(wrong, difference.abs(), codes[0], own)

    def _in_single(self, n: fx.Node) -> Tensor:
        """Run the function of a table in float32, in which its entries are computed."""
        taken, rounded = self.fetch_args_kwargs_from_env(n), node_formats(n).get("data_in")
        if isinstance(mase(n).module, Neurons):  # which may have merged layers before it
            rounded = None
        dtype = next(x.dtype for x in tree_leaves(taken) if isinstance(x, Tensor))

        def in_single(x: Tensor) -> Tensor:
            return (x if rounded is None else rounded(x)).float()

        args, kwargs = tree_map_only(Tensor, in_single, taken)
        module, call = mase(n).module, getattr(self, n.op)
        with torch.no_grad():
            if module is None:
                result: Tensor = call(n.target, args, kwargs)
            else:  # its parameters are float32 numbers, in float64 here
                result = copy.deepcopy(module).float()(*args, **kwargs)
        return result.to(dtype)


def _compare_outputs(
    graph: MaseGraph, integers: IntegerGraph, inputs: list[Any], whole: LayerCheck
) -> None:
    """Compare the outputs without replacing anything in between."""
    sources = returned_nodes(graph.fx_graph)
    left_out = [each for each in sources if each.name in integers.left_out]
    if len(set(left_out)) < len(integers.left_out):  # an argmax of a softmax may have other ties
        return
    found = GraphRunner(graph.model).run_unchanged(inputs)
    ours = integers(*(x for x in inputs if isinstance(x, Tensor)))
    _, wanted = separated(found)
    owned = ours if isinstance(ours, tuple) else (ours,)
    for source, want, own in zip(sources, wanted, owned, strict=True):
        result = node_call(source).evaluate(own) if source in left_out else own
        difference = (want.double() - result.double()).abs()
        whole.count(difference > tolerance(want), difference, want, result)


def tolerance(values: Tensor) -> float:
    """Return how far values may differ that have no grid in common."""
    return OUTPUT_TOLERANCE * max(float(values.abs().max()) if values.numel() else 0.0, 2.0**-100)


def _vectors(
    graph: MaseGraph, integers: IntegerGraph, generator: Any, count: int
) -> Iterator[list[Any]]:
    """Yield batches of inputs: samples, then boundary vectors."""
    if generator is not None:
        check_generator("verify_integers", "compare both on data", generator)
    yield from (
        _random(graph, integers, count) if generator is None else _data(graph, generator, count)
    )
    yield from _boundaries(graph, integers)


def _data(graph: MaseGraph, generator: Iterable[Any], count: int) -> Iterator[list[Any]]:
    """Yield batches on the model's device; warn of a generator that ends early."""
    device, samples = device_of(graph.model), 0
    for inputs, size in batches(graph, generator, count):
        yield tree_map_only(Tensor, lambda x: x.to(device), inputs)
        samples += size
    check_count(samples, count)


def _input_words(graph: MaseGraph, integers: IntegerGraph) -> list[InputWord]:
    """Return the shape and the format of each input, in the order of the model."""
    found = input_words(integers)
    return [found[input_name(node)] for node in graph.inputs if input_name(node) in found]


def _random(graph: MaseGraph, integers: IntegerGraph, count: int) -> Iterator[list[Tensor]]:
    """Yield batches of random inputs."""
    device = device_of(graph.model)
    source = torch.Generator().manual_seed(0)
    words = _input_words(graph, integers)
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        yield [x.to(device) for x in random_inputs(words, size, source)]


def _boundaries(graph: MaseGraph, integers: IntegerGraph) -> Iterator[list[Tensor]]:
    """Yield batches of boundary vectors."""
    device = device_of(graph.model)
    vectors = boundary_inputs(_input_words(graph, integers))
    for start in range(0, len(vectors[0]) if vectors else 0, BATCH):
        yield [x[start : start + BATCH].to(device) for x in vectors]


def _table(layers: Iterable[LayerCheck]) -> str:
    return tabulate([layer.row for layer in layers], headers="keys", disable_numparse=True)


def _info(layers: Mapping[str, LayerCheck], whole: LayerCheck) -> dict[str, Any]:
    rows = {
        name: {
            "equality": "proven" if layer.proven else "observed",
            "accumulator_width": layer.accumulator,
            "values": layer.values,
            "mismatches": layer.mismatches,
            "largest_difference": layer.largest,
        }
        for name, layer in layers.items()
    }
    return {
        "mismatches": sum(layer.mismatches for layer in layers.values()),
        "proven": sum(layer.proven for layer in layers.values()),
        "observed": sum(not layer.proven for layer in layers.values()),
        "output_mismatches": whole.mismatches if whole.values else None,
        "layers": rows,
    }
