"""Rounding as QuantizeLinear and DequantizeLinear nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from chop.numerics import NumberFormat
from chop.numerics.affine import Affine
from chop.numerics.fp8 import FP8
from chop.numerics.integer import Integer
from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.grids import Grid, storage_type
from chop.passes.graph.interface.export_onnx.values import TensorFacts

__all__ = ["Qdq"]

# onnxruntime drops a ReLU before a QuantizeLinear to signed 4 bits, and has no MaxPool of them, so
# that activations of 4 bits are codes of 8 bits with Clip
NATURAL = (8, 16)
LARGEST = 16


class Qdq:
    """Writes values in formats as standard nodes; with `clip`, codes of odd widths are clipped."""

    gemm = True

    def __init__(self, *, clip: bool) -> None:
        self.clip = clip
        self.codes: dict[tuple[str, Any], tuple[str, str, str, dict[str, Any]]] = {}

    # --- activations

    def activation(self, call: OpCall, x: str, fmt: NumberFormat, facts: TensorFacts) -> str:
        """Return a value rounded to a format; equal roundings share their codes."""
        key = (x, fmt)
        if key not in self.codes:
            self.codes[key] = self._coded(call, x, fmt, facts)
        codes, scale, zero, extra = self.codes[key]
        return call.add("DequantizeLinear", codes, scale, zero, **extra)

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
        codes, scale, zero, extra = self._coded(call, x, fmt, facts)
        bounds = (call.builder.constant(np.array(n, dtype=np.int8)) for n in (0, fmt.codes[1]))
        codes = call.add("Clip", codes, *bounds)
        return call.add("DequantizeLinear", codes, scale, zero, **extra)

    def _coded(
        self, call: OpCall, x: str, fmt: NumberFormat, facts: TensorFacts
    ) -> tuple[str, str, str, dict[str, Any]]:
        if isinstance(fmt, FP8):
            return self._fp8(call, x, fmt)
        if isinstance(fmt, Affine):
            low, high = fmt.codes
            scale, zero = (t.numpy() for t in fmt.tensors())
            extra = {} if fmt.axis is None else {"axis": fmt.axis % len(facts.shape)}
            clipped = fmt.symmetric and fmt.signed
            step = scale
        else:
            assert isinstance(fmt, Integer)
            if fmt.overflow == "wrap":
                raise call.refusal("wraps codes around, which Q/DQ cannot; use --format integer")
            low, high = fmt.codes
            scale, zero, extra = np.float32(2.0**-fmt.frac_width), np.int64(0), {}
            clipped = fmt.overflow == "symmetric" and fmt.signed
            x, step = self._steps(call, x, fmt, scale)
        width = fmt.width
        self._check_width(call, width, clipped)
        dtype = storage_type(width, low < 0, small=False)
        zero_name = call.builder.constant(np.asarray(zero).astype(dtype))
        x = self._clipped_before(call, x, low, high, step, zero) if width > 8 else x
        codes = call.add(
            "QuantizeLinear", x, call.constant(np.asarray(step, dtype=np.float32)), zero_name, **extra
        )
        if (width not in NATURAL or clipped) and width <= 8:
            bounds = (call.builder.constant(np.array(bound, dtype=dtype)) for bound in (low, high))
            codes = call.add("Clip", codes, *bounds)
        return codes, call.constant(np.asarray(scale, dtype=np.float32)), zero_name, extra

    def _check_width(self, call: OpCall, width: int, clipped: bool) -> None:
        if width > LARGEST:
            raise call.refusal(
                f"rounds to {width} bits, and Q/DQ has at most {LARGEST}; use --format integer"
            )
        if not self.clip and (width not in NATURAL or clipped):
            what = "a symmetric range" if clipped else f"{width} bits"
            raise call.refusal(f"rounds to {what}, which Q/DQ has not; use --format qcdq")

    def _steps(self, call: OpCall, x: str, fmt: Integer, scale: Any) -> tuple[str, Any]:
        """Return what is quantised, and its step: rounding other than to even goes before it."""
        if fmt.rounding == "even":
            return x, scale
        if fmt.frac_width < 0:
            raise call.refusal(f"rounds {fmt.rounding} to steps above 1; use rounding = 'even'")
        whole = call.add("Mul", x, call.constant(np.float32(1 / scale)[...]))
        if fmt.rounding == "floor":
            return call.add("Floor", whole), np.float32(1)
        near = call.add("Round", whole)
        tie = call.add("Equal", call.add("Sub", whole, near), call.constant(np.array(0.5, np.float32)))
        more = call.add("Cast", tie, to=1)
        return call.add("Add", near, more), np.float32(1)

    def _clipped_before(
        self, call: OpCall, x: str, low: int, high: int, step: Any, zero: Any
    ) -> str:
        """Clip the value instead of its codes, as runtimes have no Clip for 16 bits."""
        if high - low in (2**16 - 1,):
            return x
        if np.ndim(step):
            raise call.refusal("rounds channels to 9 to 15 bits; use 8 or 16 bits")
        bounds = ((bound - int(zero)) * np.float32(step) for bound in (low, high))
        names = (call.constant(np.array(bound, dtype=np.float32)) for bound in bounds)
        return call.add("Clip", x, *names)

    def _fp8(self, call: OpCall, x: str, fmt: FP8) -> tuple[str, str, str, dict[str, Any]]:
        import ml_dtypes

        dtype = ml_dtypes.float8_e4m3fn if fmt.exponent_width == 4 else ml_dtypes.float8_e5m2
        one = call.constant(np.array(1.0, dtype=np.float32))
        zero = call.builder.constant(np.array(0.0, dtype=dtype))
        codes = call.add("QuantizeLinear", x, one, zero, saturate=int(fmt.saturate))
        return codes, one, zero, {}

    # --- constants

    def constant(self, call: OpCall, grid: Grid, name: str) -> str:
        """Return a constant as integers with a DequantizeLinear node."""
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
        import ml_dtypes

        dtype = ml_dtypes.float8_e4m3fn if fmt.exponent_width == 4 else ml_dtypes.float8_e5m2
        codes = call.builder.constant(values.astype(dtype), name)
        one = call.constant(np.array(1.0, dtype=np.float32))
        zero = call.builder.constant(np.array(0.0, dtype=dtype))
        return call.add("DequantizeLinear", codes, one, zero)

    def bias(self, call: OpCall, values: Any, product: Any, name: str) -> tuple[str, bool]:
        """Return a bias as 32-bit integers in steps of the products, where it is exact.

        Otherwise it stays in float, and must be added apart.
        """
        grid = None if product is None else _bias_grid(values, product)
        if grid is None:
            return call.builder.constant(values, name), True
        return self.constant(call, grid, name), False


def _bias_grid(values: Any, product: Any) -> Grid | None:
    """Return a bias in steps of the products, or None if it is not a multiple of them."""
    codes = np.rint(values.astype(np.float64) / product)
    scale = np.broadcast_to(product, values.shape).copy() if product.ndim else product
    if np.abs(codes).max(initial=0) >= 2**31:
        return None
    if not np.array_equal(codes.astype(np.float32) * scale, values):
        return None
    zero, axis = np.zeros(scale.shape, dtype=np.int64), 0 if scale.ndim else None
    return Grid(codes.astype(np.int64), scale, zero, -(2**31), 2**31 - 1, axis)
