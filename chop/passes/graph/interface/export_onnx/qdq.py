"""Rounding as QuantizeLinear and DequantizeLinear nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from chop.numerics import NumberFormat
from chop.numerics.grid import ElementGrid, Grid, Rounding
from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.grids import (
    CodedConstant,
    codes_arrays,
    numbers_in,
    storage_type,
)
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


class Qdq:
    """Writes values in formats as standard nodes; with `clip`, codes of odd widths are clipped."""

    gemm = True
    blocks = True

    def __init__(self, *, clip: bool) -> None:
        self.clip = clip
        self.known: dict[tuple[str, Any], Coded] = {}

    # --- activations

    def activation(self, call: OpCall, x: str, to: Grid | NumberFormat, facts: TensorFacts) -> str:
        """Return a value rounded to codes; equal roundings share them."""
        key = (call.writer.first_name(x), to)
        if key not in self.known:
            self.known[key] = self._coded(call, x, to, len(facts.shape))
        result = self._decoded(call, self.known[key])
        self.known[result, to] = self.known[key]  # rounding it again gives the same codes
        return result

    def _decoded(self, call: OpCall, coded: Coded) -> str:
        names = (coded.codes, coded.scale, coded.zero)
        return call.add("DequantizeLinear", *names, axis=coded.axis)

    def relu(self, call: OpCall, x: str, grid: Grid, facts: TensorFacts) -> str | None:
        """Return a ReLU on codes, if all that read it round it to one grid with a sign.

        Rounding first gives the same, and lets onnxruntime run the layer before in integers.
        """
        if grid.width > 8 or not grid.signed or grid.axis is not None or grid.has_zero_point:
            return None
        if grid.rounding != "even" or grid.overflow == "wrap":
            return None
        coded = self._coded(call, x, grid, len(facts.shape), relu=True)
        result = self._decoded(call, coded)
        self.known[result, grid] = coded
        return result

    def _coded(
        self, call: OpCall, x: str, to: Grid | NumberFormat, rank: int, *, relu: bool = False
    ) -> Coded:
        if not isinstance(to, Grid):
            return self._float(call, x, to)
        self._check(call, to)
        width = to.width
        codes = to.shifted(OFFSET) if to.signed and width <= 8 else to
        scale, zeros = codes_arrays(codes)
        axis = None if codes.axis is None else codes.axis % rank
        x, step = self._steps(call, x, to, scale)
        dtype = storage_type(width, codes.low < 0, small=False)
        zero = call.builder.constant(zeros.astype(dtype))
        if width > 8:
            x = self._clipped_before(call, x, codes, step)
        elif odd_ties(call.builder, x, step, zeros):
            x = call.add("Max", x, call.constant(NO_BOUND))
        coded = call.add("QuantizeLinear", x, call.constant(step), zero, axis=axis)
        low = codes.zero_points[0] if relu else codes.low
        if width <= 8 and (width != 8 or to.narrow or relu):
            bounds = (call.builder.constant(np.array(n, dtype=dtype)) for n in (low, codes.high))
            coded = call.add("Clip", coded, *bounds)
        return Coded(coded, call.constant(scale), zero, axis)

    def _check(self, call: OpCall, grid: Grid) -> None:
        if grid.overflow == "wrap":
            raise call.refusal(REFUSALS["wrap"].say(operand="activations"))
        if grid.width > LARGEST:
            raise call.refusal(REFUSALS["wide"].say(width=grid.width))
        if not self.clip and (grid.width not in NATURAL or grid.narrow):
            which = "symmetric" if grid.narrow else "width"
            raise call.refusal(REFUSALS[which].say(width=grid.width))

    def _steps(self, call: OpCall, x: str, grid: Grid, scale: Any) -> tuple[str, Any]:
        """Return what is quantised, and its step: rounding other than to even goes before it."""
        if grid.rounding == "even":
            return x, scale
        if grid.frac_width < 0:
            raise call.refusal(REFUSALS["coarse"].say(rounding=grid.rounding))
        inverse = np.asarray(1 / scale, dtype=np.float32)
        return _whole(call, x, inverse, grid.rounding), np.array(1, dtype=np.float32)

    def by_element(self, call: OpCall, x: str, grid: ElementGrid) -> tuple[str, Grid | None]:
        """Return a value rounded element by element in float, and a grid that holds it exactly.

        A Q/DQ pair of that grid lets runtimes compute with integers. Without it, the value needs
        more bits than a pair has.
        """
        low, high, steps = (t.float().numpy() for t in (grid.lows, grid.highs, grid.steps))
        x = _whole(call, x, 1 / steps, grid.rounding)
        x = call.add("Max", x, call.constant(low))
        x = call.add("Min", x, call.constant(high))
        x = call.add("Mul", x, call.constant(steps))
        return x, grid.cover(NATURAL)

    def _clipped_before(self, call: OpCall, x: str, codes: Grid, step: Any) -> str:
        """Clip the value instead of its codes, as runtimes have no Clip for 16 bits."""
        if codes.high - codes.low == 2**LARGEST - 1:
            return x
        if step.ndim:
            raise call.refusal(REFUSALS["wide channels"].reason)
        bounds = ((n - codes.zero_points[0]) * step for n in (codes.low, codes.high))
        names = (call.constant(np.asarray(bound, dtype=np.float32)) for bound in bounds)
        return call.add("Clip", x, *names)

    def _float(self, call: OpCall, x: str, fmt: NumberFormat) -> Coded:
        one, zero = call.constant(np.array(1, dtype=np.float32)), self._float_zero(call, fmt)
        beyond = fmt(torch.tensor([1e6, torch.inf, -torch.inf])).abs()
        if not bool((beyond == fmt.largest).all()):
            raise call.refusal(REFUSALS["fp8"].reason)
        codes = call.add("QuantizeLinear", x, one, zero, saturate=1)
        return Coded(codes, one, zero)

    def _float_zero(self, call: OpCall, fmt: NumberFormat) -> str:
        return call.builder.constant(np.array(0, dtype=float_type(fmt)))

    # --- constants

    def constant(self, call: OpCall, coded: CodedConstant, name: str) -> str:
        """Return a constant as integers with a DequantizeLinear node.

        One of more than 16 bits is in float: onnxruntime has no integer kernels for it, and fails
        to load a network in which its optimiser finds such weights after activations of 8 bits.
        """
        if coded.grid.width > LARGEST:
            return call.builder.constant(coded.values(), name)
        return self._integers(call, coded, name)

    def _integers(self, call: OpCall, coded: CodedConstant, name: str) -> str:
        grid, (scale, zero) = coded.grid, coded.arrays
        dtype = storage_type(grid.width, grid.signed, small=not self.clip)
        codes = call.builder.constant(coded.codes.astype(dtype), name)
        names = [codes, call.builder.constant(scale, f"{name}_scale")]
        if zero.any() or np.dtype(dtype) != np.int32:
            names.append(call.builder.constant(zero.astype(dtype), f"{name}_zero_point"))
        extra: dict[str, Any] = {} if grid.axis is None else {"axis": grid.axis}
        if grid.block:
            extra["block_size"] = grid.block
        return call.add("DequantizeLinear", *names, **extra)

    def float_constant(self, call: OpCall, values: Any, fmt: NumberFormat, name: str) -> str:
        """Return a constant as floats of a small dtype."""
        codes = call.builder.constant(values.astype(float_type(fmt)), name)
        one = call.constant(np.array(1, dtype=np.float32))
        return call.add("DequantizeLinear", codes, one, self._float_zero(call, fmt))

    def bias(self, call: OpCall, values: Any, product: Any, name: str) -> tuple[str, bool]:
        """Return a bias as 32-bit integers in steps of the products, where it is exact.

        Otherwise it stays in float, and must be added apart.
        """
        coded = None if product is None else _coded_bias(values, product)
        if coded is None:
            return call.builder.constant(values, name), True
        return self._integers(call, coded, name), False


def _whole(call: OpCall, x: str, inverse: Any, rounding: Rounding) -> str:
    """Return a value in steps, rounded to integers."""
    return call.rounded(call.add("Mul", x, call.constant(inverse)), rounding)


def _coded_bias(values: Any, product: Any) -> CodedConstant | None:
    """Return a bias in steps of the products, or None if it is not a multiple of them."""
    if product.shape not in ((), values.shape):  # as of the groups of a transposed convolution
        return None
    codes = np.rint(values.astype(np.float64) / product)
    if np.abs(codes).max(initial=0) >= 2**31:
        return None
    if not np.array_equal(codes.astype(np.float32) * product, values):
        return None
    scales, axis = numbers_in(product), 0 if product.ndim else None
    return CodedConstant(codes.astype(np.int64), Grid(-(2**31), 2**31 - 1, scales, axis=axis))


def float_type(fmt: NumberFormat) -> Any:
    """Return numpy's dtype of the numbers that torch has a dtype of."""
    import ml_dtypes

    return getattr(ml_dtypes, str(fmt.dtype).removeprefix("torch."))
