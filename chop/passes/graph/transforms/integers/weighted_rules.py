"""Linear layers, convolutions and batch norms."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop import integers
from chop.integers import ChannelAffine, LinearCodes, Scale
from chop.integers.ops.weighted import far_bias
from chop.numerics import NumberFormat
from chop.passes.graph.describe.formats import FormattedFunction
from chop.passes.graph.transforms.integers.converter import Converter, NodeCall, converts, shape_of
from chop.passes.graph.transforms.integers.values import Constant, Known, Value
from chop.passes.graph.transforms.integers.weights import (
    check_finite,
    lowest_bits,
    weight_codes,
)

MULTIPLIER_BITS = 24
FINER_BITS = 16  # of a sum with a bias that has other steps than the products
NEAR = 2.0**-20  # of a step: what float32 scales leave of a bias in steps of the products
SPREAD = 8  # bits by which the multipliers of a batch norm may differ without losing precision
Parameter = tuple[Tensor | None, NumberFormat | None]


@converts("LinearCodes")
def linear(call: NodeCall, to: Converter) -> Value:
    """Return the accumulators of a linear layer."""
    source, weight, bias = _parameters(call, to)
    if call.op == "transposed_linear":
        weight = (_given(weight).T, weight[1] and weight[1].turned())
    settings = _weighted(call, to, source, weight, bias)
    return to.add(call.node.name, LinearCodes(**settings), [source.name], call.node)


@converts("ConvCodes")
def conv(call: NodeCall, to: Converter) -> Value:
    """Return the accumulators of a convolution."""
    source, weight, bias = _parameters(call, to)
    rank = _given(weight).ndim - 2
    stride, dilation = (_sizes(call.setting(name, 1), rank) for name in ("stride", "dilation"))
    kernel = tuple(_given(weight).shape[2:])
    padding, source = _padding(call, to, source, kernel, dilation)
    settings = _weighted(call, to, source, weight, bias)
    groups = call.setting("groups", 1)
    op = integers.ConvCodes(
        **settings, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    return to.add(call.node.name, op, [source.name], call.node)


def _padding(
    call: NodeCall,
    to: Converter,
    source: Known,
    kernel: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[tuple[int, ...], Known]:
    """Return the padding with zeros, and the input, which another kind of padding precedes."""
    rank, asked = len(kernel), call.setting("padding", 0)
    none = (0,) * rank
    if asked == "valid":
        return none, source
    mode = call.setting("padding_mode", "zeros")
    if asked == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [(total // 2, total - total // 2) for total in totals]
    else:
        pads = [(n, n) for n in _sizes(asked, rank)]
    if mode == "zeros" and all(before == after for before, after in pads):
        return tuple(before for before, _ in pads), source
    flat = tuple(n for pair in reversed(pads) for n in pair)
    how = "constant" if mode == "zeros" else mode
    padded = to.add(
        f"{call.node.name}_padded", integers.PadCodes(flat, how), [source.name], call.node
    )
    return none, padded


def _sizes(value: Any, rank: int) -> tuple[int, ...]:
    """Return one number per dimension."""
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _given(parameter: Parameter) -> Tensor:
    tensor = parameter[0]
    assert tensor is not None
    return tensor


def _parameters(call: NodeCall, to: Converter) -> tuple[Known, Parameter, Parameter]:
    """Return the input in integers, and the weight and the bias as the layer uses them."""
    if not {"data_in", "weight"} <= call.formats.keys():
        raise call.refusal(f"is a {call.op} that is still in float; quantise it first")
    if not call.formats["weight"].deterministic:
        raise call.refusal("draws its weights at random; use a format that does not")
    if call.module is not None:
        source = to.known(call.source, call)
        weight, bias = (_of_layer(call.module, name) for name in ("weight", "bias"))
        given = getattr(call.module, "bias", None)
    else:
        operands = _arguments(call)
        source = to.known(operands["data_in"], call)
        weight, bias = (_of_graph(operands.get(n), to, call) for n in ("weight", "bias"))
        given = bias
        weight, bias = (
            None if t is None else call.formats[n](t)
            for t, n in ((weight, "weight"), (bias, "bias"))
        )
    assert weight is not None
    _note_clipped(call, to, "bias", given, bias)
    source = to.uniform(source, call)
    return source, (weight, call.formats["weight"]), (bias, call.formats.get("bias"))


def _note_clipped(
    call: NodeCall, to: Converter, name: str, given: Tensor | None, rounded: Tensor | None
) -> None:
    """Write down a parameter that its format does not hold."""
    if given is not None and rounded is not None:
        to.note_clipped(call, name, given, rounded, call.formats.get(name))


def _of_layer(layer: nn.Module, name: str) -> Tensor | None:
    """Return a parameter as the quantised layer computes with it."""
    with torch.no_grad():
        found: Tensor | None = layer.q_parameter(name)  # type: ignore[operator]
    return found


def _arguments(call: NodeCall) -> dict[str, Any]:
    """Return the arguments of a quantised function by operand."""
    function = call.node.target
    assert isinstance(function, FormattedFunction)
    kwargs = {key: value for key, value in call.node.kwargs.items() if key != "config"}
    found = function.arguments(call.node.args, kwargs)
    return {operand: value for _, operand, value in found if operand is not None}


def _of_graph(argument: Any, to: Converter, call: NodeCall) -> Tensor | None:
    if argument is None:
        return None
    value = to.values.get(argument) if isinstance(argument, fx.Node) else None
    if not isinstance(value, Constant):
        raise call.refusal("takes weights that the network computes; use constant weights")
    return value.tensor


def _weighted(
    call: NodeCall, to: Converter, source: Known, weight: Parameter, bias: Parameter
) -> dict[str, Any]:
    """Return the fields that a linear layer and a convolution share."""
    try:
        codes, scale, width = weight_codes(_given(weight), weight[1])
        product = to.codes(source).scale.times(scale)
        shift, added = _bias_codes(bias[0], product)
    except ValueError as error:
        raise call.refusal(str(error)) from error
    return {
        "weight": codes,
        "bias": added,
        "weight_scale": scale,
        "weight_width": width,
        "shift": shift,
    }


def _bias_codes(bias: Tensor | None, product: Scale) -> tuple[int, Tensor | None]:
    """Return how far products are shifted to the bias's grid, and the bias on the common grid."""
    if bias is None:
        return 0, None
    check_finite(bias, "bias")
    if not product.power_of_two:
        return _near_codes(bias.detach().double().cpu() / product.value.flatten())
    values, exponent = bias.detach().double().cpu(), product.exponent.flatten()
    finer = (exponent - lowest_bits(values))[values != 0]
    shift = max(0, int(finer.max())) if len(finer) else 0
    mantissa, above = torch.frexp(values)
    bits = int((above - exponent)[mantissa != 0].max()) + shift if len(finer) else 0
    if max(bits, shift) > 62:
        raise ValueError(far_bias(1 + max(bits, shift)))
    return shift, torch.ldexp(values, shift - exponent).long()


def _near_codes(steps: Tensor) -> tuple[int, Tensor]:
    """Return the same for a bias in steps of measured scales: its own steps fit no grid exactly."""
    near = bool(((steps - steps.round()).abs() <= NEAR * steps.abs().clamp(min=1)).all())
    shift = 0 if near else FINER_BITS
    if (bits := math.frexp(float(steps.abs().max()))[1] + shift) > 62:
        raise ValueError(far_bias(bits))
    return shift, (steps * 2**shift).round().long()


@converts("ChannelAffine")
def batch_norm(call: NodeCall, to: Converter) -> Value:
    """Return a batch norm that is not folded: one multiplier and one offset per channel."""
    norm: Any = call.module
    if norm is None:
        raise call.refusal("calls batch norm as a function; run fold_batch_norm or use the layer")
    if norm.running_mean is None or norm.running_var is None:
        raise call.refusal("normalises by the statistics of each batch; track running statistics")
    _check_norm(call, norm)
    for name in ("weight", "bias") if call.formats else ():
        _note_clipped(call, to, name, getattr(norm, name), _of_layer(norm, name))
    source = to.by_channel(to.known(call.source, call), call)
    try:
        op = norm_codes(norm, bool(call.formats), to.codes(source).scale)
    except ValueError as error:
        raise call.refusal(str(error)) from error
    return to.add(call.node.name, op, [source.name], call.node)


def _check_norm(call: NodeCall, norm: Any) -> None:
    """Refuse a norm whose numbers are damaged, as in a file that was edited."""
    channels = shape_of(call.source)[1:2]
    tensors = [
        getattr(norm, key, None) for key in ("running_mean", "running_var", "weight", "bias")
    ]
    if any(tensor is not None and tuple(tensor.shape) != channels for tensor in tensors):
        sizes = ", ".join(str(list(tensor.shape)) for tensor in tensors if tensor is not None)
        raise call.refusal(
            f"normalises {channels[0] if channels else 'no'} channels with tensors of the shapes "
            f"{sizes}; give it one number per channel"
        )
    if isinstance(norm.eps, bool) or not isinstance(norm.eps, int | float):
        raise call.refusal(f"has eps = {norm.eps!r}, which is not a number; make the layer again")


def norm_codes(norm: Any, quantised: bool, scale: Scale) -> ChannelAffine:
    """Return the multipliers and offsets of a batch norm of values with a scale."""
    gain, offset = _gain_and_offset(norm, quantised)
    if not bool((gain.isfinite() & offset.isfinite()).all()):
        raise ValueError("has statistics, a weight or a bias with NaN; train or load it again")
    gain = gain * scale.value.flatten()
    _, exponents = torch.frexp(gain[gain != 0] if bool(gain.any()) else torch.ones(1))
    exponent = max(int(exponents.min()), int(exponents.max()) - SPREAD) - MULTIPLIER_BITS
    multiplier, added = (torch.ldexp(x, torch.tensor(-exponent)).round() for x in (gain, offset))
    if bool((added.abs() >= 2.0**62).any()):
        raise ValueError("adds an offset of more than 63 bits; fold it with fold_batch_norm")
    return ChannelAffine(multiplier.long(), added.long(), Scale.power(exponent))


def _gain_and_offset(norm: Any, quantised: bool) -> tuple[Tensor, Tensor]:
    """Return what an eval-mode batch norm multiplies with and adds, in float64."""
    weight, bias = (
        _of_layer(norm, name) if quantised else getattr(norm, name) for name in ("weight", "bias")
    )
    gain = (norm.running_var.detach().double() + norm.eps).rsqrt().cpu()
    if weight is not None:
        gain = gain * weight.detach().double().cpu()
    offset = -norm.running_mean.detach().double().cpu() * gain
    return gain, offset if bias is None else offset + bias.detach().double().cpu()
