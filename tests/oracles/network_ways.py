"""The ways to compute a quantised network, each compared with the network in integers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from chop.hardware.unrolled import layer_logic, layers_of
from chop.hardware.unrolled.checking import logic_codes
from chop.hardware.unrolled.limits import check_limits
from chop.integers import IntegerGraph, Lookup, QuantizeInput, Word
from chop.integers.vectors import boundary_inputs, input_words, random_inputs
from chop.ir import MaseGraph
from chop.numerics.affine import Affine
from chop.onnx import save_model
from chop.onnx.integers import integer_model
from chop.onnx.reading import read_network
from chop.onnx.runtime import Runtime
from chop.passes import Pipeline
from chop.passes.graph.describe.interpreter import GraphRunner
from chop.passes.graph.interface.export_onnx import onnx_model
from chop.passes.graph.transforms.integers.converter import node_call
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.system.progress import hidden_progress

from .network_drawing import Network, quantised

VECTORS = 24  # random ones, beside those of the boundaries
MAX_ADDERS = 1500  # of an unrolled circuit
NEAR = 2.0**-20  # of a step: as near to a tie, docs/integers.md allows both codes
NEAR_SINGLE = 2.0**-19  # of the largest value, in steps, where float32 computes before a rounding
OUTPUT, SUM = 2.0**-16, 2.0**-20  # of the largest output, and of the largest value before it
REFUSALS = (ValueError, NotImplementedError)  # with one sentence


@dataclass(frozen=True)
class Difference:
    """What a way computes otherwise than the network in integers."""

    way: str
    what: str
    refusal: bool = False  # in a sentence, before anything is computed

    @property
    def kind(self) -> str:
        """The class of an error, or that codes differ."""
        first, colon, _ = self.what.partition(": ")
        return first if colon and first.isidentifier() else "codes"

    def __str__(self) -> str:
        return f"{self.way}: {self.what}"


class Subject:
    """A quantised network, vectors, and the codes that it gives for them in integers."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.graph: MaseGraph = quantised(network)
        self.integers: IntegerGraph = self.graph.to_integers()
        self.x = _vectors(self.integers)
        self.codes = as_tuple(self.integers.run(self.x))
        self.steps = [self.integers.codes(name).scale.value for name in self.integers.outputs]

    @cached_property
    def exact(self) -> bool:
        """Whether float32 computes the whole network without rounding."""
        return all(node.proven for node in self.integers.nodes.values())

    @cached_property
    def strict(self) -> bool:
        """Whether runtimes must agree on each code: they have own versions of functions."""
        tables = any(isinstance(node.op, Lookup) for node in self.integers.nodes.values())
        return self.exact and not tables

    @cached_property
    def reach(self) -> float:
        """The largest value in the network."""
        every = [node.codes for node in self.integers.nodes.values()]
        return max(codes.largest * float(codes.scale.value.max()) for codes in every)

    @cached_property
    def watched(self) -> Watched:
        return Watched(self)


def as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _vectors(integers: IntegerGraph) -> Tensor:
    """Return extreme codes, and random inputs: many on ties, unless float32 may miss these."""
    ((shape, word),) = input_words(integers).values()
    source = torch.Generator().manual_seed(0)
    (extreme,), (random,) = (
        boundary_inputs([(shape, word)]),
        random_inputs([(shape, word)], VECTORS, source),
    )
    if not word.scale.power_of_two:
        random += (torch.rand(random.shape, generator=source) - 0.5) * word.scale.value.float()
    return torch.cat([extreme, random])


class Watched(GraphRunner):
    """The network in float64, and how near to a tie each sample comes where it is rounded.

    `steps` are distances in steps, `shares` as a share of the largest value.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__(doubled(subject.graph))
        count = len(subject.x)
        self.steps, self.shares = torch.full((2, count), 1.0, dtype=torch.float64)
        self.results = as_tuple(self.run_unchanged([subject.x.double()]))

    def run_node(self, n: fx.Node) -> Any:
        if n.op.startswith("call") and "data_in" in (call := node_call(n)).formats:
            for source in n.all_input_nodes:
                self._note(call.formats["data_in"], source)
        return super().run_node(n)

    def _note(self, fmt: Any, source: fx.Node) -> None:
        x = self.env[source]
        word = Word.of(fmt.grid(), x.ndim)
        steps = x / word.scale.value
        ties = steps if word.rounding == "floor" else steps + 0.5
        far = (ties - ties.round()).abs()
        if source.op == "placeholder":  # which the simulation divides in float32
            far = (far - 2.0**-22 * steps.abs()).clamp(min=0)
        if not word.wraps:  # what is cut off by far has no tie
            far = torch.where((steps < word.low - 1) | (steps > word.high + 1), 1.0, far)
        largest = steps.abs().max().clamp(min=1)
        self.steps = torch.minimum(self.steps, far.flatten(1).amin(1))
        self.shares = torch.minimum(self.shares, (far / largest).flatten(1).amin(1))


def doubled(graph: MaseGraph) -> fx.GraphModule:
    """Return the simulation in float64, with the codes that float32 gives its weights."""
    model: fx.GraphModule = graph.clone().model
    for layer in model.modules():
        for name, parameter in layer.named_parameters(recurse=False):
            if isinstance(layer, Quantized) and isinstance(layer.formats.get(name), Affine):
                parameter.data = layer.q_parameter(name).detach()
    return model.double()


def compared(
    way: str, subject: Subject, found: list[Tensor], excused: Tensor | None = None
) -> Difference | None:
    """Compare codes with those of the integers, but for samples that are excused."""
    for number, (own, expected) in enumerate(zip(found, subject.codes, strict=True)):
        if own.shape != expected.shape:
            return Difference(way, f"shape {list(own.shape)} for {list(expected.shape)}")
        wrong = own != expected
        if excused is not None:
            wrong &= ~excused.view(-1, *[1] * (wrong.ndim - 1))
        if bool(wrong.any()):
            at = tuple(wrong.nonzero()[0].tolist())
            count = int(wrong.sum())
            return Difference(
                way,
                f"{own[at]} for {expected[at]} at {at} of output {number}; "
                f"{count} of {wrong.numel()} codes differ",
            )
    return None


def codes_of(subject: Subject, values: list[Tensor]) -> list[Tensor]:
    """Return float results in steps; only those of exact networks must be whole."""
    found = []
    for number, x in enumerate(values):
        expected = subject.codes[number]
        if not x.is_floating_point():
            found.append(x)
            continue
        steps = x.double() / subject.steps[number]
        if not subject.strict:
            # sums that nobody rounds differ by the rounding of float32
            largest = steps.abs().amax() * OUTPUT + subject.reach / subject.steps[number] * SUM
            steps = torch.where((steps - expected).abs() <= 0.5 + largest, expected.double(), steps)
        found.append(steps)
    return found


def simulation(subject: Subject) -> Difference | None:
    """Compare with the simulation in torch."""
    if subject.integers.left_out:  # a softmax at the end
        return None
    values = subject.watched.results
    excused = None if subject.strict else subject.watched.steps < NEAR
    found = codes_of(subject, list(values))
    if (wrong := compared("simulation in float64", subject, found, excused)) is not None:
        return wrong
    if not subject.exact:
        return None
    with torch.no_grad():
        values = as_tuple(subject.graph.model(subject.x))
    return compared("simulation", subject, codes_of(subject, list(values)))


def integer_file(subject: Subject) -> Difference | None:
    """Compare with the file of integers in onnxruntime."""
    model = integer_model(subject.integers)
    for optimize in (True, False):
        results = run(model, subject, optimize)
        found = [x for name, x in results.items() if name.endswith("_codes")]
        if wrong := compared(f"integer, {_how(optimize)}", subject, found):
            return wrong
    return None


def run(model: Any, subject: Subject, optimize: bool) -> dict[str, Tensor]:
    runtime = Runtime(model, optimize=optimize)
    inputs = dict.fromkeys(runtime.inputs, subject.x.numpy())
    return {name: torch.from_numpy(x) for name, x in runtime.run(inputs).items()}


def _how(optimize: bool) -> str:
    return "optimised" if optimize else "not optimised"


def quantised_file(kind: str) -> Callable[[Subject], Difference | None]:
    """Return what compares with a file of floats and rounding nodes in onnxruntime."""

    def way(subject: Subject) -> Difference | None:
        model = onnx_model(subject.graph, kind)
        if subject.integers.left_out:
            return None
        excused = None if subject.strict else subject.watched.shares < NEAR_SINGLE
        for optimize in (True, False):
            found = codes_of(subject, [*run(model, subject, optimize).values()])
            if wrong := compared(f"{kind}, {_how(optimize)}", subject, found, excused):
                return wrong
        return None

    return way


def read_back(kind: str) -> Callable[[Subject], Difference | None]:
    """Return what compares with the network that is read from such a file."""

    def way(subject: Subject) -> Difference | None:
        with tempfile.TemporaryDirectory() as folder:
            file = save_model(onnx_model(subject.graph, kind), Path(folder) / "network.onnx")
            network = read_network(file)
        inputs = {each.name: each.example() for each in network.inputs}
        common = ("add_common_metadata", {"dummy_in": inputs, "add_value": False})
        steps = ["init_metadata", common, ("quantize", network.quantize_options)]
        with hidden_progress():
            again = Pipeline(steps)(MaseGraph(network.model))[0].to_integers()
        results = as_tuple(again.run(subject.x))
        found = [again.codes(n).values(x) for n, x in zip(again.outputs, results, strict=True)]
        excused = None if subject.strict else subject.watched.shares < NEAR_SINGLE
        return compared(f"{kind}, read again", subject, codes_of(subject, found), excused)

    return way


def unrolled(subject: Subject) -> Difference | None:
    """Compare with the logic of all layers of the unrolled circuit, by alkaid's interpreter."""
    graph, layers = subject.integers, layers_of(subject.integers)
    check_limits(graph, layers, MAX_ADDERS)
    count = len(subject.x)
    known = {
        node.name: node.op.run(subject.x)
        for node in graph.nodes.values()
        if isinstance(node.op, QuantizeInput)
    }
    for layer in layers:
        made = layer_logic(graph, layer)
        codes = logic_codes(layer, made.logic, made.constants, known).expand(count, -1)
        sizes = [torch.Size(graph.codes(name).shape).numel() for name in layer.outputs]
        for name, part in zip(layer.outputs, codes.split(sizes, 1), strict=True):
            known[name] = part.reshape(count, *graph.codes(name).shape)
    return compared("unrolled", subject, [known[name] for name in graph.outputs])


WAYS: dict[str, Callable[[Subject], Difference | None]] = {
    "simulation": simulation,
    "integer": integer_file,
    "qdq": quantised_file("qdq"),
    "qcdq": quantised_file("qcdq"),
    "read qdq": read_back("qdq"),
    "read qcdq": read_back("qcdq"),
    "unrolled": unrolled,
}
