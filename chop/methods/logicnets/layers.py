"""LogicNets: layers in which each neuron is a truth table of a few input bits."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.graph.tensor_rules import TensorRule
from chop.ir.ops import OPS, ops_with
from chop.numerics import NumberFormat
from chop.numerics.integer import Integer
from chop.passes.graph.transforms.metadata_sync import calls
from chop.passes.graph.transforms.quantize.config import check_known, without_na
from chop.passes.graph.transforms.quantize.quantized_modules.neurons import (
    Conv2dNeurons,
    LinearNeurons,
    Neurons,
)
from chop.passes.graph.transforms.quantize.variants import layer_variant

MAX_BITS = 16  # inputs of one neuron: a table of 65 536 entries
MAX_ENTRIES = 2**26  # of all tables of a layer
CHUNK = 2**22  # entries that are computed at a time

# activations that tables do not include, so that networks with them are transformed as ever
OUTSIDE = {"selu", "celu", "mish", "logsigmoid", "hardswish", "hardshrink", "softshrink"}
OUTSIDE |= {"tanhshrink", "softsign", "softplus", "threshold"}
# layers that a table can absorb, besides the matching norm: functions of single numbers
ACTIVATIONS = tuple(
    cls for op in ops_with("activation") if op not in OUTSIDE for cls in OPS[op].modules
)
MERGEABLE = (*ACTIVATIONS, nn.Identity, nn.Dropout)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
AROUND = ("additional_layers_inputs", "additional_layers_outputs")
OPERANDS = ("data_in", "data_out", "weight", "bias")
WIDTHS = tuple(f"{operand}_{key}" for operand in OPERANDS for key in ("width", "frac_width"))
KEYS = ("name", *WIDTHS, *AROUND, "fan_in")


class LogicNets(Neurons):
    """A layer in which each neuron sees a few inputs of a few bits, so a table holds its outputs.

    In train mode, and with `is_lut_inference = False`, it computes: input layers if fused, input
    format, weighted sum, output layers if fused, output format. In eval mode it looks up the same
    numbers. Tables are computed when first needed, and again after parameters changed.
    """

    format_name: ClassVar[str | None] = "logicnets"
    variant_name: ClassVar[str]
    config_keys: ClassVar[tuple[str, ...]] = KEYS
    derived_attributes = (*Neurons.derived_attributes, "tables", "_made_from")
    norm: ClassVar[type[nn.Module]]  # the norm that can be merged

    indices: Tensor  # [out, fan_in]: which inputs each neuron sees
    valid: Tensor  # [out, fan_in]: whether the entry is used; some neurons see fewer inputs
    tables: Tensor  # [out, 2^(width * fan_in)]: codes of the results

    def __init__(
        self,
        *args: Any,
        activation_module: nn.Module | None = None,
        input_layers: Sequence[nn.Module] = (),
        output_layers: Sequence[nn.Module] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        last = () if activation_module is None else (activation_module,)
        if input_layers or output_layers or last:
            self.merge(input_layers, (*output_layers, *last))

    @classmethod
    def check_config(cls, config: Mapping[str, Any]) -> None:
        check_known("logicnets", config, KEYS)
        _format(config, "data_in", needed=True)
        _format(config, "data_out", needed=True)
        fan_in = config.get("fan_in")
        if fan_in is not None and (not isinstance(fan_in, int) or fan_in < 1):
            raise ValueError(f"fan_in is {fan_in!r}; give an integer of at least 1")

    @classmethod
    def with_neighbours(
        cls, configs: Mapping[fx.Node, dict[str, Any]], graph: MaseGraph, baseline: MaseGraph
    ) -> dict[fx.Node, dict[str, Any]]:
        """Add to configs without them the names of the norm and activation after each node."""
        here, theirs = called_once(graph), called_once(baseline)
        completed = dict(configs)
        for node, config in configs.items():
            if any(config.get(key) for key in AROUND) or node.name not in here:
                continue  # a layer that is called more than once cannot be merged
            if node.name not in theirs:
                raise ValueError(
                    f"the baseline graph has no layer {node.name!r} that is called once; "
                    f"give the baseline of this graph, or none"
                )
            names = [n.name for n in _followers(cls.norm, theirs[node.name], baseline, theirs)]
            followers = _same_followers(node, names, here)
            able = itertools.takewhile(lambda n: is_rows(graph, n), followers)
            completed[node] = {**config, AROUND[1]: [n.name for n in able]}
        return completed

    def configure(self, config: Mapping[str, Any]) -> Self:
        """Apply the config's formats, and derive each neuron's inputs from nonzero weights."""
        config = {**without_na(config), "name": "logicnets"}
        self.check_config(config)
        self._take(config)
        weight = self.weight.detach().flatten(1)
        connected = _largest(weight, config.get("fan_in") or self.num_inputs)
        self._check_size(connected.sum(1))
        width = max(1, int(connected.sum(1).max()))
        order = connected.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :width]
        self.register_buffer("indices", order)
        self.register_buffer("valid", connected.gather(1, order))
        self.is_lut_inference, self.is_fused = True, False
        self.input_layers, self.output_layers = nn.ModuleList(), nn.ModuleList()
        return self

    def derive(self) -> None:
        """Check loaded state and build the formats; tables are computed when needed."""
        self.check_config(self.config)
        self._take(self.config)
        self._check_size(torch.tensor([self.fan_in]))

    def tensor_rules(self) -> dict[str, TensorRule]:
        neurons, inputs, rest = self.num_neurons, self.num_inputs, (None,) * (self.weight.dim() - 1)
        seen = (neurons, self.fan_in)
        return {
            "weight": TensorRule((neurons, *rest)),
            "indices": TensorRule(seen, "whole", 0, inputs - 1),
            "valid": TensorRule(seen, "bool"),
            **({} if self.bias is None else {"bias": TensorRule((neurons,))}),
        }

    def _take(self, config: Mapping[str, Any]) -> None:
        formats = {operand: _format(config, operand) for operand in OPERANDS}
        self.formats: dict[str, NumberFormat] = {o: f for o, f in formats.items() if f is not None}
        self.config, self._kept = config, {}
        self._drop_tables()

    def _drop_tables(self) -> None:
        self.tables = torch.empty(0, dtype=torch.int32)
        self._made_from: list[Tensor] = []

    def _check_size(self, fan_ins: Tensor) -> None:
        """Raise an error with the size if tables would be too large."""
        most, neuron = int(fan_ins.max()), int(fan_ins.argmax())
        bits = most * self.input_format.width
        if bits > MAX_BITS:
            raise ValueError(
                f"neuron {neuron} sees {most} inputs of {self.input_format.width} bits: its table "
                f"would have 2^{bits} entries (at most 2^{MAX_BITS}); prune its weights, or "
                f"give fan_in = {max(1, MAX_BITS // self.input_format.width)} or fewer"
            )
        if self.num_neurons * 2**bits > MAX_ENTRIES:
            raise ValueError(
                f"{self.num_neurons} tables of 2^{bits} entries are "
                f"{self.num_neurons * 2**bits} (at most {MAX_ENTRIES}); give fewer bits"
            )

    @property
    def input_format(self) -> Any:
        return self.formats["data_in"]

    @property
    def output_format(self) -> Any:
        return self.formats["data_out"]

    @property
    def fan_in(self) -> int:
        """The number of inputs of the neuron that sees most."""
        return self.indices.shape[1]

    def merge(self, input_layers: Sequence[nn.Module], output_layers: Sequence[nn.Module]) -> None:
        """Merge copies of the layers before and after into this one, and fuse them."""
        for layer in (*input_layers, *output_layers):
            if not isinstance(layer, (self.norm, *MERGEABLE)):
                able = ", ".join(cls.__name__ for cls in (self.norm, *MERGEABLE))
                raise ValueError(f"{type(layer).__name__} cannot be merged; these can: {able}")
        self.input_layers = nn.ModuleList(copy.deepcopy(layer) for layer in input_layers)
        self.output_layers = nn.ModuleList(copy.deepcopy(layer) for layer in output_layers)
        self.is_fused = True
        self._drop_tables()

    def forward(self, input: Tensor) -> Any:
        if self.training or not self.is_lut_inference:
            return self.math_forward(input)
        return self.lut_forward(input)

    def math_forward(self, x: Tensor) -> Tensor:
        """Compute by arithmetic, with gradients."""
        x = self.quantized_input(x)
        rows = self.rows(x)
        columns = [rows[:, column] for column in self.seen_inputs().unbind(1)]
        return self.from_rows(self._neurons(columns), x)

    def lut_forward(self, x: Tensor) -> Tensor:
        """Compute by table lookup, without gradients: the same numbers, bit for bit."""
        self.refresh_tables()
        x = self.quantized_input(x)
        codes = self.encode(self.rows(x))
        index = torch.arange(self.num_neurons, device=x.device) * self.tables.shape[1]
        index = index.expand(codes.shape[0], -1)
        for i, column in enumerate(self.seen_inputs().unbind(1)):
            digit = codes[:, column] * self.valid[:, i]
            index = index + (digit << (i * self.input_format.width))
        results = self.tables.view(-1)[index]
        return self.from_rows(self._values(results, self.output_format, x.dtype), x)

    def seen_inputs(self) -> Tensor:
        """[out, fan_in]: positions in a row of the inputs that each neuron sees."""
        return self.indices + self.first_inputs()[:, None]

    def quantized_input(self, x: Tensor) -> Any:
        """Return an input as the neurons see it: after merged layers, in the input format."""
        return self.q("data_in", self.after_input_layers(x))

    def after_input_layers(self, x: Tensor) -> Tensor:
        """Return an input after the layers that are merged before the neurons."""
        for layer in self.input_layers if self.is_fused else ():
            x = _applied(layer, x)
        return x

    def _neurons(self, columns: Sequence[Tensor]) -> Any:
        """Return results [rows, out] from the first, second, … input of each neuron [rows, out].

        Sums are made one product after the other, so that they do not depend on how many rows there
        are: a matrix product may add in any order, and the tables would differ by rounding.
        """
        weight = self.q("weight", self.weight).flatten(1).gather(1, self.indices) * self.valid
        total = columns[0] * weight[:, 0]
        for i, column in enumerate(columns[1:], start=1):
            total = total + column * weight[:, i]
        if self.bias is not None:
            total = total + self.q("bias", self.bias)
        for layer in self.output_layers if self.is_fused else ():
            total = _applied(layer, total)
        return self.q("data_out", total)

    def encode(self, x: Tensor) -> Any:
        """Convert values of the input format to codes from 0, in two's complement."""
        return _codes(x, self.input_format) & (2**self.input_format.width - 1)

    def decode(self, codes: Tensor) -> Any:
        """Convert codes from 0 to values of the input format; the inverse of `encode`."""
        width = self.input_format.width
        signed = torch.where(codes >= 2 ** (width - 1), codes - 2**width, codes)
        return self._values(signed, self.input_format, self.weight.dtype)

    @staticmethod
    def _values(codes: Tensor, fmt: Any, dtype: torch.dtype) -> Any:
        return codes.to(dtype) * 2.0**-fmt.frac_width

    def calculate_truth_tables(self) -> None:
        """Compute the outputs of every neuron for all possible inputs, vectorised."""
        width, rows = self.input_format.width, 2 ** (self.input_format.width * self.fan_in)
        step = max(1, CHUNK // self.num_neurons)
        training = {module: module.training for module in self.modules()}
        self.eval()
        with torch.inference_mode(False), torch.no_grad():  # tables outlive the inference
            size, device = (self.num_neurons, rows), self.weight.device
            tables = torch.empty(size, dtype=torch.int32, device=device)
            for start in range(0, rows, step):
                entries = torch.arange(start, min(start + step, rows), device=device)
                digits = [(entries >> (i * width)) & (2**width - 1) for i in range(self.fan_in)]
                columns = [self.decode(d)[:, None].expand(-1, self.num_neurons) for d in digits]
                codes = _codes(self._neurons(columns), self.output_format)
                tables[:, entries] = codes.T.to(torch.int32)
            self._made_from = [t.detach().clone() for t in self._sources()]
        for module, mode in training.items():
            module.training = mode
        self.tables = tables

    def _sources(self) -> list[Tensor]:
        return [*self.parameters(), *self.buffers()]

    def refresh_tables(self) -> None:
        """Compute the tables, unless they are those of the parameters as they are now."""
        sources = self._sources()
        same = len(sources) == len(self._made_from) and all(
            a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)
            for a, b in zip(sources, self._made_from, strict=True)
        )
        if not same:
            self.calculate_truth_tables()

    @property
    def neuron_truth_tables(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """For each neuron: its inputs, all rows of input codes, results as values and as codes."""
        self.refresh_tables()
        width, places, tables = self.input_format.width, self.seen_inputs(), []
        for neuron in range(self.num_neurons):
            inputs = places[neuron, self.valid[neuron]]
            entries = torch.arange(2 ** (width * len(inputs)), device=inputs.device)
            digits = [(entries >> (i * width)) & (2**width - 1) for i in range(len(inputs))]
            rows = torch.stack(digits, 1) if digits else entries[:, None][:, :0]
            codes = self.tables[neuron, : len(entries)]
            values = self._values(codes, self.output_format, self.weight.dtype)
            tables.append((inputs, rows, values, codes))
        return tables

    def __getstate__(self) -> dict[str, Any]:
        empty = torch.empty(0, dtype=torch.int32)
        return super().__getstate__() | {"tables": empty, "_made_from": []}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, fan_in={self.fan_in}, bits={self.input_format.width}"


@layer_variant("linear", "logicnets")
class LinearLogicNets(LogicNets, LinearNeurons):
    """A linear layer of truth tables."""

    norm = nn.BatchNorm1d


@layer_variant("conv2d", "logicnets")
class Conv2DLogicNets(LogicNets, Conv2dNeurons):
    """A convolution with a truth table of a patch per channel; padding has the code of 0."""

    norm = nn.BatchNorm2d


def _format(config: Mapping[str, Any], operand: str, needed: bool = False) -> Integer | None:
    widths: dict[str, Any] = {
        key: config.get(f"{operand}_{key}") for key in ("width", "frac_width")
    }
    if widths["width"] is None and not needed:
        return None  # stays in float
    for key, value in widths.items():
        if value is None:
            raise ValueError(f"logicnets needs {operand}_{key} in its config")
    fmt = Integer(**widths)
    if fmt.width > 31:
        raise ValueError(f"{operand}_width of logicnets is {fmt.width}; give at most 31")
    return fmt


def _codes(x: Tensor, fmt: Integer) -> Tensor:
    """Convert values on a format's grid to integers."""
    return (x * 2.0**fmt.frac_width).round().long()


def _largest(weight: Tensor, count: int) -> Tensor:
    """Mark the weights of each row that are not zero and among its `count` largest."""
    columns = weight.abs().argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(weight, dtype=torch.bool).scatter_(1, columns, True) & (weight != 0)


def _applied(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a merged layer; an eval-mode batch norm in steps that give the same for any batch."""
    if not isinstance(layer, NORMS):
        y: Tensor = layer(x.contiguous())
        return y
    if layer.training or layer.running_mean is None or layer.running_var is None:
        images = isinstance(layer, nn.BatchNorm2d) and x.dim() == 2  # rows of channels
        return layer(x[..., None, None] if images else x).reshape(x.shape)  # type: ignore[no-any-return]
    scale = (layer.running_var + layer.eps).rsqrt()
    factors = (layer.running_mean, scale if layer.weight is None else scale * layer.weight)
    ones = (1,) * (2 if isinstance(layer, nn.BatchNorm2d) and x.dim() > 2 else 0)
    mean, scale = (t.reshape(-1, *ones) for t in factors)
    x = (x - mean) * scale
    return x if layer.bias is None else x + layer.bias.reshape(-1, *ones)


def follows(first: fx.Node, second: fx.Node) -> bool:
    """Whether `second` is the only user of `first`, and `first` its only input."""
    return list(first.users) == [second] and second.all_input_nodes == [first]


def is_rows(graph: MaseGraph, node: fx.Node) -> bool:
    """Whether a 1d norm normalises rows of features rather than sequences."""
    if not isinstance(graph.modules[str(node.target)], nn.BatchNorm1d):
        return True
    return len(mase(node).common.results.tensor("data_out_0").shape) == 2


def called_once(graph: MaseGraph) -> dict[str, fx.Node]:
    """The nodes, by name, that are the only callers of their module."""
    return {nodes[0].name: nodes[0] for nodes in calls(graph).values() if len(nodes) == 1}


def _followers(
    norm: type[nn.Module], node: fx.Node, graph: MaseGraph, able: Mapping[str, fx.Node]
) -> Iterator[fx.Node]:
    """Yield the following layers that can be merged, up to the first activation."""
    while len(node.users) == 1:
        following = next(iter(node.users))
        if following.name not in able or not follows(node, following):
            return
        layer = graph.modules[str(following.target)]
        if not isinstance(layer, (norm, *MERGEABLE)):
            return
        yield following
        if isinstance(layer, ACTIVATIONS):
            return
        node = following


def _same_followers(
    node: fx.Node, names: Sequence[str], here: Mapping[str, fx.Node]
) -> list[fx.Node]:
    """The nodes of those names; raises an error if other nodes follow in the baseline than here."""
    chain = [node]
    for name in names:
        if name not in here or not follows(chain[-1], here[name]):
            raise ValueError(
                f"{name!r} follows {chain[-1].name!r} in the baseline graph, but not here; "
                f"give the baseline of this graph, or none"
            )
        chain.append(here[name])
    return chain[1:]
