"""Rounding as the Quant and BipolarQuant nodes of QONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from chop.numerics import NumberFormat
from chop.numerics.grid import ElementGrid, Grid
from chop.onnx.metadata import QONNX_DOMAIN
from chop.passes.graph.interface.export_onnx.call import OpCall
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

    def activation(self, call: OpCall, x: str, to: Grid | NumberFormat, facts: TensorFacts) -> str:
        """Return a value rounded to codes."""
        if not isinstance(to, Grid):
            if not (to.only_signs and to.deterministic):
                raise call.refusal(REFUSALS["not signs"].reason)
            return self._add(call, "BipolarQuant", x, self._number(call, 1.0))
        if to.has_zero_point:
            raise call.refusal(REFUSALS["zero point"].reason)
        if to.overflow == "wrap":
            raise call.refusal(REFUSALS["wrap"].say(operand="activations"))
        how = self._mode(call, x, to)
        if to.width == 1 and to.signed:
            raise call.refusal(REFUSALS["one bit"].reason)
        return self._quant(call, x, to, to.scale([1] * len(facts.shape)), how)

    def by_element(self, call: OpCall, x: str, grid: ElementGrid) -> tuple[str, None]:
        """Return a value rounded element by element: clipped first, as a Quant has one width."""
        how = self._mode(call, x, grid)
        low, high = ((ends * grid.steps).float().numpy() for ends in (grid.lows, grid.highs))
        x = call.add("Max", x, call.constant(low))
        x = call.add("Min", x, call.constant(high))
        return self._quant(call, x, grid, grid.steps, how, narrow=False), None

    def _mode(self, call: OpCall, x: str, grid: Grid) -> str:
        """Return the rounding mode of an activation."""
        if grid.rounding == "up" and grid.signed and not self._is_positive(call, x):
            raise call.refusal(REFUSALS["up"].reason)
        return ROUNDINGS[grid.rounding]

    def _is_positive(self, call: OpCall, x: str) -> bool:
        """Whether a value comes from a ReLU, so that it is never negative."""
        maker = next((n for n in call.builder.nodes if x in n.output), None)
        if maker is not None and maker.op_type in MOVES:
            return self._is_positive(call, maker.input[0])
        return maker is not None and maker.op_type == "Relu"

    def relu(self, call: OpCall, x: str, grid: Grid, facts: TensorFacts) -> str | None:
        return None

    def constant(self, call: OpCall, coded: CodedConstant, name: str) -> str:
        """Return a constant in float behind a Quant node, which leaves it as it is."""
        values, grid = call.builder.constant(coded.values(), name), coded.grid
        if grid.has_zero_point:
            raise call.refusal(REFUSALS["weight zero point"].reason)
        scale = grid.scale(coded.codes.shape)
        if grid.width <= 2 and coded.codes.all() and set(np.unique(coded.codes)) <= {-1, 1}:
            return self._add(call, "BipolarQuant", values, call.constant(scale.float().numpy()))
        return self._quant(call, values, grid, scale)

    def bias(self, call: OpCall, values: Any, product: Any, name: str) -> tuple[str, bool]:
        """Return a bias, which is in float as it is rounded already."""
        return call.builder.constant(values, name), False

    def _quant(
        self, call: OpCall, x: str, grid: Grid, scale: Tensor, how: str = "ROUND",
        *, narrow: bool | None = None,
    ) -> str:  # fmt: skip
        inputs = [x, call.constant(scale.float().numpy())]
        inputs += [self._number(call, 0.0), self._number(call, float(grid.width))]
        narrow = grid.narrow if narrow is None else narrow
        flags = {"signed": int(grid.signed), "narrow": int(narrow), "rounding_mode": how}
        return self._add(call, "Quant", *inputs, **flags)

    def _number(self, call: OpCall, value: float) -> str:
        return call.constant(np.array(value, dtype=np.float32))

    def _add(self, call: OpCall, op: str, *inputs: str, **attributes: Any) -> str:
        return call.add(op, *inputs, domain=QONNX_DOMAIN, **attributes)
