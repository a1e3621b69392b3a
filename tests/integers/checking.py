"""Small quantised networks for every op, and the check that finds a wrong integer graph."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.integers import IntegerGraph
from chop.ir import MaseGraph
from chop.passes import Pipeline, logicnets_fusion_transform_pass

ROUNDINGS = ("even", "up", "floor")
OVERFLOWS = ("saturate", "symmetric", "wrap")
RULES = list(itertools.product(ROUNDINGS, OVERFLOWS))


class Calls(nn.Module):
    """A network that a function of its layers and its input describes."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.function = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layers, x)


@dataclass(frozen=True)
class Case:
    """An op in a small network, and the shape of its input."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    single: bool = False  # its simulation is the float32 one, in which tables are computed
    others: dict[str, Any] = field(default_factory=dict, hash=False)  # keys of the config
    plain: tuple[str, ...] = ()  # ops that stay in float
    reach: int | None = None  # bits of the inputs, if fewer than the format has
    layers: dict[str, Any] = field(default_factory=dict, hash=False)  # configs of nodes
    fused: bool = False  # whether norms and activations are merged into truth tables


def front(op: nn.Module | Callable[[Tensor], Tensor], after: int = 4) -> Callable[[], nn.Module]:
    """A convolution, the op, and a linear layer that rounds its result."""

    def make() -> nn.Module:
        layers = {"conv": nn.Conv2d(2, 3, 3, padding=1), "last": nn.Linear(after, 3)}
        if isinstance(op, nn.Module):
            layers["op"] = copy.deepcopy(op)
        return Calls(lambda m, x: m["last"](_call(m, op, m["conv"](x)).flatten(1)), **layers)

    return make


def _call(layers: Any, op: Any, x: Tensor) -> Tensor:
    return layers["op"](x) if isinstance(op, nn.Module) else op(x)


def alone(op: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(copy.deepcopy(op))


def norm() -> nn.Module:
    layer = nn.BatchNorm2d(3)
    source = torch.Generator().manual_seed(3)
    for tensor in (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data):
        tensor.copy_(torch.rand(3, generator=source) + 0.25)
    return layer


def two_inputs(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Calls(
        lambda m, x: combine(m["one"](x), m["other"](x)), one=nn.Linear(6, 4), other=nn.Linear(6, 4)
    )


def ending(op: nn.Module) -> Callable[[], nn.Module]:
    """A linear layer and the op, whose result is not rounded."""
    return lambda: nn.Sequential(nn.Linear(7, 5), copy.deepcopy(op))


def logicnets(width: int = 2, **others: Any) -> dict[str, Any]:
    """The config of layers of truth tables."""
    config = {"name": "logicnets", "data_in_width": width, "data_in_frac_width": 1, "fan_in": 3}
    return {**config, "data_out_width": 4, "data_out_frac_width": 2, **others}


def lutnet(k: int = 2, levels: int = 2, binarized: int = 1) -> dict[str, Any]:
    """The config of layers of lookup tables."""
    numbers = {"data_in_k": k, "data_in_levels": levels, "data_in_binarization_level": binarized}
    return {"name": "lutnet", **numbers}


def stack(*layers: nn.Module) -> Callable[[], nn.Module]:
    """Layers one after the other, with lived-in norms."""

    def make() -> nn.Module:
        copies = [copy.deepcopy(layer) for layer in layers]
        for layer in copies:
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.reset_parameters()  # by the seed of the case
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                source = torch.Generator().manual_seed(3)
                state = (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data)
                for tensor in state:
                    tensor.copy_(torch.rand(tensor.shape, generator=source) + 0.25)
        return nn.Sequential(*copies)

    return make


IMAGE = (2, 4, 4)
WIDE = {"data_in_width": 46, "data_in_frac_width": 9, "weight_width": 14, "weight_frac_width": 12}
FEW = {"data_in_width": 2, "data_in_frac_width": 0, "weight_width": 2, "weight_frac_width": 0}
FEW |= {"bias_width": 2, "bias_frac_width": 0}
BEFORE, AFTER = "additional_layers_inputs", "additional_layers_outputs"
MERGED = {**logicnets(3), BEFORE: ["_0"], AFTER: ["_2", "_3"]}
TABLES: dict[str, Any] = {"single": True, "others": {"data_in_width": 4, "data_in_frac_width": 1}}
CASES = [
    Case("linear", lambda: nn.Sequential(nn.Linear(7, 5)), (7,)),
    Case("linear without bias", lambda: nn.Sequential(nn.Linear(7, 5, bias=False)), (7,)),
    Case("linear on rows", lambda: nn.Sequential(nn.Linear(4, 5)), (3, 4)),
    Case("two linear", lambda: nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3)), (7,)),
    Case("conv1d", alone(nn.Conv1d(2, 3, 3, stride=2, padding=2, dilation=2)), (2, 9)),
    Case("conv2d", alone(nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(1, 0))), (2, 5, 6)),
    Case("conv2d in groups", alone(nn.Conv2d(4, 4, 3, groups=2, padding="same")), (4, 4, 4)),
    Case(
        "conv2d padded by reflection",
        alone(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect")),
        IMAGE,
    ),
    Case("conv3d", alone(nn.Conv3d(1, 2, 2, padding=1)), (1, 3, 3, 3)),
    Case("relu", front(nn.ReLU(), 48), IMAGE),
    Case("relu6", front(nn.ReLU6(), 48), IMAGE),
    Case("hardtanh", front(nn.Hardtanh(-0.3, 0.7), 48), IMAGE),
    Case("clamp", front(lambda x: x.clamp(-1.5, 0.25), 48), IMAGE),
    Case("leaky relu", front(nn.LeakyReLU(0.125), 48), IMAGE),
    Case("leaky relu of tenths", front(nn.LeakyReLU(0.01), 48), IMAGE),
    Case("sigmoid", front(nn.Sigmoid(), 48), IMAGE, single=True),
    Case("gelu", front(nn.GELU(), 48), IMAGE, single=True),
    Case("add", two_inputs(torch.add), (6,)),
    Case("sub", two_inputs(torch.sub), (6,)),
    Case("mul", two_inputs(torch.mul), (6,)),
    Case("add a number", front(lambda x: x + 0.75, 48), IMAGE),
    Case("concat", two_inputs(lambda a, b: torch.cat([a, b], 1)), (6,)),
    Case(
        "concat with the input",
        lambda: Calls(
            lambda m, x: m["last"](torch.cat([x, m["one"](x), torch.sigmoid(m["one"](x))], 1)),
            one=nn.Linear(3, 3),
            last=nn.Linear(9, 2),
        ),
        (3,),
        single=True,
    ),
    Case("pad", front(lambda x: F.pad(x, (1, 2, 0, 1)), 105), IMAGE),
    Case("pad by replication", front(nn.ReplicationPad2d(1), 108), IMAGE),
    Case("flatten", front(lambda x: x.flatten(1), 48), IMAGE),
    Case("reshape", front(lambda x: x.view(x.size(0), 6, 8), 48), IMAGE),
    Case("transpose", front(lambda x: x.transpose(1, 3), 48), IMAGE),
    Case("permute", front(lambda x: x.permute(0, 2, 3, 1), 48), IMAGE),
    Case("part", front(lambda x: x[:, :, ::2, 1:], 18), IMAGE),
    Case("max pool", front(nn.MaxPool2d(2, 1, padding=1), 75), IMAGE),
    Case("avg pool", front(nn.AvgPool2d(2), 12), IMAGE),
    Case(
        "avg pool of nine", front(nn.AvgPool2d(3, 1, padding=1, count_include_pad=False), 48), IMAGE
    ),
    Case("adaptive avg pool", front(nn.AdaptiveAvgPool2d(1), 3), IMAGE),
    Case("mean", front(lambda x: x.mean((2, 3)), 3), IMAGE),
    Case("argmax", lambda: Calls(lambda m, x: m["fc"](x).argmax(1), fc=nn.Linear(7, 5)), (7,)),
    Case("batch norm", front(norm(), 48), IMAGE),
    Case("wide", lambda: nn.Sequential(nn.Linear(5, 2)), (5,), others=WIDE, reach=30),
    Case(
        "fine bias",
        lambda: nn.Sequential(nn.Linear(5, 2)),
        (5,),
        others={"bias_width": 8, "bias_frac_width": 12},
    ),
    Case("relu at the end", ending(nn.ReLU()), (7,), plain=("relu",)),
    Case("leaky relu at the end", ending(nn.LeakyReLU(-0.5)), (7,), plain=("leaky_relu",)),
    Case("relu6 at the end", ending(nn.ReLU6()), (7,), plain=("relu6",)),
    Case("hardtanh at the end", ending(nn.Hardtanh(-0.25, 0.75)), (7,), plain=("hardtanh",)),
    Case(
        "ties of argmax",
        lambda: Calls(lambda m, x: m["fc"](x).argmax(1), fc=nn.Linear(3, 6)),
        (3,),
        others=FEW,
    ),
    Case(
        "logicnets",
        stack(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)),
        (6,),
        **TABLES,
        layers={"_0": logicnets(), "_1": None, "_2": None, "_3": logicnets(3)},
    ),
    Case(
        "logicnets fused",
        stack(nn.BatchNorm1d(6), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)),
        (6,),
        **TABLES,
        layers={"_0": None, "_1": MERGED, "_2": None, "_3": None, "_4": logicnets(3)},
        fused=True,
    ),
    Case(
        "logicnets on rows",
        stack(nn.Linear(4, 3)),
        (3, 4),
        **TABLES,
        layers={"_0": logicnets()},
    ),
    Case(
        "logicnets conv2d",
        stack(nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.Conv2d(3, 2, 2)),
        IMAGE,
        **TABLES,
        layers={"_0": logicnets(3), "_1": logicnets()},
    ),
    Case(
        "logicnets merged after a layer",
        stack(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)),
        (6,),
        **TABLES,
        layers={"_1": None, "_2": None, "_3": {**logicnets(3), AFTER: [], BEFORE: ["_1", "_2"]}},
        fused=True,
    ),
    Case(
        "lutnet",
        stack(nn.Linear(7, 6), nn.Linear(6, 4), nn.Linear(4, 2)),
        (7,),
        single=True,
        layers={"_1": lutnet()},
    ),
    Case(
        "lutnet of three levels after the input",
        stack(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)),
        (6,),
        single=True,
        layers={"_0": lutnet(3, 3), "_1": None},
    ),
    Case(
        "lutnet with a norm",
        stack(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Hardtanh(), nn.Linear(5, 4), nn.Linear(4, 2)),
        (6,),
        single=True,
        layers={"_0": lutnet(), "_1": None, "_2": None, "_3": lutnet(1, 2)},
    ),
    Case(
        "lutnet conv2d",
        stack(nn.Conv2d(2, 3, 2), nn.Conv2d(3, 2, 3, padding=1), nn.Flatten(), nn.Linear(18, 3)),
        IMAGE,
        single=True,
        layers={"_1": lutnet()},
    ),
]
BY_NAME = {case.name: case for case in CASES}
# few bits, so that ties and overflows are frequent
WIDTHS = {"data_in_width": 6, "data_in_frac_width": 3, "weight_width": 5, "weight_frac_width": 4}
WIDTHS |= {"bias_width": 6, "bias_frac_width": 5}


def quantised(model: nn.Module, shape: Any, tables: dict[str, Any]) -> MaseGraph:
    """Return the graph of a model, quantised."""
    steps: list[Any] = ["init_metadata"]
    graph = MaseGraph(model.eval())
    name = graph.inputs[0].target
    nested = isinstance(shape, dict)
    dummy = {k: torch.zeros(2, *v) for k, v in shape.items()} if nested else torch.zeros(2, *shape)
    steps += [("add_common_metadata", {"dummy_in": {name: dummy}}), ("quantize", tables)]
    return Pipeline(steps)(graph)[0]


def graph_of(case: Case, rounding: str, overflow: str, **widths: int) -> MaseGraph:
    """Return the quantised network of a case; its weights are the same every time."""
    config = {"name": "integer", **WIDTHS, **widths, **case.others}
    config |= {"rounding": rounding, "overflow": overflow}
    with torch.random.fork_rng():
        torch.manual_seed(len(case.name))
        model = case.make()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data.uniform_(-1, 1)
    plain: dict[str, Any] = dict.fromkeys(case.plain)
    by = "name" if case.layers else "type"
    tables = {
        key: {"config": {"name": None} if table is None else table}
        for key, table in {**plain, **case.layers}.items()
    }
    graph = quantised(model, case.shape, {"by": by, "default": {"config": config}, **tables})
    if case.fused:
        logicnets_fusion_transform_pass(graph)
    return graph


def vectors(case: Case, count: int, frac: int, width: int, seed: int = 0) -> Tensor:
    """Return random inputs on quarters of a step, beyond the range too, and boundary vectors."""
    source = torch.Generator().manual_seed(seed)
    top = 2**width
    quarters = torch.randint(-3 * top, 3 * top, (count, *case.shape), generator=source).double() / 4
    low, high = -(2.0 ** (width - 1)), 2.0 ** (width - 1) - 1
    flat = torch.Size(case.shape).numel()
    rows = [torch.full((flat,), end).double() for end in (low, high, 0.0, low - 1, high + 1)]
    turns = torch.arange(flat) % 2 == 0
    rows += [torch.where(turns, a, b).double() for a, b in ((low, high), (high, low))]
    rows += [*torch.eye(flat).double() * low, *torch.eye(flat).double() * high]
    return torch.cat([quarters, torch.stack(rows).view(-1, *case.shape)]) * 2.0**-frac


@dataclass(frozen=True, eq=False)
class Prepared:
    """An integer graph, inputs, and what the float simulation returns for them."""

    name: str
    integers: IntegerGraph
    inputs: Tensor
    expected: Tensor


def prepare(case: Case, rounding: str, overflow: str, count: int, **widths: int) -> Prepared:
    graph = graph_of(case, rounding, overflow, **widths)
    settings = {**WIDTHS, **widths, **case.others}
    width = case.reach or settings["data_in_width"]
    x = vectors(case, count, settings["data_in_frac_width"], width)
    integers = graph.to_integers()
    dtype = torch.float32 if case.single else torch.float64
    with torch.no_grad():
        expected = graph.model.to(dtype)(x.to(dtype)).double()
    return Prepared(f"{case.name} {rounding} {overflow}", integers, x, expected)


cached = functools.cache(prepare)


def mismatches(case: Prepared) -> int:
    """Return how many values of the integer graph differ from the float simulation."""
    found = case.integers(case.inputs)
    if found.shape != case.expected.shape:
        return max(1, found.numel())
    return int((found != case.expected).sum())
