"""Random quantised networks: drawn from a seed, written down as values, and built."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from chop.ir import MaseGraph
from chop.passes import Pipeline
from chop.progress import hidden_progress

from .network_steps import CODES, KINDS, WEIGHTED, Kind, Options, Shape, State

MAX_VALUES = 300  # of one value of a network
MAX_PRODUCTS = 4000  # of a layer, so that unrolled circuits are small


@dataclass(frozen=True)
class Step:
    """A layer: its kind, the values that it takes (0 is the input), its options and its format."""

    kind: str
    takes: tuple[int, ...] = (0,)
    options: Options = field(default_factory=dict)
    format: Options | None = None
    weights: str = "even"
    seed: int = 0  # of the weights


@dataclass(frozen=True)
class Network:
    """A quantised network as values; its representation is code that makes it again."""

    shape: Shape
    steps: tuple[Step, ...]
    returns: tuple[int, ...] = (-1,)
    parallelism: int = 4  # of its streaming circuit


class Model(nn.Module):
    """The torch network of a description."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.calls: list[Callable[..., Tensor]] = []
        x: list[Tensor] = [torch.zeros(2, *network.shape)]
        for number, step in enumerate(network.steps):
            call = made(step, tuple(x[step.takes[0]].shape[1:]))
            if isinstance(call, nn.Module):
                self.add_module(f"s{number + 1}", call.eval())
            self.calls.append(call)
            x.append(call(*(x[i] for i in step.takes)))

    def forward(self, x: Tensor) -> Any:
        values = [x]
        for number, step in enumerate(self.network.steps):
            call = self._modules.get(f"s{number + 1}") or self.calls[number]
            values.append(call(*(values[i] for i in step.takes)))
        results = tuple(values[i] for i in self.network.returns)
        return results if len(results) > 1 else results[0]


def made(step: Step, shape: Shape) -> Callable[..., Tensor]:
    """Return the layer of a step, with the weights of its seed."""
    layer = KINDS[step.kind].make(shape, **step.options)
    if isinstance(layer, nn.Module):
        source = torch.Generator().manual_seed(step.seed)
        with torch.no_grad():
            for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
                if tensor.is_floating_point():
                    tensor.copy_(_numbers(name, tensor, step.weights, source))
    return layer


def _numbers(name: str, like: Tensor, style: str, source: torch.Generator) -> Tensor:
    """Return weights, a bias or statistics."""
    numbers = torch.rand(like.shape, generator=source)
    if name == "running_var" or (like.ndim < 2 and name == "weight"):
        return numbers + 0.25
    spread = 1.7 / math.sqrt(max(1, like[0].numel())) if like.ndim > 1 else 0.7
    numbers = spread * (2 * numbers - 1)
    if like.ndim < 2 or style == "even":
        return numbers
    rows = (-1, *[1] * (like.ndim - 1))
    if style == "rows":  # of very different sizes
        return numbers * 2.0 ** -torch.randint(0, 6, (len(like),), generator=source).view(rows)
    if style == "signs":
        return spread * numbers.sign()
    numbers[0] = 0
    return numbers


class Drawing:
    """Draws a network, one layer after the other, with formats that fit its values."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.family = self.random.choice(
            ["bytes", "bytes", "integer", "integer", "integer", "powers", "affine", "affine", "any"]
        )
        rank = self.random.choice([1, 1, 2, 3, 3, 3, 3, 3])
        shape = [self.random.randint(1, 6)]
        shape += [self.random.randint(3, 7) for _ in range(rank - 1)]
        if rank == 1:
            shape = [self.random.randint(1, 9)]
        if self.random.random() < 0.02:
            shape = [self.random.randint(1, 2), 3, 4, 3]
        x = torch.randn(16, *shape, generator=self.torch)
        x *= 2.0 ** self.random.choice([0, 0, 0, 0, -5, 4])
        self.values, self.steps, self.states = [x], list[Step](), list[State](["input"])

    def network(self) -> Network:
        """Return the network, which has one to seven layers."""
        for _ in range(self.random.choice([1, 2, 3, 3, 4, 4, 5, 5, 6, 7])):
            self._add_layer()
            if KINDS[self.steps[-1].kind].ends or self.values[-1].ndim == 1:
                break
        self._add_last()
        returns: tuple[int, ...] = (len(self.steps),)
        if len(self.steps) > 2 and self.random.random() < 0.08:
            returns = (self.random.randint(1, len(self.steps) - 1), *returns)
        return Network(
            tuple(self.values[0].shape[1:]),
            tuple(self.steps),
            returns,
            self.random.choice([1, 2, 3, 4, 6, 8, 16, 64]),
        )

    def _add_last(self) -> None:
        """Let a layer with weights follow activations, so that they are rounded."""
        last = KINDS[self.steps[-1].kind]
        if last.ends or self.values[-1].ndim == 1:
            return
        if self.states[-1] in CODES and (last.takes == 1 or self.random.random() < 0.5):
            return
        if self.values[-1].ndim > 2:
            self._append(Step("flatten", (len(self.steps),)))
        self._try("linear", KINDS["linear"])

    def _add_layer(self) -> None:
        kind = self.random.choice(self._weighted())
        first = not self.steps and self.random.random() < 0.8  # most start with weights
        if first and self._try(kind, KINDS[kind]):
            return
        rank = self.values[-1].ndim - 1
        known = {n: k for n, k in KINDS.items() if rank in k.ranks}
        for _ in range(50):
            (name,) = self.random.choices([*known], [kind.weight for kind in known.values()])
            if self._try(name, known[name]):
                return
        self._append(Step("identity", (len(self.steps),)))

    def _weighted(self) -> list[str]:
        rank = self.values[0].ndim - 1
        return [name for name in WEIGHTED if rank in KINDS[name].ranks]

    def _try(self, name: str, kind: Kind) -> bool:
        """Append a layer if its options fit; return whether they do."""
        takes = [len(self.steps)]
        shape = tuple(self.values[-1].shape[1:])
        if kind.takes == 2:
            takes.append(self._partner(shape, name))
            if takes[0] == takes[1] and self.random.random() < 0.8:
                return False
            self.random.shuffle(takes)
        options = kind.draw(self.random, shape)
        style = self.random.choice(["even", "even", "even", "rows", "signs", "zeros"])
        seed = self.random.randrange(10**6)
        step = Step(name, tuple(takes), options, None, style, seed)
        plain = {self.states[i] for i in takes} <= kind.needs
        if has_format(name, len(shape)) and not (plain and self.random.random() < 0.4):
            step = replace(step, format=self._format(step))
        elif not plain and self.random.random() < 0.97:
            return False
        try:
            return self._append(step)
        except (RuntimeError, ValueError):  # of torch: options that do not fit
            return False

    def _partner(self, shape: Shape, name: str) -> int:
        """Return another value for a sum, a product or a concatenation."""
        fits = [
            i
            for i, x in enumerate(self.values)
            if x.shape[1:] == shape
            or (name == "concat" and x.ndim == len(shape) + 1 and x.shape[2:] == shape[1:])
        ]
        return self.random.choice(fits)

    def _append(self, step: Step) -> bool:
        taken = [self.values[i] for i in step.takes]
        layer = made(step, tuple(taken[0].shape[1:]))
        with torch.no_grad():
            result = layer(*taken)
        size = result[0].numel()
        weight = getattr(layer, "weight", None)
        products = size * weight[0].numel() if weight is not None and weight.ndim > 1 else 0
        finite = bool(result.isfinite().all()) and float(result.abs().max()) < 2.0**20
        if not 0 < size <= MAX_VALUES or products > MAX_PRODUCTS or not finite:
            return False
        self.steps.append(step)
        self.values.append(result)
        self.states.append(self._state(step))
        return True

    def _state(self, step: Step) -> State:
        """Return what is known of the result of a layer."""
        kind, taken = KINDS[step.kind], {self.states[i] for i in step.takes}
        if kind.state != "same":
            return kind.state
        if step.format is not None:
            return "narrow"
        if len(step.takes) == 1:
            return taken.pop()
        return "joined" if not taken <= CODES else "wide"

    # --- formats

    def _format(self, step: Step) -> Options:
        """Return the config of a layer for its values."""
        x = torch.cat([self.values[i].flatten() for i in step.takes])
        reach = max(float(x.abs().max()), 2.0**-12)
        family = self.family
        if family == "any":
            family = self.random.choice(["bytes", "integer", "powers", "affine"])
        if family in ("bytes", "integer"):
            return self._fixed(step, reach, free=family == "integer")
        return self._affine(step, reach, float(x.min()), powers=family == "powers")

    def _fixed(self, step: Step, reach: float, free: bool) -> Options:
        random, config = self.random, {"name": "integer"}
        operands = {"data_in": reach, "weight": 1.0, "bias": 1.0}
        operands = operands if step.kind in (*WEIGHTED, "batch_norm") else {"data_in": reach}
        if random.random() < 0.05:
            operands["data_out"] = 4 * reach
        for operand, most in operands.items():
            width = random.choice((1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 12, 16)) if free else 8
            config[f"{operand}_width"] = width
            config[f"{operand}_frac_width"] = self._fraction(width, most, free)
        if random.random() < 0.15:
            config["data_in_signed"] = False
        if free:
            config["rounding"] = random.choice(["even", "even", "up", "floor"])
            config["overflow"] = random.choice(["saturate", "saturate", "symmetric", "wrap"])
            if config["overflow"] == "symmetric" and 1 in config.values():
                config["overflow"] = "saturate"
        return config

    def _fraction(self, width: int, reach: float, free: bool) -> int:
        """Return the bits after the point: mostly as many as fit, sometimes very different."""
        random = self.random
        fit = width - 1 - math.ceil(math.log2(reach))
        if free and random.random() < 0.04:
            return random.choice([-6, -3, 12, 20])
        return fit + random.choice([-2, -1, 0, 0, 0, 1, 1, 2])

    def _affine(self, step: Step, reach: float, low: float, powers: bool) -> Options:
        random = self.random
        width = random.choice((2, 3, 4, 6, 8, 8, 8, 8, 8, 12, 16))
        config: Options = {"name": "affine", "data_in_width": width}
        point = random.choice([0, 0, *self._points(width)])
        config["data_in_zero_point"] = point
        if point == 0 and random.random() < 0.3:
            config["data_in_signed"] = False
        elif point == 0 and random.random() < 0.15:
            config["data_in_symmetric"] = True
        scale = reach * random.choice([0.4, 0.7, 1.0, 1.5]) / 2.0 ** (width - 1)
        if powers:
            scale = 2.0 ** round(math.log2(scale))
        config["data_in_scale"] = scale
        if step.kind in (*WEIGHTED, "batch_norm"):
            config["weight_width"] = random.choice((2, 4, 7, 8, 8, 8))
            config["weight_power_of_two"] = powers
            if step.kind in WEIGHTED and random.random() < 0.5:
                config["weight_axis"] = 0
            if random.random() < 0.15:
                config["weight_signed"], config["weight_zero_point"] = False, "calibrated"
            if random.random() < 0.1:
                config["bias_width"] = 16
                config["bias_power_of_two"] = powers
        elif random.random() < 0.08 and len(step.takes) == 1:
            channels = self.values[step.takes[0]].shape[1]
            factors = [2.0 ** random.choice([0, 1, -1]) for _ in range(channels)]
            config["data_in_axis"] = 1
            config["data_in_scale"] = tuple(scale * factor for factor in factors)
        return config

    def _points(self, width: int) -> Sequence[int]:
        low = -(2 ** (width - 1))
        return [
            low,
            -low - 1,
            self.random.randint(low, -low - 1),
            self.random.randint(low, -low - 1),
        ]


def has_format(kind: str, rank: int) -> bool:
    """Return whether a kind of layer rounds its input if it has a format."""
    pools = kind in ("avg_pool", "adaptive_avg_pool") and rank == 2
    return KINDS[kind].formats and "max_pool" not in kind and not pools


def drawn(seed: int) -> Network:
    """Return the network of a seed."""
    return Drawing(seed).network()


def quantised(network: Network) -> MaseGraph:
    """Return the quantised graph of a network."""
    dummy = {"dummy_in": {"x": torch.zeros(2, *network.shape)}, "add_value": False}
    steps: list[Any] = ["init_metadata", ("add_common_metadata", dummy)]
    graph, _ = Pipeline(steps)(MaseGraph(Model(network).eval()))
    tables: Options = {"by": "name", "default": {"config": {"name": None}}}
    nodes = [n for n in graph.nodes if n.op.startswith("call")]
    for node, step in zip(nodes, network.steps, strict=True):
        if step.format is not None:
            tables[node.name] = {"config": step.format}
    with hidden_progress():
        return Pipeline([("quantize", tables)])(graph)[0]
