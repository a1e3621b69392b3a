"""The layers of random networks: which options they draw, and how they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, ...]  # of a value, without its batch
Options = dict[str, Any]
# what is known of a value: it is not rounded yet, a table gives it, it has many codes or few
State = Literal["input", "joined", "table", "wide", "narrow", "same"]
CODES: frozenset[State] = frozenset({"wide", "narrow"})
FEW: frozenset[State] = frozenset({"table", "narrow"})  # what tables take
ANY: frozenset[State] = frozenset({"input", "joined", "table"}) | CODES


@dataclass(frozen=True)
class Kind:
    """A kind of layer: options drawn for the shape of its input, and the call that they make."""

    make: Callable[..., Callable[..., Tensor]]  # of the shape and the options
    draw: Callable[[Random, Shape], Options] = lambda random, shape: {}
    ranks: tuple[int, ...] = (1, 2, 3)
    takes: int = 1
    weight: int = 2  # how often it is drawn
    formats: bool = True  # whether a format may be given to it
    ends: bool = False  # whether nothing may follow it
    state: State = "wide"  # of the result, if its input is rounded
    needs: frozenset[State] = frozenset()  # the states of an input that it takes without a format


def _sizes(random: Random, rank: int, choices: tuple[int, ...]) -> Any:
    """Return one number for all dimensions, or one for each."""
    if rank == 1 or random.random() < 0.5:
        return random.choice(choices)
    return tuple(random.choice(choices) for _ in range(rank))


def _linear(random: Random, shape: Shape) -> Options:
    return {"out_features": random.randint(1, 6), "bias": random.random() < 0.8}


def _conv(random: Random, shape: Shape) -> Options:
    rank = len(shape) - 1
    groups = random.choice([1, 1, 1, *(g for g in (2, 3, shape[0]) if shape[0] % g == 0)])
    options = {
        "out_channels": groups * random.randint(1, max(1, 5 // groups)),
        "kernel_size": _sizes(random, rank, (1, 2, 2, 3, 3)),
        "stride": _sizes(random, rank, (1, 1, 1, 2, 3)),
        "padding": _sizes(random, rank, (0, 0, 1, 1, 2)),
        "dilation": _sizes(random, rank, (1, 1, 1, 2)),
        "groups": groups,
        "bias": random.random() < 0.8,
    }
    if random.random() < 0.35:  # as before a sum with its input
        size = random.choice([1, 3])
        same = {"kernel_size": size, "stride": 1, "padding": size // 2, "dilation": 1}
        options |= {**same, "out_channels": shape[0]}
    if random.random() < 0.1:
        options["padding_mode"] = random.choice(["reflect", "replicate", "circular"])
    return options


def _max_pool(random: Random, shape: Shape) -> Options:
    rank = len(shape) - 1
    kernel = _sizes(random, rank, (1, 2, 2, 3, 3))
    least = kernel if isinstance(kernel, int) else min(kernel)
    return {
        "kernel_size": kernel,
        "stride": _sizes(random, rank, (1, 2, 2, 3)),
        "padding": random.randint(0, least // 2),
        "dilation": _sizes(random, rank, (1, 1, 1, 2)),
        "ceil_mode": random.random() < 0.4,
    }


def _avg_pool(random: Random, shape: Shape) -> Options:
    options = _max_pool(random, shape)
    del options["dilation"]
    options["count_include_pad"] = random.random() < 0.5
    if len(shape) == 3 and random.random() < 0.15:
        options["divisor_override"] = random.randint(1, 7)
    return options


def _adaptive(random: Random, shape: Shape) -> Options:
    sizes = tuple(
        random.choice([n for n in range(1, size + 1) if size % n == 0]) for size in shape[1:]
    )
    return {"output_size": sizes if len(sizes) > 1 else sizes[0]}


def _bounds(random: Random, shape: Shape) -> Options:
    low = random.choice([-1.0, -0.5, -1.7, 0.0, -0.3])
    return {"min_val": low, "max_val": low + random.choice([0.5, 1.0, 2.3, 3.1])}


def _pad(random: Random, shape: Shape) -> Options:
    rank = len(shape) - 1
    pads = tuple(random.randint(0, 2) for _ in range(2 * rank))
    value = random.choice([0.0, 0.0, 0.0, 0.5, -1.0])
    mode = random.choice(["constant", "constant", "reflect", "replicate", "circular"])
    return {"pad": pads, "mode": mode} | ({"value": value} if mode == "constant" else {})


def _dims(random: Random, shape: Shape) -> Options:
    dims = sorted(random.sample(range(1, len(shape) + 1), random.randint(1, len(shape))))
    return {"dim": tuple(dims), "keepdim": random.random() < 0.3}


def _order(random: Random, shape: Shape) -> Options:
    return {"dims": (0, *random.sample(range(1, len(shape) + 1), len(shape)))}


def _new_shape(random: Random, shape: Shape) -> Options:
    count = math.prod(shape)
    first = random.choice([n for n in range(1, count + 1) if count % n == 0])
    rest = count // first
    second = random.choice([n for n in range(1, rest + 1) if rest % n == 0])
    return {"sizes": random.choice([(first, rest), (first, second, rest // second)])}


def _layer(module: type[nn.Module], sized: bool = False) -> Callable[..., Callable[..., Tensor]]:
    """Return what makes a layer; one that is `sized` takes the number of channels first."""

    def make(shape: Shape, **options: Any) -> nn.Module:
        return module(shape[0], **options) if sized else module(**options)

    return make


def _by_rank(layers: Mapping[int, type[nn.Module]], sized: bool = False) -> Callable[..., Any]:
    def make(shape: Shape, **options: Any) -> nn.Module:
        return _layer(layers[len(shape)], sized)(shape, **options)

    return make


def _call(function: Callable[..., Tensor]) -> Callable[..., Callable[..., Tensor]]:
    """Return what makes a call of a function, with the options behind its operands."""

    def make(shape: Shape, **options: Any) -> Callable[..., Tensor]:
        return lambda *x: function(*x, **options)

    return make


def _with_number(function: Callable[..., Tensor]) -> Callable[..., Callable[..., Tensor]]:
    return lambda shape, number: lambda x: function(x, number)


def _join(shape: Shape, dim: int) -> Callable[..., Tensor]:
    return lambda a, b: torch.cat([a, b], dim)


def _clamp(shape: Shape, min_val: float, max_val: float) -> Callable[..., Tensor]:
    return lambda x: torch.clamp(x, min_val, max_val)


def _softmax(shape: Shape) -> Callable[..., Tensor]:
    return nn.Softmax(1)


def _argmax(shape: Shape) -> Callable[..., Tensor]:
    return lambda x: torch.argmax(x, 1)


# calls that keep some elements of each sample, or move them
PICKS: dict[str, Callable[..., Tensor]] = {
    "narrow": torch.narrow,
    "select": torch.select,
    "flip": torch.flip,
    "roll": torch.roll,
    "slice": lambda x, dim, step: x[(slice(None),) * dim + (slice(None, None, step),)],
    "pixel_shuffle": F.pixel_shuffle,
    "pixel_unshuffle": F.pixel_unshuffle,
    "channel_shuffle": F.channel_shuffle,
}


def _places(random: Random, shape: Shape) -> Options:
    dim = random.randint(1, len(shape))
    size = shape[dim - 1]
    start = random.randrange(size)
    drawn = {
        "narrow": {"dim": dim, "start": start, "length": random.randint(1, size - start)},
        "flip": {"dims": (dim,)},
        "roll": {"shifts": random.randint(-2, 3), "dims": dim},
        "slice": {"dim": dim, "step": random.randint(1, 3)},
    }
    if len(shape) > 1:
        drawn["select"] = {"dim": dim, "index": start}
    if len(shape) == 3:
        if shape[0] % 4 == 0:
            drawn["pixel_shuffle"] = {"upscale_factor": 2}
        if shape[1] % 2 == shape[2] % 2 == 0:
            drawn["pixel_unshuffle"] = {"downscale_factor": 2}
        groups = [n for n in range(2, shape[0]) if shape[0] % n == 0]
        drawn |= {"channel_shuffle": {"groups": random.choice(groups)}} if groups else {}
    way = random.choice([*drawn])
    return {"way": way, **drawn[way]}


def _pick(shape: Shape, way: str, **options: Any) -> Callable[..., Tensor]:
    return lambda x: PICKS[way](x, **options)


CONVS = {2: nn.Conv1d, 3: nn.Conv2d, 4: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}
MAX_POOLS = {2: nn.MaxPool1d, 3: nn.MaxPool2d}
AVG_POOLS = {2: nn.AvgPool1d, 3: nn.AvgPool2d}
ADAPTIVE_AVG = {2: nn.AdaptiveAvgPool1d, 3: nn.AdaptiveAvgPool2d}
ADAPTIVE_MAX = {2: nn.AdaptiveMaxPool1d, 3: nn.AdaptiveMaxPool2d}
IMAGES = (2, 3)


def _depthwise(random: Random, shape: Shape) -> Options:
    return _conv(random, shape) | {
        "groups": shape[0],
        "out_channels": shape[0] * random.randint(1, 2),
    }


def _slope(random: Random, shape: Shape) -> Options:
    return {"negative_slope": random.choice([0.01, 0.125, 0.25, 0.3, -0.5])}


def _number(random: Random, shape: Shape) -> Options:
    return {"number": random.choice([0.75, -1.5, 2.0, 0.3])}


def _activation(module: type[nn.Module]) -> Kind:
    return Kind(_layer(module), weight=1, state="table", needs=FEW)


def _function(function: Callable[..., Tensor]) -> Kind:
    return Kind(_call(function), weight=1, formats=False, state="table", needs=FEW)


def _kept(make: Callable[..., Callable[..., Tensor]], **more: Any) -> Kind:
    """A kind of layer that leaves codes as they are, or takes them later."""
    return Kind(make, state="same", needs=ANY, **more)


KINDS: dict[str, Kind] = {
    "linear": Kind(lambda shape, **options: nn.Linear(shape[-1], **options), _linear, weight=5),
    "conv": Kind(_by_rank(CONVS, sized=True), _conv, IMAGES, weight=10),
    "depthwise": Kind(_by_rank(CONVS, sized=True), _depthwise, IMAGES, weight=3),
    "conv3d": Kind(_by_rank(CONVS, sized=True), _conv, (4,), weight=4),
    "batch_norm": Kind(_by_rank(NORMS, sized=True), weight=1, needs=CODES),
    "relu": _kept(_layer(nn.ReLU), ranks=(1, 2, 3, 4), weight=6),
    "relu6": Kind(_layer(nn.ReLU6), state="same", needs=CODES),
    "hardtanh": Kind(_layer(nn.Hardtanh), _bounds, state="same", needs=CODES),
    "clamp": Kind(_clamp, _bounds, weight=1, formats=False, state="same", needs=CODES),
    "leaky_relu": Kind(_layer(nn.LeakyReLU), _slope, needs=CODES),
    "prelu": _activation(nn.PReLU),
    "sigmoid": _activation(nn.Sigmoid),
    "tanh": _activation(nn.Tanh),
    "gelu": _activation(nn.GELU),
    "silu": _activation(nn.SiLU),
    "elu": _activation(nn.ELU),
    "softplus": _activation(nn.Softplus),
    "hardsigmoid": _activation(nn.Hardsigmoid),
    "hardswish": _activation(nn.Hardswish),
    "softsign": _activation(nn.Softsign),
    "softshrink": _activation(nn.Softshrink),
    "abs": _function(torch.abs),
    "square": _function(torch.square),
    "neg": _function(torch.neg),
    "exp": _function(torch.exp),
    "max_pool": _kept(_by_rank(MAX_POOLS), draw=_max_pool, ranks=IMAGES, weight=7),
    "avg_pool": Kind(_by_rank(AVG_POOLS), _avg_pool, IMAGES, weight=6, needs=CODES),
    "adaptive_avg_pool": Kind(_by_rank(ADAPTIVE_AVG), _adaptive, IMAGES, needs=CODES),
    "adaptive_max_pool": _kept(_by_rank(ADAPTIVE_MAX), draw=_adaptive, ranks=IMAGES, weight=1),
    "mean": Kind(_call(torch.mean), _dims, (2, 3), weight=1, formats=False, needs=CODES),
    "sum": Kind(_call(torch.sum), _dims, (2, 3), weight=1, formats=False, needs=CODES),
    "pad": _kept(_call(F.pad), draw=_pad, ranks=IMAGES, weight=4, formats=False),
    "add": Kind(_call(torch.add), takes=2, weight=5, needs=CODES),
    "sub": Kind(_call(torch.sub), takes=2, needs=CODES),
    "mul": Kind(_call(torch.mul), takes=2, needs=CODES),
    "add_number": Kind(_with_number(torch.add), _number, weight=1, needs=CODES),
    "mul_number": Kind(_with_number(torch.mul), _number, weight=1, needs=CODES),
    "concat": _kept(_join, draw=lambda random, shape: {"dim": 1}, takes=2, weight=5, formats=False),
    "flatten": _kept(
        lambda shape: lambda x: x.flatten(1), ranks=(2, 3, 4), weight=1, formats=False
    ),
    "reshape": _kept(
        lambda shape, sizes: nn.Unflatten(1, sizes),
        draw=_new_shape,
        ranks=(1,),
        weight=1,
        formats=False,
    ),
    "permute": _kept(_call(torch.permute), draw=_order, ranks=(2, 3), weight=1, formats=False),
    "identity": _kept(_layer(nn.Identity), weight=1, formats=False),
    "dropout": _kept(_layer(nn.Dropout), weight=1, formats=False),
    "softmax": Kind(_softmax, ranks=(1,), weight=1, formats=False, ends=True, needs=CODES),
    "argmax": Kind(_argmax, ranks=(1,), weight=1, formats=False, ends=True, needs=CODES),
    "pick": _kept(_pick, draw=_places, weight=1, formats=False),
}
WEIGHTED = ("linear", "conv", "depthwise", "conv3d")
