"""Integer and fraction bits of a layer's mixed_integer operands, and what they cost."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from chop.hardware.estimate.coefficients import FORMULA as K
from chop.ir.ops import TransposedLinear
from chop.numerics import NumberFormat
from chop.numerics.fast.learned_reference import rounded_steps
from chop.numerics.learned import Cost, LearnsBits, whole
from chop.numerics.mixed_integer import MixedInteger
from chop.numerics.mixed_rounding import MixedRounding, integer_bits_for
from chop.passes.graph.transforms.quantize.calibrated import ACTIVATIONS
from chop.passes.graph.transforms.quantize.quantized_modules.format_tensors import (
    FORMAT_TENSORS,
    Bits,
    FormatTensors,
    Tensors,
    tensor_name,
)

KINDS = MixedInteger.layer_tensors
LINEAR = (nn.Linear, TransposedLinear)
CONVOLUTIONS: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
DIGITS = 0.36  # signed digits that each bit of a weight after the first has on average
EXCESS = 2  # bits by which a sum exceeds the format that it is rounded to


class BitWidths(FormatTensors):
    """The integer and fraction bits of a mixed_integer operand.

    Those that are trained are float32, all others integers. A parameter that is trained has no
    integer bits of its own: they follow from its values.
    """

    def initial(self, layer: Any, name: str, fmt: MixedInteger) -> Tensors:
        settings: Any = {
            "dtype": torch.float32 if fmt.learn else torch.int8,
            "device": layer.device(),
        }
        shape = self.shape(layer, name, fmt)
        numbers = {"integer_bits": fmt.integer_width, "frac_bits": fmt.frac_width}
        if fmt.learn and name not in ACTIVATIONS:
            del numbers["integer_bits"]
        return {kind: torch.full(shape, number, **settings) for kind, number in numbers.items()}

    def shape(self, layer: Any, name: str, fmt: MixedInteger) -> tuple[int, ...]:
        """Return the shape of the bits of an operand, which broadcasts to it."""
        if fmt.granularity == "tensor":
            return ()
        activation = name in ACTIVATIONS
        if activation and fmt.sample_shape is None:
            raise ValueError(
                f"{name}_sample_shape is missing, which bits per {fmt.granularity} need; use "
                f"learn_bits_transform_pass, which fills it in, or granularity 'tensor'"
            )
        sizes = fmt.sample_shape if activation else tuple(layer._parameter(name).shape)
        assert sizes is not None
        axis = self._axis(layer, name, len(sizes))
        by_channel = tuple(n if d == axis else 1 for d, n in enumerate(sizes))
        # leading dimensions of size 1 broadcast anyway
        return sizes if fmt.granularity == "element" else by_channel[axis if activation else 0 :]

    def _axis(self, layer: Any, name: str, rank: int) -> int:
        """Return the dimension of the channels."""
        if name in ACTIVATIONS:
            return rank - 1 if is_linear(layer) else 0
        return (layer.output_axis or 0) if rank > 1 else 0

    def rounding(self, layer: Any, name: str, fmt: MixedInteger) -> Any:
        integer_bits, frac_bits = (layer.format_tensor(tensor_name(name, kind)) for kind in KINDS)
        return fmt if frac_bits is None else MixedRounding(fmt, frac_bits, integer_bits)

    def current(self, layer: Any, name: str, fmt: MixedInteger) -> NumberFormat:
        bits = self.bits(layer, name, fmt)
        if bits is None:
            return fmt
        activation = name in ACTIVATIONS
        shape = (fmt.sample_shape or bits[1].shape) if activation else layer._parameter(name).shape
        return fmt.with_bits(*bits, tuple(shape))

    def bits(self, layer: Any, name: str, fmt: MixedInteger) -> Bits | None:
        rounding = self.rounding(layer, name, fmt)
        if rounding is fmt or rounding.frac_bits.is_meta:
            return None
        bits: Bits = rounding.bits_of(
            None if name in ACTIVATIONS else layer._parameter(name).detach()
        )
        return bits

    def counted(self, layer: Any, name: str, fmt: MixedInteger) -> NumberFormat:
        return self.current(layer, name, fmt)

    def cut(
        self, layer: Any, name: str, fmt: MixedInteger, dim: int | None, kept: Sequence[int]
    ) -> Tensors:
        activation = name in ACTIVATIONS
        if activation and fmt.sample_shape is not None:
            axis = self._axis(layer, name, len(fmt.sample_shape))
            sizes = [len(kept) if d == axis else n for d, n in enumerate(fmt.sample_shape)]
            layer.config = {**layer.config, f"{name}_sample_shape": sizes}
            layer.formats = {
                **layer.formats,
                name: dataclasses.replace(fmt, sample_shape=tuple(sizes)),
            }
        return {
            kind: _selected(bits.detach(), self._cut_axis(layer, name, bits, dim), kept)
            for kind, bits in layer.kept_tensors(name, KINDS).items()
        }

    def _cut_axis(self, layer: Any, name: str, bits: Tensor, dim: int | None) -> int | None:
        """Return the dimension of the bits that loses channels, or None if it has only one."""
        axis = dim
        if not bits.dim():
            return None
        if name in ACTIVATIONS:
            axis = bits.dim() - 1 if is_linear(layer) else 0
        return axis if axis is not None and axis < bits.dim() and bits.shape[axis] > 1 else None


FORMAT_TENSORS[KINDS] = BitWidths()


def _selected(bits: Tensor, dim: int | None, kept: Sequence[int]) -> Tensor:
    if dim is None:
        return bits
    places = [place for place in kept if place < bits.shape[dim]]
    return bits.index_select(dim, torch.tensor(places, dtype=torch.long, device=bits.device))


@dataclasses.dataclass(frozen=True)
class _Widths:
    """Bits of an operand without its sign, `live` where there are any, and in `total` with it.

    They broadcast to the operand: numbers that share their bits are counted once.
    """

    magnitude: Tensor
    signed: bool

    @functools.cached_property
    def live(self) -> Tensor:
        return (self.magnitude.detach() > 0).to(self.magnitude.dtype)

    @functools.cached_property
    def total(self) -> Tensor:
        return self.magnitude + self.live if self.signed else self.magnitude


class LearnsWidths(LearnsBits):
    """Mixin after a quantised layer with mixed_integer operands.

    A layer with `reads_input` reads the input of the network, which is rounded outside a circuit.
    """

    def width_parameters(self) -> dict[str, nn.Parameter]:
        layer: Any = self
        return {n: p for n, p in layer.format_tensors().items() if n in layer._parameters}

    def bit_cost(self, cost: Cost, *, exact: bool = False) -> Tensor:
        """Return what the layer costs for one sample, with gradients unless it is `exact`.

        "ebops" multiplies the bits of inputs with those of weights without their sign, over all
        products, and counts exactly those of a weight from its first to its last one; "bitops" also
        counts the additions, as the pass `cost` does; "model_size" has the bits of parameters;
        "lut" estimates adders and the rounding of the input.
        """
        count = getattr(self, f"_{cost}", None) if cost in COSTS else None
        if count is None:
            raise ValueError(f"bit_cost has no cost {cost!r}; use one of {', '.join(COSTS)}")
        result: Tensor = count(exact)
        return result.detach() if exact else result

    def bit_operations(self, *, sparse: bool = False) -> tuple[float, float]:
        """Return the exact bit operations for one sample: of products, and of their sums.

        With `sparse`, weights that are zero take none.
        """
        with torch.no_grad():
            multiply, accumulate = self._bit_operations(exact=True, sparse=sparse)
        return float(multiply), float(accumulate)

    def num_products(self) -> int:
        """Return the products for one sample, those on the padding included; 0 if unknown."""
        layer: Any = self
        data = layer.formats.get("data_in")
        counted = is_linear(layer) or is_convolution(layer)
        if data is None or not counted or (data.sample_shape is None and not is_linear(layer)):
            return 0
        return self._places() * int(layer.weight.numel())

    def _ebops(self, exact: bool) -> Tensor:
        x, weight, bias = (self._widths(name, exact) for name in OPERANDS)
        if x is None or weight is None:
            return self._nothing(exact)
        ours = self._effective("weight") if exact else weight.magnitude
        total = self._products(x.total, ours)
        if bias is None:
            return total
        added = self._effective("bias") if exact else bias.magnitude
        return total + self._places() * self._sum(added, "bias")

    def _effective(self, name: str) -> Tensor:
        """Return the bits of each magnitude from its first to its last one, as a circuit has."""
        layer: Any = self
        values = layer._parameter(name)
        fmt = layer.formats[name]
        rounding = layer.rounding(name, fmt)
        own_bits = rounding is not fmt
        fraction = rounding.frac_bits.detach() if own_bits else torch.tensor(fmt.frac_width)
        size = rounded_steps(rounding(values.detach()).double(), fraction, "even").abs().long()
        odd = size // (size & -size).clamp(min=1)
        return torch.log2(odd.double() + 1).ceil()

    def _bitops(self, exact: bool) -> Tensor:
        multiply, accumulate = self._bit_operations(exact)
        return multiply + accumulate

    def _bit_operations(self, exact: bool, sparse: bool = False) -> tuple[Tensor, Tensor]:
        """Return the bit operations of products and of sums; those on the padding count too."""
        x, weight = (self._widths(name, exact) for name in OPERANDS[:2])
        if x is None or weight is None:
            return self._nothing(exact), self._nothing(exact)
        layer: Any = self
        if sparse:
            used = (layer.q_parameter("weight") != 0).to(weight.live.dtype)
            weight = _Widths(used * weight.magnitude, weight.signed)
        fan_in = layer.weight.numel() // layer.weight.shape[layer.output_axis]
        guard = max(fan_in - 1, 0).bit_length()
        products = [
            self._all_products(a, b)
            for a, b in (
                (x.total, weight.total),
                (x.total, weight.live),
                (x.live, weight.total),
                (x.live, weight.live),
            )
        ]
        return products[0], products[1] + products[2] + guard * products[3]

    def _model_size(self, exact: bool) -> Tensor:
        layer: Any = self
        names = [n for n in layer._rounded_parameters() if layer._parameter(n) is not None]
        widths = ((name, self._widths(name, exact)) for name in names)
        sums = (self._sum(w.total, name) for name, w in widths if w is not None)
        return sum(sums, self._nothing(exact))

    def _sum(self, bits: Tensor, name: str) -> Tensor:
        """Return the sum over all numbers of a parameter."""
        layer: Any = self
        total: Tensor = bits.sum() * (layer._parameter(name).numel() / bits.numel())
        return total

    def _lut(self, exact: bool) -> Tensor:
        x, weight = (self._widths(name, exact) for name in OPERANDS[:2])
        rounding = self._nothing(exact) if x is None else self._rounding_luts(x)
        if x is None or weight is None:
            return rounding
        own = self._own_bits(weight)
        digits = (own.detach() > 0) * (1 + DIGITS * (own - 1))
        share, depth = self._adders_per_digit(x, digits.detach())
        width = K.width + K.width_data * x.total + K.width_depth * depth
        adder_bits = share * self._products(x.live * width.clamp(min=1), digits)
        return K.adder * adder_bits + rounding

    def _own_bits(self, weight: _Widths) -> Tensor:
        """Return the bits of each weight, also where weights share theirs: most have fewer.

        Their gradient is that of the shared bits.
        """
        layer: Any = self
        shared, values = weight.magnitude, layer._parameter("weight").detach()
        if shared.shape == values.shape:
            return shared
        fmt = layer.formats[layer.operand_of("weight")]
        rounding = layer.rounding("weight", fmt)
        own_bits = rounding is not fmt
        fraction = rounding.frac_bits.detach() if own_bits else torch.tensor(fmt.frac_width)
        fraction = fraction.to(values).round().expand(values.shape)
        own = (integer_bits_for(values, fraction, fmt) + fraction).to(shared.dtype)
        own = torch.minimum(own, shared.detach())
        return own + (own > 0) * (shared - shared.detach())

    def _adders_per_digit(self, x: _Widths, digits: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many adders there are for each digit of a weight, and the levels of a sum.

        Equal partial sums are computed once; see `WeightFacts.shared_adders`.
        """
        layer: Any = self
        places = self._places()
        count = (self._products(x.live.detach(), digits) / places).clamp(min=1e-9)
        outputs = layer.weight.shape[layer.output_axis]
        each = (count - outputs).clamp(min=0)
        fan_in = layer.weight.numel() / max(1, outputs)
        shared = K.adders * each.clamp(min=1e-9) ** K.adders_power * fan_in**K.adders_wide
        depth = torch.log2((count / outputs).clamp(min=1))
        return torch.minimum(each, shared) / count, depth

    def _rounding_luts(self, x: _Widths) -> Tensor:
        """Return the logic that rounds the input and brings it into its range."""
        layer: Any = self
        fmt = layer.formats["data_in"]
        if getattr(self, "reads_input", False):  # of the instance, so that a file may set it
            return 0 * x.total.sum()
        span = x.total + EXCESS * x.live
        sides = 1 + int(fmt.signed)
        rounds, saturates = fmt.rounding != "floor", fmt.overflow != "wrap"
        each = K.rounding * rounds * span + K.saturation * saturates * (x.total + sides * span) / 2
        total: Tensor = each.expand(fmt.sample_shape or each.shape).sum()
        return total

    def _nothing(self, exact: bool) -> Tensor:
        layer: Any = self
        dtype = torch.float64 if exact else torch.float32
        return torch.zeros((), dtype=dtype, device=layer.device())

    def _widths(self, name: str, exact: bool) -> _Widths | None:
        """Return the bits of an operand."""
        layer: Any = self
        fmt = layer.formats.get(layer.operand_of(name))
        values = None if name in ACTIVATIONS else getattr(layer, name, None)
        if fmt is None or (name not in ACTIVATIONS and values is None):
            return None
        rounding = layer.rounding(name, fmt)
        if rounding is fmt:
            fixed = self._nothing(exact) + fmt.width - int(fmt.signed)
            return _Widths(fixed * (fixed > 0), bool(fmt.signed))
        values = None if values is None else values.detach()
        own = None if exact else rounding.own_widths(values)
        if own is not None:
            return _Widths(own, bool(fmt.signed))
        i, f = (
            b.detach().double().round() if exact else whole(b.float())
            for b in rounding.bits_of(values)
        )
        # a number of no bits has no gradient
        return _Widths((i + f) * ((i + f).detach() > 0), bool(fmt.signed))

    def _places(self) -> int:
        """Return how many results of each output there are in one sample."""
        layer: Any = self
        shape = self._sample()
        if is_linear(layer):
            return math.prod(shape[:-1])
        pads = _pads(layer)
        sizes = zip(shape[1:], layer.kernel_size, layer.stride, pads, layer.dilation, strict=True)
        return math.prod((n + sum(p) - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)

    def _sample(self) -> tuple[int, ...]:
        """Return the shape of one sample of the input."""
        layer: Any = self
        shape = layer.formats["data_in"].sample_shape
        if shape is not None:
            return tuple(shape)
        if is_linear(layer):
            return (layer.in_features,)
        raise ValueError(
            f"{type(layer).__name__} needs data_in_sample_shape to count its products; use "
            f"learn_bits_transform_pass, which fills it in"
        )

    def _products(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the sum over all products of a number for the input times one for the weight."""
        layer: Any = self
        shape = self._sample()
        if is_linear(layer):
            rows = x.expand(shape).reshape(-1, shape[-1]).sum(0)
            return (rows * self._over_outputs(weight)).sum()
        _check_counted(layer)
        groups = layer.groups
        kernel = self._over_outputs(weight)
        rows = x.expand(shape).unsqueeze(0)
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        rows = F.pad(rows, [n for pair in reversed(_pads(layer)) for n in pair], mode=mode)
        convolve = CONVOLUTIONS[len(layer.kernel_size)]
        settings = {"stride": layer.stride, "dilation": layer.dilation, "groups": groups}
        result: Tensor = convolve(rows, kernel, **settings).sum()
        return result

    def _over_outputs(self, weight: Tensor) -> Tensor:
        """Return sums over outputs of numbers for the weight: by input, or by group and kernel."""
        layer: Any = self
        shape, axis = layer.weight.shape, layer.output_axis
        full = weight.reshape(*[1] * (len(shape) - weight.dim()), *weight.shape)
        shared = full.shape[axis] == 1  # by all outputs
        if is_linear(layer):
            by_input: Tensor = full.sum(axis) * (shape[axis] if shared else 1)
            return by_input.expand(shape[1 - axis])
        groups, rest = layer.groups, tuple(shape[1:])
        by_group: Tensor = full * (shape[0] // groups)
        if not shared:
            by_group = full.reshape(groups, -1, *full.shape[1:]).sum(1)
        return by_group.expand(groups, *rest)

    def _all_products(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the same if inputs on the padding have the mean of their channel."""
        layer: Any = self
        if is_linear(layer):
            return self._products(x, weight)
        _check_counted(layer)
        shape, groups = self._sample(), layer.groups
        channels = x.expand(shape).flatten(1).mean(1).reshape(groups, -1)
        weights = self._over_outputs(weight).flatten(2).sum(2)
        total: Tensor = self._places() * (channels * weights).sum()
        return total


OPERANDS = ("data_in", "weight", "bias")
COSTS = ("ebops", "lut", "bitops", "model_size")


def is_linear(layer: Any) -> bool:
    """Return whether a layer is linear."""
    return isinstance(layer, LINEAR)


def is_convolution(layer: Any) -> bool:
    """Return whether a layer is a convolution, but not a transposed one."""
    return isinstance(layer, _ConvNd) and not isinstance(layer, _ConvTransposeNd)


def _check_counted(layer: Any) -> None:
    if not is_convolution(layer):
        raise ValueError(
            f"{type(layer).__name__} has no count of products; only linear and conv layers learn "
            f"their bits"
        )


def _pads(layer: Any) -> list[tuple[int, int]]:
    """Return the padding before and after each dimension of a convolution."""
    if layer.padding == "valid":
        return [(0, 0)] * len(layer.kernel_size)
    if layer.padding == "same":
        pairs = zip(layer.dilation, layer.kernel_size, strict=True)
        totals = [d * (k - 1) for d, k in pairs]
        return [(total // 2, total - total // 2) for total in totals]
    return [(n, n) for n in layer.padding]
