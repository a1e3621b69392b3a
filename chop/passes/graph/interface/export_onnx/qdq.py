"""Rounding as QuantizeLinear and DequantizeLinear nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from chop.numerics import NumberFormat
from chop.numerics.affine import Affine
from chop.numerics.fp8 import FP8
from chop.numerics.integer import Integer, Rounding
from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.elements import ElementBits
from chop.passes.graph.interface.export_onnx.grids import CodedConstant, storage_type
from chop.passes.graph.interface.export_onnx.refusals import REFUSALS
from chop.passes.graph.interface.export_onnx.ties import NO_BOUND, odd_ties
from chop.passes.graph.interface.export_onnx.values import TensorFacts

__all__ = ["Qdq"]

# Activations of up to 8 bits are codes of unsigned bytes, those with a sign around 128: onnxruntime
# has integer kernels for these on every CPU. It drops a ReLU before a QuantizeLinear to signed 4
# bits, and has no MaxPool of them, so that activations of 4 bits are bytes with Clip.
NATURAL = (8, 16)
LARGEST = 16
OFFSET = 128


@dataclass(frozen=True)
class Coded:
    """Codes of a value in the file, and what DequantizeLinear needs besides them."""

    codes: str
    scale: str
    zero: str
    axis: int | None = None


@dataclass(frozen=True)
class ActivationCodes:
    """The codes of an activation's format: (code - zero) · scale, from `low` to `high`."""

    width: int
    low: int
    high: int
    scale: Any
    zero: Any
    axis: int | None = None
    symmetric: bool = False

    @classmethod
    def of(cls, fmt: Integer | Affine, rank: int) -> ActivationCodes:
        if isinstance(fmt, Integer):
            scale, zero = np.array(2.0**-fmt.frac_width, dtype=np.float32), np.array(0)
            symmetric, axis = fmt.overflow == "symmetric" and fmt.signed, None
        else:
            scale, zero = (t.numpy() for t in fmt.tensors())
            axis = None if fmt.axis is None else fmt.axis % rank
            symmetric = fmt.symmetric and fmt.signed
        low, high = fmt.codes
        offset = OFFSET if low < 0 and fmt.width <= 8 else 0
        return cls(*(fmt.width, low + offset, high + offset, scale, zero + offset, axis, symmetric))


class Qdq:
    """Writes values in formats as standard nodes; with `clip`, codes of odd widths are clipped."""

    gemm = True
    blocks = True

    def __init__(self, *, clip: bool) -> None:
        self.clip = clip
        self.known: dict[tuple[str, Any], Coded] = {}

    # --- activations

    def activation(self, call: OpCall, x: str, fmt: NumberFormat, facts: TensorFacts) -> str:
        """Return a value rounded to a format; equal roundings share their codes."""
        key = (call.writer.first_name(x), fmt)
        if key not in self.known:
            self.known[key] = self._coded(call, x, fmt, len(facts.shape))
        result = self._decoded(call, self.known[key])
        self.known[result, fmt] = self.known[key]  # rounding it again gives the same codes
        return result

    def _decoded(self, call: OpCall, coded: Coded) -> str:
        names = (coded.codes, coded.scale, coded.zero)
        return call.add("DequantizeLinear", *names, axis=coded.axis)

    def relu(self, call: OpCall, x: str, fmt: NumberFormat, facts: TensorFacts) -> str | None:
        """Return a ReLU on codes, if all that read it round it to one format with a sign.

        Rounding first gives the same, and lets onnxruntime run the layer before in integers.
        """
        if not isinstance(fmt, Integer | Affine) or fmt.width > 8 or not fmt.signed:
            return None
        if isinstance(fmt, Affine) and (fmt.axis is not None or any(fmt.zero_points)):
            return None
        if isinstance(fmt, Integer) and (fmt.rounding != "even" or fmt.overflow == "wrap"):
            return None
        coded = self._coded(call, x, fmt, len(facts.shape), relu=True)
        result = self._decoded(call, coded)
        self.known[result, fmt] = coded
        return result

    def _coded(
        self, call: OpCall, x: str, fmt: NumberFormat, rank: int, *, relu: bool = False
    ) -> Coded:
        if isinstance(fmt, FP8):
            return self._fp8(call, x, fmt)
        assert isinstance(fmt, Integer | Affine)
        codes = ActivationCodes.of(fmt, rank)
        self._check(call, fmt, codes)
        x, step = self._steps(call, x, fmt, codes.scale)
        dtype = storage_type(codes.width, codes.low < 0, small=False)
        zero = call.builder.constant(codes.zero.astype(dtype))
        if codes.width > 8:
            x = self._clipped_before(call, x, codes, step)
        elif odd_ties(call.builder, x, step, codes.zero):
            x = call.add("Max", x, call.constant(NO_BOUND))
        coded = call.add("QuantizeLinear", x, call.constant(step), zero, axis=codes.axis)
        low = int(codes.zero) if relu else codes.low
        if codes.width <= 8 and (codes.width != 8 or codes.symmetric or relu):
            bounds = (call.builder.constant(np.array(n, dtype=dtype)) for n in (low, codes.high))
            coded = call.add("Clip", coded, *bounds)
        return Coded(coded, call.constant(codes.scale), zero, codes.axis)

    def _check(self, call: OpCall, fmt: Integer | Affine, codes: ActivationCodes) -> None:
        if isinstance(fmt, Integer) and fmt.overflow == "wrap":
            raise call.refusal(REFUSALS["wrap"].say(operand="activations"))
        if codes.width > LARGEST:
            raise call.refusal(REFUSALS["wide"].say(width=codes.width))
        if not self.clip and (codes.width not in NATURAL or codes.symmetric):
            which = "symmetric" if codes.symmetric else "width"
            raise call.refusal(REFUSALS[which].say(width=codes.width))

    def _steps(self, call: OpCall, x: str, fmt: Integer | Affine, scale: Any) -> tuple[str, Any]:
        """Return what is quantised, and its step: rounding other than to even goes before it."""
        if isinstance(fmt, Affine) or fmt.rounding == "even":
            return x, scale
        if fmt.frac_width < 0:
            raise call.refusal(REFUSALS["coarse"].say(rounding=fmt.rounding))
        inverse = np.asarray(1 / scale, dtype=np.float32)
        return _whole(call, x, inverse, fmt.rounding), np.array(1, dtype=np.float32)

    def by_element(self, call: OpCall, x: str, bits: ElementBits) -> tuple[str, Integer | None]:
        """Return a value rounded element by element in float, and a format that holds it exactly.

        A Q/DQ pair of that format lets runtimes compute with integers. Without it, the value needs
        more bits than a pair has.
        """
        x = _whole(call, x, bits.inverse_steps, bits.rounding)
        x = call.add("Max", x, call.constant(bits.low.astype(np.float32)))
        x = call.add("Min", x, call.constant(bits.high.astype(np.float32)))
        x = call.add("Mul", x, call.constant(bits.steps))
        return x, bits.cover(NATURAL)

    def _clipped_before(self, call: OpCall, x: str, codes: ActivationCodes, step: Any) -> str:
        """Clip the value instead of its codes, as runtimes have no Clip for 16 bits."""
        if codes.high - codes.low == 2**LARGEST - 1:
            return x
        if step.ndim:
            raise call.refusal(REFUSALS["wide channels"].reason)
        bounds = ((n - int(codes.zero)) * step for n in (codes.low, codes.high))
        names = (call.constant(np.asarray(bound, dtype=np.float32)) for bound in bounds)
        return call.add("Clip", x, *names)

    def _fp8(self, call: OpCall, x: str, fmt: FP8) -> Coded:
        one, zero = call.constant(np.array(1, dtype=np.float32)), self._fp8_zero(call, fmt)
        beyond = fmt(torch.tensor([1e6, torch.inf, -torch.inf])).abs()
        if not bool((beyond == fmt.largest).all()):
            raise call.refusal(REFUSALS["fp8"].reason)
        codes = call.add("QuantizeLinear", x, one, zero, saturate=1)
        return Coded(codes, one, zero)

    def _fp8_zero(self, call: OpCall, fmt: FP8) -> str:
        return call.builder.constant(np.array(0, dtype=fp8_type(fmt)))

    # --- constants

    def constant(self, call: OpCall, grid: CodedConstant, name: str) -> str:
        """Return a constant as integers with a DequantizeLinear node.

        One of more than 16 bits is in float: onnxruntime has no integer kernels for it, and fails
        to load a network in which its optimiser finds such weights after activations of 8 bits.
        """
        if grid.width > LARGEST:
            return call.builder.constant(grid.values(), name)
        return self._integers(call, grid, name)

    def _integers(self, call: OpCall, grid: CodedConstant, name: str) -> str:
        dtype = storage_type(grid.width, grid.signed, small=not self.clip)
        codes = call.builder.constant(grid.codes.astype(dtype), name)
        scale = call.builder.constant(grid.scale, f"{name}_scale")
        names = [codes, scale]
        if grid.zero.any() or np.dtype(dtype) != np.int32:
            names.append(call.builder.constant(grid.zero.astype(dtype), f"{name}_zero_point"))
        extra: dict[str, Any] = {} if grid.axis is None else {"axis": grid.axis}
        if grid.block:
            extra["block_size"] = grid.block
        return call.add("DequantizeLinear", *names, **extra)

    def fp8_constant(self, call: OpCall, values: Any, fmt: FP8, name: str) -> str:
        """Return a constant as 8-bit floats."""
        codes = call.builder.constant(values.astype(fp8_type(fmt)), name)
        one = call.constant(np.array(1, dtype=np.float32))
        return call.add("DequantizeLinear", codes, one, self._fp8_zero(call, fmt))

    def bias(self, call: OpCall, values: Any, product: Any, name: str) -> tuple[str, bool]:
        """Return a bias as 32-bit integers in steps of the products, where it is exact.

        Otherwise it stays in float, and must be added apart.
        """
        grid = None if product is None else _bias_grid(values, product)
        if grid is None:
            return call.builder.constant(values, name), True
        return self._integers(call, grid, name), False


def _whole(call: OpCall, x: str, inverse: Any, rounding: Rounding) -> str:
    """Return a value in steps, rounded to integers."""
    return call.rounded(call.add("Mul", x, call.constant(inverse)), rounding)


def _bias_grid(values: Any, product: Any) -> CodedConstant | None:
    """Return a bias in steps of the products, or None if it is not a multiple of them."""
    if product.shape not in ((), values.shape):  # as of the groups of a transposed convolution
        return None
    codes = np.rint(values.astype(np.float64) / product)
    scale = product
    if np.abs(codes).max(initial=0) >= 2**31:
        return None
    if not np.array_equal(codes.astype(np.float32) * scale, values):
        return None
    zero, axis = np.zeros(scale.shape, dtype=np.int64), 0 if scale.ndim else None
    return CodedConstant(codes.astype(np.int64), scale, zero, -(2**31), 2**31 - 1, axis)


def fp8_type(fmt: FP8) -> Any:
    """Return numpy's dtype of an 8-bit float."""
    import ml_dtypes

    return ml_dtypes.float8_e4m3fn if fmt.exponent_width == 4 else ml_dtypes.float8_e5m2
