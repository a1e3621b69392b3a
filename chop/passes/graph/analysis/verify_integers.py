"""Compare the integer graph with the float simulation, layer by layer."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge
from tabulate import tabulate
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from chop.integers import IntegerGraph, IntegerNode, QuantizeInput, Requantize, Word
from chop.integers.vectors import InputWord, boundary_inputs, input_words, random_inputs
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.analysis.layer_checks import (
    LayerCheck,
    far_from_codes,
    on_grid,
    tie_reach,
    tolerance,
)
from chop.passes.graph.analysis.simulation_runner import (
    SimulationRunner,
    in_double,
    roundings_of,
)
from chop.passes.graph.analysis.verify_outputs import OutputRunner, compare_outputs
from chop.passes.graph.describe.batches import batches, check_count, check_generator
from chop.passes.graph.describe.interpreter import GraphRunner, device_of, input_name
from chop.passes.graph.transforms.integers import integer_graph
from chop.passes.options import OutputPath
from chop.system.files import write_whole
from chop.system.log import show_logs_unless_configured

logger = logging.getLogger(__name__)

BATCH = 256
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
    simulation in float64. The outputs of the whole network are compared as well, and a difference
    in them is a mismatch. Findings name the nodes whose numbers are lost or may wrap in a runtime.
    `strict` raises an error for a mismatch; `silent` leaves out the table, and `file_name` also
    writes it to a file.
    """
    integers = integer_graph(graph)
    vectors = _vectors(graph, integers, input_generator, num_samples)
    compared = compare_simulation(graph, integers, vectors)
    if not compared.whole.values:
        logger.warning("the outputs are not compared, as %s", "; ".join(integers.notes))
    for finding in integers.findings:
        logger.warning("%s", finding)
    info = _info(integers, compared)
    text = "\n".join([_table([*compared.layers.values(), compared.whole]), *integers.findings])
    if not silent:
        show_logs_unless_configured()
        logger.info("Integer graph and float simulation:\n%s", text)
    if file_name is not None:
        write_whole(file_name, text + "\n")
    if strict and (wrong := compared.first) is not None:
        raise PassArgsError(
            f"{wrong.label} differs from the float simulation in {wrong.mismatches} of "
            f"{wrong.values} values; use scales that are powers of two or narrower formats"
        )
    return info


@dataclass(frozen=True)
class SimulationComparison:
    """The checks of all layers, and those of the outputs.

    `whole` compares the outputs with the simulation in float64 if float32 is not exact, and
    `single` with the one in float32, whose rounding of sums it counts.
    """

    layers: Mapping[str, LayerCheck]
    whole: LayerCheck
    single: LayerCheck

    @property
    def mismatches(self) -> int:
        return sum(check.mismatches for check in (*self.layers.values(), self.whole))

    @property
    def first(self) -> LayerCheck | None:
        """The first check that found a difference."""
        checks = (*self.layers.values(), self.whole)
        return next((check for check in checks if check.mismatches), None)


def compare_simulation(
    graph: MaseGraph, integers: IntegerGraph, vectors: Iterable[list[Any]]
) -> SimulationComparison:
    """Compare all layers and the outputs on batches of inputs."""
    layers = _checks(graph, integers)
    doubled = in_double(graph)
    exact = all(layer.proven for layer in layers.values())
    single = LayerCheck("whole network", "", "", exact)
    whole = single if exact else LayerCheck("whole network", "", "", exact)
    for inputs in vectors:
        codes = _traced(integers, inputs)
        _compare(graph, doubled, integers, layers, inputs, codes)
        found = GraphRunner(graph.model).run_unchanged(inputs)
        compare_outputs(graph, integers, codes, found, single)
        if not exact:
            found = OutputRunner(doubled, integers, codes).run_unchanged(_wide(inputs))
            compare_outputs(graph, integers, codes, found, whole)
    return SimulationComparison(layers, whole, single)


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
    found = (each for each, _ in roundings_of(node, integers) if each.source == node.name)
    return [each for each in found if not on_grid(each.inputs[0], integers)]


def _proven(integers: IntegerGraph) -> dict[str, bool]:
    """Return for each integer node whether float32 computes it exactly.

    What takes an observed value is observed too, up to the rounding of a value on a grid: the
    comparison goes on from its codes.
    """
    proven: dict[str, bool] = {}
    for name, node in integers.nodes.items():
        taken = [each for each in node.inputs if each in integers.nodes]
        ends = node.op.rounds and all(on_grid(each, integers) for each in taken)
        proven[name] = node.proven and (ends or all(proven[each] for each in taken))
    return proven


def _traced(integers: IntegerGraph, inputs: list[Any]) -> dict[str, Tensor]:
    """Return the codes of all nodes for a batch."""
    try:
        return integers.trace(*(x for x in inputs if isinstance(x, Tensor)))
    except (TypeError, ValueError) as error:
        raise PassArgsError(str(error)) from error


def _wide(inputs: list[Any]) -> list[Any]:
    return [x.double() if isinstance(x, Tensor) else x for x in inputs]


def _compare(
    graph: MaseGraph,
    doubled: fx.GraphModule,
    integers: IntegerGraph,
    layers: Mapping[str, LayerCheck],
    inputs: list[Any],
    codes: Mapping[str, Tensor],
) -> None:
    """Compare one batch: proven layers with float32, and others with float64."""
    single = {name for name, layer in layers.items() if layer.proven}
    _SimulationWatch(graph.model, integers, layers, codes, single).run_unchanged(inputs)
    others = layers.keys() - single
    watch = _SimulationWatch(doubled, integers, layers, codes, others)
    watch.run_unchanged(_wide(inputs))


class _SimulationWatch(SimulationRunner):
    """Runs the float simulation; after each node its values are replaced by those of the codes."""

    def __init__(
        self,
        model: fx.GraphModule,
        integers: IntegerGraph,
        layers: Mapping[str, LayerCheck],
        codes: Mapping[str, Tensor],
        counted: Iterable[str],
    ) -> None:
        super().__init__(model, integers, codes)
        self.layers, self.counted = layers, set(counted)

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
            return self.rounded_input(n, result) if n.op == "placeholder" else result
        result = self.in_single(n) if layer.table else super().run_node(n)
        name = self.integers.values.get(n.name)
        if name is None:
            ties = not (layer.proven or layer.table)
            for each, word in self.integers.roundings[n.name] if n.name in self.counted else ():
                self._count_rounded(layer, result, each, word, ties)
            return result
        described, codes = self.integers.codes(name), self.codes[name]
        values = described.values(codes)
        if n.name in self.counted:
            difference = (result.double() - values).abs()
            exact = described.scale.power_of_two
            steps = result.double() / described.scale.value.to(result.device)
            wrong = result.double() != values if exact else far_from_codes(steps, codes)
            if not layer.counted:
                wrong = (difference > tolerance(result)) & layer.returned
            layer.count(wrong, difference, steps, codes)
        return values.to(result.dtype) if layer.counted else result

    def _rounded_operands(self, n: fx.Node) -> dict[fx.Node, Tensor]:
        """Compare operands that have no grid before they are rounded; returns those of the codes.

        Without a common grid, a tie between two codes is not a tie in float, so both are right.
        """
        found: dict[fx.Node, Tensor] = {}
        before = [
            (rounding, source)
            for rounding, source in roundings_of(n, self.integers)
            if rounding.name in self.layers
        ]
        for rounding, source in before:
            assert isinstance(rounding.op, Requantize)
            name, word = rounding.name, rounding.op.word
            if name in self.counted and rounding.source == n.name:
                self._count_rounded(self.layers[name], self.env[source], name, word, True)
            if [each for _, each in before].count(source) > 1:  # each reader has its own grid
                continue
            codes = self.integers.codes(name).values(self.codes[name])
            found[source] = codes.to(self.env[source].dtype)
        return found

    def _count_rounded(
        self, layer: LayerCheck, result: Tensor, name: str, word: Word, ties: bool
    ) -> None:
        """Compare a float value after rounding; with `ties`, both codes are right near to one."""
        step, own = word.scale.value.to(result.device), self.codes[name]
        reach = tie_reach(result.double() / step) * step if ties else torch.zeros_like(result)
        near = [result + way * reach for way in ((0, 1, -1) if ties else (0,))]
        codes = [QuantizeInput(word, ()).run(x.to(result.dtype)) for x in near]
        wrong = torch.stack([each != own for each in codes]).all(0)
        difference = (codes[0] - own).double() * step
        layer.count(wrong, difference.abs(), codes[0], own)


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


def _info(integers: IntegerGraph, compared: SimulationComparison) -> dict[str, Any]:
    layers, whole = compared.layers, compared.whole
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
        "mismatches": compared.mismatches,
        "proven": sum(layer.proven for layer in layers.values()),
        "observed": sum(not layer.proven for layer in layers.values()),
        "output_mismatches": whole.mismatches if whole.values else None,
        "findings": list(integers.findings),
        "layers": rows,
    }
