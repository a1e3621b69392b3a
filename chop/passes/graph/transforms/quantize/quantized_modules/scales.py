"""Scales and zero points of a layer's affine operands: buffers, or parameters that are trained."""

from __future__ import annotations

import dataclasses
import functools
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from chop.ir.graph.tensor_rules import TensorRule
from chop.numerics import NumberFormat
from chop.numerics.affine import BIAS_WIDTH, CALIBRATED, Affine, no_scale
from chop.numerics.affine_rounding import MIN_SCALE, ScaledAffine, versions_of
from chop.numerics.scratch import is_plain
from chop.passes.graph.transforms.quantize.calibrated import (
    ACTIVATIONS,
    Scales,
    scales_of_values,
)
from chop.passes.graph.transforms.quantize.quantized_modules.format_tensors import (
    FORMAT_TENSORS,
    FormatTensors,
    HasFormatTensors,
    Tensors,
    tensor_name,
)
from chop.passes.graph.transforms.quantize.quantized_modules.held_bias import (
    Room,
    holding,
    input_step,
    surely_holds,
    without_dead,
)

KINDS = Affine.layer_tensors
MAX = torch.finfo(torch.float32).max


@dataclasses.dataclass(frozen=True, eq=False)
class _Held:
    """The scale of a weight that holds the bias, and what it follows from."""

    sources: tuple[Tensor, ...]
    versions: tuple[int, ...] | None
    made: bool
    scale: Tensor

    def is_for(
        self, sources: tuple[Tensor, ...], versions: tuple[int, ...] | None, made: bool
    ) -> bool:
        """Return whether nothing has changed; a raised scale has no gradient to hand on."""
        same = self.versions == versions and self.made == made
        usable = self.scale is self.sources[0] or not torch.is_grad_enabled()
        return same and usable and all(map(operator.is_, self.sources, sources))


_HELD: weakref.WeakKeyDictionary[Any, _Held] = weakref.WeakKeyDictionary()


class HasScales(HasFormatTensors):
    """Mixin of quantised layers: `weight_scale` and `weight_zero_point` of an affine `weight`.

    A scale that is trained may become negative or zero: the layer uses its magnitude, and 2**-126
    at least.
    """

    def with_bias_format(
        self, formats: dict[str, NumberFormat], config: Mapping[str, Any]
    ) -> dict[str, NumberFormat]:
        """Return the formats with that of a bias without keys in the config.

        It has codes of 32 bits in steps of the input's scale times the weight's, as in ONNX and
        TFLite. A bias that is not added to such products has the weight's width and its own scale.
        """
        scaled: dict[str, Any] = {n: fmt for n, fmt in formats.items() if _is_scaled(fmt)}
        if not {"weight", "bias"} <= scaled.keys():
            return formats
        weight, bias, data = scaled["weight"], scaled["bias"], scaled.get("data_in")
        given = any(key.startswith("bias_") for key in config)
        if given and not bias.in_product_steps:
            return formats
        if self.output_axis is None or data is None:
            if given:
                return formats
            own: Any = {"axis": None, "scale": CALIBRATED, "zero_point": 0}
            return {**formats, "bias": dataclasses.replace(weight, **own)}
        values: Tensor = self._parameter("weight")
        weight.check_shape("weight", values.shape)
        by_output = weight.axis is not None and weight.axis % values.dim() == self.output_axis
        if data.axis is not None or (weight.axis is not None and not by_output):
            raise ValueError(
                "the bias cannot take the product of both scales, as data_in or weight has one "
                "per input channel; give the bias keys, such as bias_width = 16"
            )
        product = Affine(BIAS_WIDTH, axis=0 if by_output else None, ste=weight.ste)
        return {**formats, "bias": product}

    def is_product(self, name: str, fmt: NumberFormat) -> bool:
        """Return whether a parameter is a bias in steps of the input's scale times the weight's."""
        return self.output_axis is not None and name == "bias" and fmt.in_product_steps

    def scale_for_bias(
        self, fmt: Affine, scale: Tensor, *, made: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the weight's scale, raised where the bias needs it, and what it follows from.

        A scale that was given, and not `made` here, is raised only if the bias would be clipped.
        """
        bias, own = self._held_bias(), self.format_tensor("data_in_scale")
        if bias is None:
            return scale, (scale,)
        sources = (scale, bias) if own is None else (scale, bias, own)
        if own is not None and surely_holds(scale, bias, own):
            return scale, sources
        # on a CPU, looking is as quick, and sees changes of `.data` too
        versions = None if scale.is_cpu else versions_of(sources)
        known = None if versions is None else _HELD.get(self)
        if known is not None and known.is_for(sources, versions, made):
            return known.scale, sources
        found = self._scale_with_room(fmt, scale, bias, made)
        reused = versions is not None and (found is scale or not torch.is_grad_enabled())
        if reused and own is not None:
            _HELD[self] = _Held(sources, versions, made, found)
        return found, sources

    def _scale_with_room(self, fmt: Affine, scale: Tensor, bias: Tensor, made: bool) -> Tensor:
        step = input_step(self.formats.get("data_in"), self.format_tensor("data_in_scale"))
        if step is None:
            return scale
        is_product = self.is_product("bias", self.formats["bias"])
        room = Room.of(self, self.formats, bias, is_product, made)
        return holding(scale, bias, step, fmt, room, is_product)

    def raise_scale_for_bias(self, *, made: bool) -> int:
        """Keep the weight's scale as the bias needs it; returns how many scales were raised."""
        fmt: Any = self.formats.get("weight")
        scale = self.format_tensor("weight_scale")
        if scale is None or scale.is_meta:
            return 0
        bias = self._held_bias()
        with torch.no_grad():
            before = scale.clone()
            if made and bias is not None:
                scale.copy_(without_dead(scale, self._parameter("weight"), bias, fmt))
            raised, _ = self.scale_for_bias(fmt, scale, made=made)
            scale.copy_(raised)
        return int((scale > before).sum())

    def _held_bias(self) -> Tensor | None:
        """Return the bias that is added to the products, if it is rounded."""
        if self.output_axis is None or "bias" not in self.formats:
            return None
        bias: Tensor | None = self._parameter("bias")
        return None if bias is None or bias.is_meta or not bias.numel() else bias

    def scale_of(self, name: str) -> Scales | None:
        """Return the scale and zero point in use for an operand or a parameter.

        None for one that is not affine.
        """
        fmt = self._format_of(name)
        rounding = self.rounding(name, fmt) if _is_scaled(fmt) else None
        return None if rounding is None else rounding.tensors()

    def product_rounding(self, fmt: Affine) -> ScaledAffine:
        """Return what rounds a bias in steps of the input's scale times the weight's."""
        operands = ("data_in", "weight")
        if any(self.format_tensor(f"{name}_scale") is None for name in operands):
            raise ValueError(no_scale(f"bias of {type(self).__name__}", "bias_scale"))
        data, weight = (self.rounding(name, self.formats[name]) for name in operands)
        bias: Tensor | None = self._parameter("bias")
        channels = 0 if bias is None else bias.numel()
        known = data.numbers, weight.numbers
        if known[0] is None or known[1] is None:
            return _product(fmt, data.used, weight.used, channels)
        formats, numbers = (data.fmt, weight.fmt), (known[0][0], known[1][0])
        dtype = torch.promote_types(data.scale.dtype, weight.scale.dtype)
        return _known_product(fmt, formats, numbers, channels, dtype)


class AffineScales(FormatTensors):
    """The scale and the zero point of an affine operand; NaN: not known yet."""

    def initial(self, layer: Any, name: str, fmt: Affine) -> Tensors:
        if name in ACTIVATIONS:
            pair = fmt.tensors() if fmt.is_calibrated else _unknown()
            return _by_kind(tuple(tensor.to(layer.device()) for tensor in pair))
        if layer.is_product(name, fmt):
            return {}
        return _by_kind(scales_of_values(layer.operand_of(name), layer._parameter(name), fmt))

    def shape(self, layer: Any, name: str, fmt: Affine) -> tuple[int | None, ...]:
        if fmt.axis is None:
            return ()
        return (None,) if name in ACTIVATIONS else (layer._parameter(name).shape[fmt.axis],)

    def rule(self, layer: Any, name: str, kind: str, fmt: Affine, *, trained: bool) -> TensorRule:
        shape = self.shape(layer, name, fmt)
        if kind == "zero_point":
            return TensorRule(shape, "whole", *fmt.codes)
        # a scale that is trained is made positive when it is used
        return TensorRule(shape, "real", -MAX if trained else MIN_SCALE, MAX, unknown=True)

    def rounding(self, layer: Any, name: str, fmt: Affine) -> Any:
        if layer.is_product(name, fmt):
            return None if layer._parameter(name) is None else layer.product_rounding(fmt)
        scale, zero_point = (layer.format_tensor(tensor_name(name, kind)) for kind in KINDS)
        if scale is None or zero_point is None:
            return fmt
        batched = name in ACTIVATIONS
        if batched and not fmt.is_calibrated and is_plain(scale) and bool(scale.isnan().any()):
            raise ValueError(no_scale(f"{name} of {type(layer).__name__}", f"{name}_scale"))
        sources: tuple[Tensor, ...] = (scale,)
        if name == "weight":
            scale, sources = layer.scale_for_bias(fmt, scale)
        sources = (*sources, zero_point)
        return ScaledAffine(fmt, scale, zero_point, batched=batched, sources=sources)

    def current(self, layer: Any, name: str, fmt: Affine) -> NumberFormat:
        try:
            found = layer.scale_of(name)
        except ValueError:  # not calibrated yet
            return fmt
        if found is None or found[0].is_meta:
            return fmt
        points = found[1].tolist() if found[1].any() else 0
        numbers: Any = {"scale": found[0].tolist(), "zero_point": points}
        return dataclasses.replace(fmt, **numbers)

    def cut(
        self, layer: Any, name: str, fmt: Affine, dim: int | None, kept: Sequence[int]
    ) -> Tensors:
        if fmt.axis is None:
            return {}
        if dim is not None and fmt.axis % layer._parameter(name).dim() != dim:
            return {}
        return {
            kind: tensor.detach()[[place for place in kept if place < len(tensor)]]
            for kind, tensor in layer.kept_tensors(name, KINDS).items()
        }


FORMAT_TENSORS[KINDS] = AffineScales()


def _is_scaled(fmt: NumberFormat | None) -> bool:
    """Return whether a layer keeps a scale for operands of a format."""
    return fmt is not None and "scale" in fmt.layer_tensors


def _by_kind(pair: Any) -> Tensors:
    return dict(zip(KINDS, pair, strict=True))


def _product(fmt: Affine, data: Tensor, weight: Tensor, channels: int) -> ScaledAffine:
    scale = data.to(weight.device) * weight
    # a grouped transposed convolution has few channels per group
    if fmt.axis is not None and channels:
        scale = scale.repeat(channels // max(1, scale.numel()))
    return ScaledAffine(fmt, scale, torch.zeros_like(scale, dtype=torch.int32))


@functools.lru_cache(maxsize=1000)
def _known_product(
    fmt: Affine, formats: Any, numbers: Any, channels: int, dtype: torch.dtype
) -> ScaledAffine:
    """Return the same for numbers: a network computes with few of them again and again."""
    with torch.inference_mode(False):  # others may use it in training
        pairs = zip(formats, numbers, strict=True)
        data, weight = (_of_numbers(*each, dtype).used for each in pairs)
        return _product(fmt, data, weight, channels)


def _of_numbers(fmt: Affine, scales: Sequence[float], dtype: torch.dtype) -> ScaledAffine:
    scale = torch.tensor(scales if fmt.axis is not None else scales[0], dtype=dtype)
    return ScaledAffine(fmt, scale, torch.zeros_like(scale, dtype=torch.int32))


def _unknown() -> Scales:
    return torch.tensor(torch.nan), torch.tensor(0, dtype=torch.int32)
