"""Every integer op with a meaning is the same in each builder: on bounds, and on random codes."""

import itertools

import pytest
import torch

from chop import integers
from chop.hardware.tools import ToolError
from chop.hardware.unrolled import layer_logic, layers_of
from chop.hardware.unrolled.checking import logic_codes
from chop.hardware.unrolled.logic import forget_logic
from chop.integers import (
    AddCodes,
    ChannelAffine,
    ClampCodes,
    Codes,
    ConcatCodes,
    ConstantCodes,
    IntegerGraph,
    LeakyReluCodes,
    MultiplyCodes,
    QuantizeInput,
    Refine,
    ReluCodes,
    Scale,
    SubtractCodes,
    Word,
)
from chop.integers.builders import BoundsBuilder, TorchBuilder
from chop.integers.op import ComposedOp

ONE = Scale.power(0)
SIGNED, SHORT, COUNTS = (
    Word(-16, 15, ONE, 5, True),
    Word(-4, 3, ONE, 3, True),
    Word(0, 9, ONE, 4, False),
)
IMAGE, ROW = (2, 3, 2), (4,)


class Distance(ComposedOp):
    """|code - 2|: an op of one's own, of several operations."""

    def meaning(self, b, *inputs):
        return b.multiply_by_sign(b.subtract(*inputs, b.constant(torch.tensor([2]))), -1, 1)


EXAMPLES = {
    "relu": (ReluCodes(), {IMAGE: SIGNED}),
    "relu of counts": (ReluCodes(), {ROW: COUNTS}),
    "clamp": (ClampCodes(-3, 6), {IMAGE: SIGNED}),
    "clamp to bits": (ClampCodes(-8, 7), {ROW: SIGNED}),
    "leaky relu": (LeakyReluCodes(1, 8), {IMAGE: SIGNED}),
    "absolute": (LeakyReluCodes(-3, 3), {ROW: SIGNED}),
    "leaky relu of many bits": (LeakyReluCodes(-(2**21) - 1, 2**33 + 5), {ROW: SHORT}),
    "refine": (Refine(torch.tensor(8)), {IMAGE: SIGNED}),
    "refine by channel": (Refine(torch.tensor([[[1]], [[2**21 + 1]]])), {IMAGE: SIGNED}),
    "constant": (ConstantCodes(torch.arange(6).view(3, 2) - 2, ONE), {}),
    "wide constant": (ConstantCodes(torch.tensor([2**40, -1]), ONE), {}),
    "add": (AddCodes(), {IMAGE: SIGNED, (1, 3, 1): SHORT}),
    "subtract": (SubtractCodes(), {(1, 3, 1): COUNTS, IMAGE: SIGNED}),
    "multiply": (MultiplyCodes(), {IMAGE: SIGNED, (2, 1, 1): SHORT}),
    "affine": (ChannelAffine(torch.tensor([-3, 5]), torch.tensor([7, -2]), ONE), {IMAGE: SIGNED}),
    "affine of many bits": (
        ChannelAffine(torch.tensor([2**30 + 3, -1]), torch.tensor([2**39, 5]), ONE),
        {IMAGE: SHORT},
    ),
    "concat": (ConcatCodes(1), {IMAGE: SIGNED, (1, 3, 2): COUNTS}),
    "an op of one's own": (Distance(), {ROW: SIGNED}),
    "concat of rows": (ConcatCodes(-1), {(2, 3): SHORT, (2, 1): COUNTS}),
}  # fmt: skip


def graph_of(op, words):
    graph = IntegerGraph(inputs=[f"x{i}" for i in range(len(words))])
    for name, (shape, word) in zip(graph.inputs, words.items(), strict=True):
        graph.add(f"{name}_codes", QuantizeInput(word, shape), [name], name)
    taken = [f"{name}_codes" for name in graph.inputs]
    graph.outputs.append(graph.add("op", op, taken, "op"))
    return graph


def batches(codes):
    """All lowest and highest codes of all inputs, zeros, and random ones."""
    draws = torch.Generator().manual_seed(0)
    ends = zip(*itertools.product(*(x.bounds() for x in codes)), strict=True)
    for x, rows in zip(codes, ends, strict=True):
        low, high = x.bounds()
        part = torch.rand(40, *x.shape, generator=draws, dtype=torch.float64)
        yield torch.cat([*rows, 0 * low, (low + (part * (high - low + 1)).long())])


def reached(op, codes, expected):
    """The bounds are the lowest and the highest results."""
    bounds = BoundsBuilder(codes)
    found = op.meaning(bounds, *bounds.inputs)
    given = op.result(*codes)
    assert found.low.shape[1:] == given.shape == expected.shape[1:]
    pairs = [
        (own, end)
        for low, high in (found, given.bounds())
        for own, end in ((low[0], expected.amin(0)), (high[0], expected.amax(0)))
    ]
    listed = {given.lowest, given.highest} <= {*bounds.numbers}
    return listed and all(torch.equal(own, end) for own, end in pairs)


def is_the_same(builder, op, words):
    graph = graph_of(op, words)
    codes = [graph.codes(f"{name}_codes") for name in graph.inputs]
    inputs = list(batches(codes))
    expected = op.run(*inputs)
    if builder == "bounds":
        return reached(op, codes, expected)
    if builder == "onnx":
        from tests.onnx_files.integer_checks import op_results

        return torch.equal(op_results(op, codes, inputs), expected)
    (layer,) = layers_of(graph)
    known = {f"{name}_codes": x for name, x in zip(graph.inputs, inputs, strict=True)}
    try:
        made = layer_logic(graph, layer)
    except ToolError:  # the circuit differs from the op
        return False
    found = logic_codes(layer, made.logic, made.constants, known)
    return torch.equal(found, expected.flatten(1))


def builder_class(name):
    if name == "onnx":
        from chop.onnx.integers.ops.composed import OnnxBuilder

        return OnnxBuilder
    if name == "unrolled":
        from chop.hardware.unrolled.ops.composed import SymbolBuilder

        return SymbolBuilder
    return {"bounds": BoundsBuilder, "torch": TorchBuilder}[name]


@pytest.fixture(params=["bounds", "onnx", "unrolled"])
def builder(request, package, monkeypatch, tmp_path):
    for name in {"onnx": ("onnx", "onnxruntime"), "unrolled": ("alkaid",)}.get(request.param, ()):
        package(name)
    monkeypatch.setenv("MASE_CACHE", str(tmp_path))
    forget_logic()
    yield request.param
    forget_logic()


def test_every_op_with_a_meaning_has_an_example():
    ops = {getattr(integers, name) for name in integers.__all__}
    composed = {op for op in ops if isinstance(op, type) and issubclass(op, ComposedOp)}
    assert composed == {type(op) for op, _ in EXAMPLES.values()} - {Distance}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_op_is_the_same_in_all_builders(builder, name):
    assert is_the_same(builder, *EXAMPLES[name])


FAULTS = {
    "constant": lambda do: lambda b, numbers: do(b, numbers + 1),
    "max": lambda do: lambda b, x, bound: do(b, x, bound + 1),
    "clamp": lambda do: lambda b, x, low, high: do(b, x, low + 1, high),
    "multiply_by_sign": lambda do: lambda b, x, negative, other: do(b, x, negative + 1, other),
    "add": lambda do: lambda b, x, y: do(b, do(b, x, y), 1),
    "subtract": lambda do: lambda b, x, y: do(b, do(b, x, y), 1),
    "multiply": lambda do: lambda b, x, y: do(b, do(b, x, y), 2),
    "affine": lambda do: lambda b, x, factor, offset: do(b, x, factor, offset + 1),
    "concat": lambda do: lambda b, values, dim: do(b, values[::-1], dim),
}


@pytest.mark.parametrize("operation", FAULTS)
@pytest.mark.parametrize("planted_in_torch", [False, True])
def test_a_fault_of_one_builder_is_found(builder, operation, planted_in_torch, monkeypatch):
    home = builder_class("torch" if planted_in_torch else builder)
    monkeypatch.setattr(home, operation, FAULTS[operation](getattr(home, operation)))
    assert not all(is_the_same(builder, *example) for example in EXAMPLES.values())


def test_the_faults_are_of_all_operations():
    assert {*FAULTS} == {name for name in vars(TorchBuilder) if name[0] != "_"} - {"rank"}


def test_numbers_that_no_accumulator_holds_are_refused():
    codes = [Codes.reaching((2,), torch.tensor(-(2**40)), torch.tensor(2**40), ONE)] * 2
    with pytest.raises(ValueError, match="needs a product of 82 bits; at most 63 are allowed"):
        MultiplyCodes().result(*codes)
