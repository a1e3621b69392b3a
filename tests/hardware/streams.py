"""Integer graphs for tests of streaming circuits, and a comparison with them."""

import contextlib
import itertools
import random
from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from chop.hardware.simulation import simulate_circuit
from chop.hardware.streaming import streaming_circuit
from chop.integers import (
    AddCodes,
    ArgMaxCodes,
    AvgPoolCodes,
    ChannelAffine,
    ClampCodes,
    ConstantCodes,
    ConvCodes,
    IntegerGraph,
    LeakyReluCodes,
    LinearCodes,
    Lookup,
    MaxPoolCodes,
    MultiplyCodes,
    PadCodes,
    PermuteCodes,
    QuantizeInput,
    Refine,
    ReluCodes,
    Requantize,
    ReshapeCodes,
    Scale,
    SubtractCodes,
    Word,
)
from chop.numerics.integer import Integer
from tests.integers.checking import RULES, quantised


def word(width=9, frac=4, rounding="even", overflow="saturate", signed=True):
    return Word.of(Integer(width, frac, signed, rounding, overflow).grid())


def of_input(*shape, **settings):
    """A graph with one input, whose codes are the node `x`."""
    graph = IntegerGraph(inputs=["data"])
    graph.add("x", QuantizeInput(word(**settings), shape), ["data"], "x")
    return graph


def ending(graph, *names):
    graph.outputs.extend(names)
    return graph


def requantised():
    """All roundings and overflows: to the right, to the left, by floats and by divisors."""
    graph = of_input(7)
    third = graph.add("third", LeakyReluCodes(2, 3), ["x"], "third")
    for number, rule in enumerate(RULES):
        for frac in (1, 4, 7):
            name = f"r{number}_{frac}"
            ending(graph, graph.add(name, Requantize(word(6, frac, *rule)), ["x"], name))
        name = f"d{number}"
        ending(graph, graph.add(name, Requantize(word(7, 3, *rule)), [third], name))
        measured = replace(word(6, 0, *rule), scale=Scale.of(0.37))
        ending(graph, graph.add(f"m{number}", Requantize(measured), ["x"], "m"))
    far = [word(5, -20), word(5, 30), word(5, -20, "floor"), word(5, 30, "up", "wrap", False)]
    for number, format in enumerate(far):
        ending(graph, graph.add(f"far{number}", Requantize(format), ["x"], "far"))
    by_channel = replace(word(6), scale=Scale.of(torch.tensor([0.1, 0.3, 0.7, 1, 2, 0.05, 0.2])))
    return ending(graph, graph.add("channels", Requantize(by_channel), ["x"], "channels"))


def far_bounds():
    """Bounds far beyond few bits: zero points, and clamps at the ends of 64 bits."""
    graph = of_input(7, width=2, frac=0)
    for point, scale in itertools.product((100, 20, 255), (1.0, 0.37)):
        affine = Word(-point, 255 - point, Scale.of(scale), 8, False, zero_point=point)
        ending(graph, graph.add(f"z{point}_{scale}", Requantize(affine), ["x"], "z"))
    for number, ends in enumerate([(-1, 1 << 40), (-(1 << 40), 0), (5, 9), (-300, -200)]):
        ending(graph, graph.add(f"c{number}", ClampCodes(*ends), ["x"], "c"))
    return graph


def zero_pointed():
    """An op of each component on codes from -100 to 155, whose zero point is 100."""
    graph = IntegerGraph(inputs=["data"])
    affine = Word(-100, 155, Scale.of(0.25), 8, False, zero_point=100)
    graph.add("x", QuantizeInput(affine, (2, 3, 4)), ["data"], "x")
    source = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randint(-9, 9, shape, generator=source)

    geometry = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    far = Word(-200, 55, Scale.of(0.5), 8, False, zero_point=200)
    ops = [
        (ReluCodes(), "x"),
        (ClampCodes(-2000, 3), "x"),
        (LeakyReluCodes(-1, 8), "x"),
        (Lookup(numbers(256), -100, word(5, 0)), "x"),
        (MaxPoolCodes((2, 2), (1, 1), (1, 1), (1, 1)), "x"),
        (AvgPoolCodes((2, 2), (2, 2), (0, 0)), "x"),
        (ChannelAffine(numbers(2), numbers(2), Scale.power(-9)), "x"),
        *((op(), "x", "o0") for op in (AddCodes, SubtractCodes, MultiplyCodes)),
        (ConvCodes(numbers(2, 2, 2, 2), None, Scale.power(0), 5, **geometry), "x"),
        (LinearCodes(numbers(3, 4), None, Scale.power(0), 5), "x"),
        (PadCodes((1, 1), code=-7), "x"),
        (Requantize(word(4, 1)), "x"),
        (Requantize(far), "o0"),
    ]
    names = [graph.add(f"o{i}", op, list(ins), "o") for i, (op, *ins) in enumerate(ops)]
    flat = graph.add("flat", ReshapeCodes((24,)), ["x"], "flat")
    return ending(graph, *names, graph.add("argmax", ArgMaxCodes(1), [flat], "argmax"))


def pointwise(other_orders=True):
    """One code at a time, two streams and, if wished, other orders, which need single lanes."""
    graph = of_input(3, 2, 4)
    add = graph.add
    source = torch.Generator().manual_seed(0)

    def numbers(*shape, low=-99, high=99):
        return torch.randint(low, high, shape, generator=source)

    relu = add("relu", ReluCodes(), ["x"], "relu")
    table = Lookup(numbers(512, low=-16, high=16), -256, word(5, 0))
    scaled = ChannelAffine(numbers(3), numbers(3, low=-9999, high=9999), Scale.power(-9))
    by_place = Refine(numbers(2, 4, low=1, high=9))
    ones = [
        (ClampCodes(-17, 40), "x"),
        (LeakyReluCodes(-1, 8), "x"),
        (table, "x"),
        (table, relu),
        (scaled, "x"),
        (by_place, relu),
        (ReshapeCodes((6, 4)), relu),
    ]
    if other_orders:
        ones += [(PermuteCodes((0, 2, 3, 1)), "x"), (ReshapeCodes((8, 3)), relu)]
    names = [add(f"one{i}", op, [source], "one") for i, (op, source) in enumerate(ones)]
    constant = add("constant", ConstantCodes(numbers(3, 1, 4), Scale.power(-4)), [], "constant")
    others = [relu, constant]
    clamp = add("clamp", ClampCodes(-9, 9), ["x"], "clamp")
    if other_orders:
        flipped = add("flipped", PermuteCodes((0, 1, 3, 2)), ["x"], "flipped")
        others.append(add("moved", ReshapeCodes((3, 2, 4)), [flipped], "moved"))
        mean = add("mean", AvgPoolCodes((2, 4), (2, 4), (0, 0)), ["x"], "mean")
        names.append(add("wide", MultiplyCodes(), [relu, mean], "wide"))
    pairs = itertools.product((AddCodes, SubtractCodes, MultiplyCodes), others)
    names += [add(f"two{i}", op(), ["x", other], "two") for i, (op, other) in enumerate(pairs)]
    names.append(add("small", AddCodes(), [clamp, constant], "small"))
    flat = add("flat", ReshapeCodes((24,)), ["x"], "flat")
    return ending(graph, *names, relu, add("argmax", ArgMaxCodes(1), [flat], "argmax"))


WIDTHS = {"data_in_width": 8, "data_in_frac_width": 5, "weight_width": 6, "weight_frac_width": 5}
WIDTHS |= {"bias_width": 8, "bias_frac_width": 5}


def of_model(model, shape, **widths):
    """The integer graph of a model whose ops all have 8 bits."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.data.uniform_(-0.5, 0.5)
    config = {"name": "integer", **WIDTHS, **widths}
    return quantised(model, shape, {"by": "type", "default": {"config": config}}).to_integers()


class LeNet(nn.Module):
    """Two convolutions with pools, two linear layers."""

    def __init__(self, channels=(4, 8), hidden=32):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels[0], 5, padding=2)
        self.conv2 = nn.Conv2d(channels[0], channels[1], 5)
        self.fc1 = nn.Linear(25 * channels[1], hidden)
        self.fc2 = nn.Linear(hidden, 10)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class Residual(nn.Module):
    """Skips around convolutions that are strided, dilated and in groups; a batch norm; a mean."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.depth = nn.Conv2d(6, 6, 3, padding=1, groups=3, bias=False)
        self.wide = nn.Conv2d(6, 6, 3, padding=2, dilation=2, padding_mode="replicate")
        self.short = nn.Conv2d(6, 4, 1, stride=2)
        self.long = nn.Conv2d(6, 4, (2, 3), stride=2, padding=(0, 1))
        self.pool = nn.MaxPool2d(3, 2, padding=1, ceil_mode=True)
        self.line = nn.Conv1d(4, 3, 2)
        self.last = nn.Linear(3, 5)

    def forward(self, x):
        x = torch.nn.functional.leaky_relu(self.norm(self.first(x)), 0.1)
        x = x + self.wide(x + self.depth(x))
        x = self.pool(self.short(x) + self.long(x))
        return self.last(self.line(x.flatten(2)).transpose(1, 2))


class Windows(nn.Module):
    """Convolutions and pools of all kinds over one image, many with windows of padding alone."""

    LAYERS: ClassVar = {1: (nn.Conv1d, nn.MaxPool1d), 2: (nn.Conv2d, nn.MaxPool2d)}

    def __init__(self, layers, channels, rank=2):
        super().__init__()
        self.first = self.LAYERS[rank][0](channels, channels, 1)
        self.layers = nn.ModuleList(layers)

    @classmethod
    def drawn(cls, seed, rank, channels, size, count=8):
        """Layers with random strides, paddings, dilations and groups that fit an image."""
        draws, layers = random.Random(seed), []
        conv, pool = cls.LAYERS[rank]

        def pick(low, *highs):
            return tuple(draws.randint(low, high) for high in highs)

        while len(layers) < count:
            kernel, stride = pick(1, *[3] * rank), pick(1, *[3] * rank)
            if draws.random() < 0.7:
                options = {"padding": pick(0, *[4] * rank), "dilation": pick(1, *[3] * rank)}
                options |= {"groups": draws.choice([1, 2, channels]), "bias": draws.random() < 0.5}
                layer = conv(channels, 2 * channels, kernel, stride, **options)
            else:
                options = {"padding": pick(0, *(k // 2 for k in kernel))}
                layer = pool(kernel, stride, ceil_mode=draws.random() < 0.5, **options)
            with contextlib.suppress(RuntimeError):  # the window is larger than the image
                layer(torch.zeros(1, channels, *size))
                layers.append(layer)
        return cls(layers, channels, rank)

    def forward(self, x):
        x = self.first(x)
        return tuple(layer(x) for layer in self.layers)


def separable(channels, size=(6, 5)):
    """Two pairs of a depthwise and a pointwise convolution, then one in two groups."""
    pairs = [
        nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1),
            nn.ReLU(),
        )
        for _ in range(2)
    ]
    first, last = nn.Conv2d(1, channels, 3, 2, 1), nn.Conv2d(channels, channels, 1, groups=2)
    rest = [nn.Flatten(), nn.LazyLinear(5)]
    model = nn.Sequential(first, nn.ReLU(), *pairs, last, *rest)
    model(torch.zeros(1, 1, *size))
    return of_model(model.eval(), (1, *size))


def check(graph, folder, *, samples, max_parallelism=1, circuit=None, stalls=None):
    """Compare the circuit of a graph with the graph, and return the simulation."""
    circuit = circuit or streaming_circuit(graph, max_parallelism=max_parallelism)
    draws = torch.Generator().manual_seed(samples)
    inputs = [
        torch.randint(codes.lowest, codes.highest + 1, (samples, *codes.shape), generator=draws)
        for codes in (graph.codes(port.value) for port in circuit.inputs)
    ]
    values = [
        graph.codes(port.value).values(x) for port, x in zip(circuit.inputs, inputs, strict=True)
    ]
    expected = graph.run(*values)
    expected = expected if isinstance(expected, tuple) else (expected,)
    result = simulate_circuit(circuit, inputs, folder=folder, stalls=stalls)
    assert result.warnings == (), "\n".join(result.warnings)
    for port, ours, theirs in zip(circuit.outputs, expected, result.outputs, strict=True):
        assert torch.equal(ours, theirs), f"{port.value}: {int((ours != theirs).sum())} codes"
    return result
