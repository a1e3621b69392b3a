"""How the operands of a node are written: as they are, or rounded to number formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from chop.passes.graph.interface.export_onnx.values import TensorFacts

if TYPE_CHECKING:
    from chop.passes.graph.interface.export_onnx.call import OpCall

__all__ = ["FloatOperands", "WrittenOperands", "tensor_of"]


class WrittenOperands(Protocol):
    """What a node's operands go through before the op."""

    bias_apart: bool  # whether the bias must be added by a node of its own

    def operand(self, call: OpCall, place: int, names: Any, value: Any) -> str | None:
        """Return the operand that an argument is, if it is rounded."""

    def activation(self, call: OpCall, name: str, operand: str | None, facts: TensorFacts) -> str:
        """Return an operand that another node computes."""

    def constant(self, call: OpCall, value: Tensor, operand: str | None) -> str:
        """Return an operand that is a constant."""

    def parameter(self, call: OpCall, name: str, operand: str) -> str | None:
        """Return a parameter or buffer of the layer, or None if it has none."""

    def turned(self, call: OpCall, name: str) -> str | None:
        """Return a matrix of the layer with its dimensions exchanged; None: by a node."""

    def number(self, value: Any, operand: str) -> Any:
        """Return a Python number as the op takes it."""

    def check_whole(self, call: OpCall) -> None:
        """Refuse a layer whose inner values are rounded."""

    def is_non_negative(self, operand: str) -> bool:
        """Return whether an operand is rounded to numbers that are not negative."""

    def relu(self, call: OpCall, x: str) -> str | None:
        """Return a ReLU on codes, where that gives the same; None: write a Relu."""

    def result(self, call: OpCall, name: str, facts: TensorFacts) -> str:
        """Return a result as the node gives it."""


class FloatOperands:
    """WrittenOperands as they are."""

    bias_apart = False

    def operand(self, call: OpCall, place: int, names: Any, value: Any) -> str | None:
        return None

    def activation(self, call: OpCall, name: str, operand: str | None, facts: TensorFacts) -> str:
        return name

    def constant(self, call: OpCall, value: Tensor, operand: str | None) -> str:
        return call.writer.stored(value)

    def parameter(self, call: OpCall, name: str, operand: str) -> str | None:
        tensor = tensor_of(call, name)
        if tensor is None:
            return None
        return call.writer.stored(tensor, f"{call.node.target}.{name}")

    def turned(self, call: OpCall, name: str) -> str | None:
        tensor = tensor_of(call, name)
        assert tensor is not None
        return call.writer.stored(tensor.T, f"{call.node.target}.{name}_transposed")

    def number(self, value: Any, operand: str) -> Any:
        return value

    def check_whole(self, call: OpCall) -> None:
        return

    def is_non_negative(self, operand: str) -> bool:
        return False

    def relu(self, call: OpCall, x: str) -> str | None:
        return None

    def result(self, call: OpCall, name: str, facts: TensorFacts) -> str:
        return name


def tensor_of(call: OpCall, name: str) -> Tensor | None:
    """Return a parameter or buffer of the layer of a call, by its dotted name."""
    owner, _, last = name.rpartition(".")
    assert call.module is not None
    with torch.no_grad():
        found: Tensor | None = getattr(call.module.get_submodule(owner), last, None)
    return found
