"""Linear layers that multiply 8-bit numbers by torch's own kernels; for inference only."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from chop.ir.graph.tensor_rules import TensorRule
from chop.ir.graph.tracer import Leaf
from chop.methods.deploy.codes import Multiples, input_multiples
from chop.methods.deploy.kernels import (
    Target,
    fp8_product,
    int8_product,
    why_not_on,
)
from chop.methods.deploy.rows import DEPLOYED
from chop.methods.deploy.weights import WeightCodes
from chop.numerics import NumberFormat
from chop.passes.graph.describe.formats import FormattedLayer
from chop.passes.graph.transforms.quantize.config import layer_formats

Output = Literal["float32", "bfloat16", "float16"]
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
OFFSETS = ("correction", "weight_offset")
ONLY_INFERENCE = (
    "a deployed layer is for inference only, and has no gradients: train the quantised network, "
    "and run deploy_transform_pass afterwards"
)


class InferenceOnly(RuntimeError, ValueError):
    """Training, or a backward pass, of a layer that has no gradients."""


class DeployedLinear(Leaf, FormattedLayer, abc.ABC):
    """y = x Wᵀ + b, with an input that is rounded to 8 bits and a weight that is stored in 8 bits.

    `config` has the formats of the quantised layer, with numbers. Tensors keep their dtypes if the
    model is converted to another one.
    """

    mase_op = DEPLOYED
    target: ClassVar[Target]
    derived_attributes: ClassVar[tuple[str, ...]] = ("formats", "_kept")

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        config: Mapping[str, Any],
        output: Output = "float32",
    ) -> None:
        """Create the layer of 8-bit numbers [outputs, inputs]."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.config, self.output = dict(config), output
        self.weight = _fixed(weight)
        self.register_parameter("bias", None if bias is None else _fixed(bias.to(self.dtype)))
        self.derive()
        self._check_device()

    def derive(self) -> None:
        """Make what follows from the config, as after a graph was loaded."""
        bias = () if self.bias is None else ("bias",)
        self.formats: dict[str, NumberFormat]
        self.formats = layer_formats(self.config, ["data_in", "weight", *bias])
        self._kept = {}

    def tensor_rules(self) -> dict[str, TensorRule]:
        """Return what the tensors must be like, as torch's kernels take them."""
        bias = {} if self.bias is None else {"bias": TensorRule((self.out_features,))}
        return {"weight": TensorRule((self.out_features, self.in_features)), **bias}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of results."""
        return DTYPES[self.output]

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise InferenceOnly(f"{ONLY_INFERENCE}; call eval() to run this one")
        if x.shape[-1] != self.in_features:
            raise ValueError(
                f"the last dimension of the input is {x.shape[-1]}, but the layer has "
                f"{self.in_features} inputs; give [..., {self.in_features}]"
            )
        with torch.no_grad():
            y = self._product(x.detach().reshape(-1, self.in_features))
            y = y.reshape(*x.shape[:-1], self.out_features)
        if torch.is_grad_enabled() and x.requires_grad:
            return _Inference.apply(y, x)  # type: ignore[no-any-return, no-untyped-call]
        return y

    @abc.abstractmethod
    def _product(self, x: Tensor) -> Tensor:
        """Return results [rows, out_features] for inputs [rows, in_features]."""

    def _finished(self, y: Tensor) -> Tensor:
        """Return a float32 result in the format and the dtype of results."""
        rounding = self.formats.get("data_out")
        return (y if rounding is None else rounding(y)).to(self.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the tensors with the model, but keep their dtypes."""
        before = {name: tensor.detach() for name, tensor in self._tensors()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in self._tensors():
            if tensor.dtype != before[name].dtype:
                tensor.data = before[name].to(tensor.device)
        self._check_device()
        return self

    def _tensors(self) -> list[tuple[str, Tensor]]:
        return [*self.named_parameters(), *self.named_buffers()]

    def _check_device(self) -> None:
        if (reason := why_not_on(self.weight.device, self.target)) is not None:
            raise RuntimeError(reason)

    def extra_repr(self) -> str:
        shape = f"{self.in_features}, {self.out_features}"
        return f"{shape}, target={self.target!r}, output={self.output!r}"


class Int8Linear(DeployedLinear):
    """Multiplies int8 codes and adds in int32, exactly; scales and adds the bias in float32."""

    target = "cuda-int8"
    derived_attributes = (*DeployedLinear.derived_attributes, "_input")

    scale: Tensor  # float32 [out_features]: of products, or of weights if rows have scales
    correction: Tensor | None  # int32 [out_features]
    weight_offset: Tensor | None  # int32 [out_features]

    def __init__(
        self,
        weight: WeightCodes,
        bias: Tensor | None,
        config: Mapping[str, Any],
        output: Output = "float32",
    ) -> None:
        super().__init__(weight.codes, bias, config, output)
        weight.check_sums(self._input)
        device = self.weight.device
        scale = weight.scale * (1.0 if self._input.scale is None else self._input.scale)
        self.register_buffer("scale", scale.float().to(device))
        offsets = weight.correction(self._input), weight.offset
        for name, offset in zip(OFFSETS, offsets, strict=True):
            self.register_buffer(name, offset.int().to(device) if bool(offset.any()) else None)

    def derive(self) -> None:
        super().derive()
        self._input: Multiples = input_multiples(self.formats["data_in"])

    def tensor_rules(self) -> dict[str, TensorRule]:
        rules = super().tensor_rules()
        offsets = (name for name in OFFSETS if getattr(self, name) is not None)
        weight = rules["weight"]._replace(kind="whole")
        per_output = TensorRule((self.out_features,), "whole")
        scale = per_output._replace(kind="real")
        return {**rules, "weight": weight, "scale": scale, **dict.fromkeys(offsets, per_output)}

    def _product(self, x: Tensor) -> Tensor:
        codes, rows = self._input.codes(x)
        sums = int8_product(codes, self.weight)
        if self.correction is not None:
            sums = sums + self.correction
        if self.weight_offset is not None:
            sums = sums + codes.sum(1, keepdim=True, dtype=torch.int32) * self.weight_offset
        y = sums.float() * self.scale if rows is None else sums.float() * rows * self.scale
        return self._finished(y if self.bias is None else y + self.bias)


class FP8Linear(DeployedLinear):
    """Multiplies fp8 numbers, which have no scale."""

    target = "cuda-fp8"
    derived_attributes = (*DeployedLinear.derived_attributes, "_input")

    one: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        config: Mapping[str, Any],
        output: Output = "float32",
    ) -> None:
        super().__init__(weight, bias, config, output)
        self.register_buffer("one", torch.ones((), device=weight.device))

    def derive(self) -> None:
        super().derive()
        self._input: Any = self.formats["data_in"]

    def tensor_rules(self) -> dict[str, TensorRule]:
        return {**super().tensor_rules(), "one": TensorRule(())}

    def _product(self, x: Tensor) -> Tensor:
        # the kernel adds a bias of half precision only, before it rounds to it
        direct = self.dtype != torch.float32 and "data_out" not in self.formats
        output, bias = (self.dtype, self.bias) if direct else (torch.float32, None)
        y = fp8_product(self._input.cast(x), self.weight, self.one, output, bias).contiguous()
        if direct:
            return y
        return self._finished(y if self.bias is None else y + self.bias)


class _Inference(torch.autograd.Function):
    """The result of a layer without gradients, of which a backward pass is told."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        raise InferenceOnly(ONLY_INFERENCE)


def _fixed(tensor: Tensor) -> nn.Parameter:
    """Return a parameter that is not trained; integers cannot be."""
    return nn.Parameter(tensor.detach().clone(), requires_grad=False)


LAYERS: Mapping[Target, type[DeployedLinear]] = {
    layer.target: layer for layer in (Int8Linear, FP8Linear)
}
