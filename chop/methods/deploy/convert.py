"""The deployed form of a quantised linear layer, or the reason why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.methods.deploy.codes import NotDeployed, input_multiples
from chop.methods.deploy.kernels import Target
from chop.methods.deploy.layers import (
    DTYPES,
    DeployedLinear,
    FP8Linear,
    Int8Linear,
    Output,
)
from chop.methods.deploy.weights import WeightCodes
from chop.numerics import NumberFormat
from chop.numerics.affine import CALIBRATED
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.graph.transforms.quantize.quantized_modules.linear import LAYERS as LINEAR
from chop.passes.graph.transforms.quantize.variants import is_variant

SMALLEST_SCALE = torch.finfo(torch.float32).smallest_normal


@torch.no_grad()
def deployed_layer(layer: nn.Module, target: Target, output: Output | None) -> DeployedLinear:
    """Return the layer that computes the same by the kernel of a target.

    Raises NotDeployed with the reason for a layer that has no such form. Without `output`, results
    have the dtype of the layer's weight.
    """
    _check_kind(layer)
    assert isinstance(layer, Quantized)
    dtype = layer._parameter("weight").dtype
    name: Any = output or next((n for n, known in DTYPES.items() if known == dtype), None)
    if name is None:
        raise NotDeployed(f'it has weights of {dtype}; give output = "float32" or "bfloat16"')
    try:
        bias, formats = layer.q_parameter("bias"), layer.current_formats()
    except ValueError as error:  # without scales
        raise NotDeployed(f"it cannot round yet: {error}") from error
    if bias is None:
        formats = {operand: fmt for operand, fmt in formats.items() if operand != "bias"}
    elif not bool(bias.isfinite().all()):
        raise NotDeployed("it has a bias that is not finite; train it again, or load other weights")
    made = (_int8 if target == "cuda-int8" else _fp8)(layer, formats, bias, name)
    return made.train(layer.training)


def _check_kind(layer: nn.Module) -> None:
    """Refuse what is not a quantised linear layer that computes as such."""
    if not isinstance(layer, Quantized):
        raise NotDeployed("it is in float; quantise it first")
    if layer.layer not in LINEAR:
        name = layer.layer.float_class.__name__
        raise NotDeployed(f"it is {name}; only linear layers have kernels")
    if is_variant(layer.config.get("name")) or not layer.formats:
        kind = "bypassed" if layer.bypass else layer.config.get("name")
        raise NotDeployed(f"it is {kind}, which multiplies no 8-bit numbers; quantise it otherwise")
    if layer._forward_hooks or layer._forward_pre_hooks:
        raise NotDeployed(
            "it has hooks, such as those that prune activations, which would be lost; remove them, "
            "as by prune_detach_hook"
        )


def _int8(
    layer: Quantized, formats: Mapping[str, NumberFormat], bias: Tensor | None, output: Any
) -> Int8Linear:
    data = _named("data_in", input_multiples, formats["data_in"])
    weight = _named("weight", WeightCodes.of, layer)
    weight.check_sums(data)
    scale = weight.scale * (1.0 if data.scale is None else data.scale)
    if bool((scale > torch.finfo(torch.float32).max).any()) or bool(
        ((scale > 0) & (scale < SMALLEST_SCALE)).any()
    ):
        raise NotDeployed("it has products in steps that float32 does not hold; scale its data")
    return Int8Linear(weight, bias, _config(formats), output)


def _fp8(
    layer: Quantized, formats: Mapping[str, Any], bias: Tensor | None, output: Any
) -> FP8Linear:
    data, weight = formats["data_in"], formats["weight"]
    if data.dtype is None or weight.dtype is None:
        raise NotDeployed(f"it is {weight.name}; quantise it to fp8, or use target = 'cuda-int8'")
    if data.dtype == weight.dtype == torch.float8_e5m2:
        raise NotDeployed(
            "it has E5M2 for both operands, which GPUs do not multiply; give one of them "
            "exponent_width = 4"
        )
    values = layer._parameter("weight").detach()
    codes = weight.cast(values if layer.output_axis == 0 else values.t())
    if not bool(codes.float().isfinite().all()):
        raise NotDeployed("it has weights that are not finite in fp8; give weight_saturate = true")
    return FP8Linear(codes.contiguous(), bias, _config(formats), output)


def _named(operand: str, make: Any, source: Any) -> Any:
    """Return what `make` makes; a reason against it names the operand."""
    try:
        return make(source)
    except NotDeployed as error:
        raise NotDeployed(f"its {operand} {error}") from error


def _config(formats: Mapping[str, NumberFormat]) -> dict[str, Any]:
    """Return a config of the formats; scales of parameters are in the layer's tensors."""
    config: dict[str, Any] = {"name": formats["weight"].name}
    for operand, fmt in formats.items():
        keys = [*fmt.precision_keys(), *fmt.refinement_keys()]
        values = {key: getattr(fmt, key) for key in keys if key != "floor"}
        if "scale" in values and operand in ("weight", "bias"):
            point = values["zero_point"]
            is_shifted = any(point) if isinstance(point, tuple) else point != 0
            values |= {"scale": CALIBRATED, "zero_point": CALIBRATED if is_shifted else 0}
        elif values.get("axis") is not None:
            raise NotDeployed(f"it has a scale per channel of {operand}; leave out its axis")
        config |= {f"{operand}_{key}": value for key, value in values.items()}
    return config
