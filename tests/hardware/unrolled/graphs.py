"""Small integer graphs that are written by hand."""

import torch
from torch import nn

from chop.integers import (
    IntegerGraph,
    LinearCodes,
    QuantizeInput,
    ReluCodes,
    Requantize,
    Scale,
    Word,
)
from chop.ir import MaseGraph
from chop.numerics.integer import Integer
from chop.passes import Pipeline


def word(width, frac_width=0, **rule):
    return Word.of(Integer(width, frac_width, **rule).grid())


def of_input(width, shape, **rule):
    """A graph with one input, `x_codes`."""
    graph = IntegerGraph(inputs=["x"])
    graph.add("x_codes", QuantizeInput(word(width, **rule), shape), ["x"], "x")
    return graph


def perceptron(sizes, names=None, seed=0, bits=4):
    """Linear layers with relu and rounding in between; weights are random."""
    draws = torch.Generator().manual_seed(seed)
    graph = of_input(5, (sizes[0],))
    last = "x_codes"
    names = names or [f"fc{i}" for i in range(1, len(sizes))]
    for name, inputs, outputs in zip(names, sizes, sizes[1:], strict=False):
        top = 2 ** (bits - 1)
        weight = torch.randint(-top, top, (outputs, inputs), generator=draws)
        bias = torch.randint(-top, top, (outputs,), generator=draws)
        op = LinearCodes(weight, bias, Scale.power(-2), bits)
        last = graph.add(name, op, [last], name)
        if name != names[-1]:
            last = graph.add(f"{name}_relu", ReluCodes(), [last], f"{name}_relu")
            last = graph.add(f"{name}_rounded", Requantize(word(5)), [last], f"{name}_relu")
    graph.outputs.append(last)
    return graph


def quantised(model, shape, **widths):
    """The integer graph of a model in fixed point."""
    config = {"data_in_width": 6, "data_in_frac_width": 3, "weight_width": 5}
    config |= {"weight_frac_width": 4, "bias_width": 6, "bias_frac_width": 5, **widths}
    table = {"by": "type", "default": {"config": {"name": "integer", **config}}}
    graph = MaseGraph(model.eval())
    dummy = {node.target: torch.zeros(2, *shape) for node in graph.inputs}
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": dummy}), ("quantize", table)]
    return Pipeline(steps)(graph)[0].to_integers()


class Residual(nn.Module):
    """A skip over two layers, and two results."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        first = self.one(x)
        last = self.three(torch.relu(self.two(first)))
        return first + last, last
