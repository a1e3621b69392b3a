"""Rounding as the Quant and BipolarQuant nodes of QONNX."""

from __future__ import annotations

from typing import Any

import numpy as np

from chop.numerics import NumberFormat
from chop.numerics.affine import Affine
from chop.numerics.binary import Binary
from chop.numerics.integer import Integer
from chop.onnx.metadata import QONNX_DOMAIN
from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.elements import ElementBits
from chop.passes.graph.interface.export_onnx.grids import CodedConstant
from chop.passes.graph.interface.export_onnx.refusals import REFUSALS
from chop.passes.graph.interface.export_onnx.values import TensorFacts

__all__ = ["QonnxNodes"]

# HALF_UP rounds ties away from zero, which is up for numbers that are not negative
ROUNDINGS = {"even": "ROUND", "floor": "FLOOR", "up": "HALF_UP"}
# nodes that give numbers of their input only
MOVES = ("Flatten", "Reshape", "Transpose", "MaxPool", "Squeeze", "Unsqueeze", "Identity")


class QonnxNodes:
    """Writes values in formats as Quant nodes with constant parameters."""

    gemm = False  # FINN and hls4ml read MatMul
    blocks = False

    def activation(self, call: OpCall, x: str, fmt: NumberFormat, facts: TensorFacts) -> str:
        """Return a value rounded to a format."""
        if isinstance(fmt, Binary):
            if not fmt.bipolar or fmt.scaled or fmt.stochastic:
                raise call.refusal(REFUSALS["not signs"].reason)
            return self._add(call, "BipolarQuant", x, self._number(call, 1.0))
        if isinstance(fmt, Affine):
            if any(fmt.zero_points):
                raise call.refusal(REFUSALS["zero point"].reason)
            scale = fmt.tensors()[0].numpy()
            if fmt.axis is not None:
                shape = [1] * len(facts.shape)
                shape[fmt.axis] = -1
                scale = scale.reshape(shape)
            narrow = fmt.symmetric and fmt.signed
            return self._quant(call, x, scale, fmt.width, fmt.signed, narrow)
        assert isinstance(fmt, Integer)
        if fmt.overflow == "wrap":
            raise call.refusal(REFUSALS["wrap"].say(operand="activations"))
        how = self._mode(call, x, fmt)
        if fmt.width == 1 and fmt.signed:
            raise call.refusal(REFUSALS["one bit"].reason)
        scale = np.array(2.0**-fmt.frac_width, dtype=np.float32)
        narrow = fmt.overflow == "symmetric" and fmt.signed
        return self._quant(call, x, scale, fmt.width, fmt.signed, narrow, how)

    def by_element(self, call: OpCall, x: str, bits: ElementBits) -> tuple[str, None]:
        """Return a value rounded element by element: clipped first, as a Quant has one width."""
        how = self._mode(call, x, bits)
        low, high = bits.range
        x = call.add("Max", x, call.constant(low))
        x = call.add("Min", x, call.constant(high))
        return self._quant(call, x, bits.steps, bits.width, bits.signed, False, how), None

    def _mode(self, call: OpCall, x: str, fmt: Integer | ElementBits) -> str:
        """Return the rounding mode of an activation."""
        if fmt.rounding == "up" and fmt.signed and not self._is_positive(call, x):
            raise call.refusal(REFUSALS["up"].reason)
        return ROUNDINGS[fmt.rounding]

    def _is_positive(self, call: OpCall, x: str) -> bool:
        """Whether a value comes from a ReLU, so that it is never negative."""
        maker = next((n for n in call.builder.nodes if x in n.output), None)
        if maker is not None and maker.op_type in MOVES:
            return self._is_positive(call, maker.input[0])
        return maker is not None and maker.op_type == "Relu"

    def relu(self, call: OpCall, x: str, fmt: NumberFormat, facts: TensorFacts) -> str | None:
        return None

    def constant(self, call: OpCall, grid: CodedConstant, name: str) -> str:
        """Return a constant in float behind a Quant node, which leaves it as it is."""
        values = call.builder.constant(grid.values(), name)
        if grid.zero.any():
            raise call.refusal(REFUSALS["weight zero point"].reason)
        scale = grid.scale
        if grid.axis is not None:
            shape = [1] * grid.codes.ndim
            shape[grid.axis] = -1
            scale = scale.reshape(shape)
        if grid.width <= 2 and grid.codes.all() and set(np.unique(grid.codes)) <= {-1, 1}:
            return self._add(call, "BipolarQuant", values, call.constant(scale))
        narrow = grid.signed and grid.low == -grid.high
        return self._quant(call, values, scale, grid.width, grid.signed, narrow)

    def bias(self, call: OpCall, values: Any, product: Any, name: str) -> tuple[str, bool]:
        """Return a bias, which is in float as it is rounded already."""
        return call.builder.constant(values, name), False

    def _quant(
        self, call: OpCall, x: str, scale: Any, width: int, signed: bool, narrow: bool,
        how: str = "ROUND",
    ) -> str:  # fmt: skip
        inputs = [x, call.constant(np.asarray(scale, dtype=np.float32))]
        inputs += [self._number(call, 0.0), self._number(call, float(width))]
        flags = {"signed": int(signed), "narrow": int(narrow), "rounding_mode": how}
        return self._add(call, "Quant", *inputs, **flags)

    def _number(self, call: OpCall, value: float) -> str:
        return call.constant(np.array(value, dtype=np.float32))

    def _add(self, call: OpCall, op: str, *inputs: str, **attributes: Any) -> str:
        return call.add(op, *inputs, domain=QONNX_DOMAIN, **attributes)
