"""One function per ONNX operator: how it is written in layers and functions of torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from chop.onnx.metadata import QONNX_DOMAIN
from chop.onnx.reading.errors import UnreadableModel
from chop.onnx.reading.names import layer_path
from chop.onnx.reading.tensors import stored_tensor
from chop.onnx.reading.values import OnnxValue, is_constant, known
from chop.registry import Registry

if TYPE_CHECKING:
    from chop.onnx.reading.reader import Reader

__all__ = ["OPERATORS", "OnnxNode", "Result", "operator_name", "reads"]

Result = OnnxValue | Sequence[OnnxValue | None]
MAX_LISTED = 2**20  # numbers of a shape, or scales of channels
QONNX = (QONNX_DOMAIN, "onnx.brevitas", "finn.custom_op.general")


class OnnxNode:
    """A node of a file: its operator, names, attributes, and inputs."""

    def __init__(self, proto: Any, inputs: Sequence[OnnxValue | None], owner: str) -> None:
        self.op: str = proto.op_type
        self.domain = "" if proto.domain == "ai.onnx" else str(proto.domain)
        self.name: str = proto.name or (proto.output[0] if proto.output else "")
        self.label = f"{owner}: node {self.name!r:.80} ({self.op})"
        self.inputs, self.outputs = list(inputs), list(proto.output)
        self.input_names = list(proto.input)
        self.path = _scope(proto) or layer_path(self.name, self.op)  # of its layer
        self._attributes = {attribute.name: attribute for attribute in proto.attribute}

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute: numbers, text, lists, or a constant."""
        from onnx import AttributeProto, helper

        attribute = self._attributes.get(name)
        if attribute is None:
            return default
        if attribute.type == AttributeProto.TENSOR:
            stored = stored_tensor(attribute.t, self.label, None)
            return known(stored.tensor, kind=stored.kind)
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        return list(value) if attribute.type >= AttributeProto.FLOATS else value

    def has(self, name: str) -> bool:
        """Whether the node has an attribute."""
        return name in self._attributes

    def get(self, place: int) -> OnnxValue | None:
        """Return an input; None if it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def __getitem__(self, place: int) -> OnnxValue:
        value = self.get(place)
        if value is None:
            raise self.wrong(f"has no input {place}; export the network again")
        return value

    def constant(self, place: int, what: str) -> OnnxValue | None:
        """Return an input that must be a constant; None if it is left out."""
        value = self.get(place)
        if value is not None and not is_constant(value):
            raise self.wrong(f"computes its {what} while it runs; only constants can be read")
        return value

    def numbers(self, place: int, what: str) -> list[Any] | None:
        """Return the numbers of a constant input as a list; None if it is left out."""
        value = self.constant(place, what)
        return None if value is None else self.listed(value.tensor, what)

    def listed(self, tensor: Tensor, what: str) -> list[Any]:
        """Return numbers as a list; refuse very many, as those of a repeated one can be."""
        if tensor.numel() > MAX_LISTED:
            raise self.wrong(f"has {tensor.numel():,} numbers as its {what}; export it again")
        return tensor.reshape(-1).tolist()

    def axis(self, default: int = -1, *, axis: int | None = None, rank: int | None = None) -> int:
        """Return the attribute `axis`, or the given one, counted from the first dimension."""
        axis = int(self.attribute("axis", default)) if axis is None else int(axis)
        rank = self[0].rank if rank is None else rank
        if not -rank <= axis < rank:
            raise self.wrong(f"has the axis {axis}, but its input has {rank} dimensions")
        return axis % rank

    def wrong(self, reason: str) -> UnreadableModel:
        """Return the error for this node."""
        return UnreadableModel(f"{self.label} {reason}")


def _scope(proto: Any) -> str:
    """Return the path of the layer that PyTorch's exporter notes beside a node."""
    for entry in proto.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = re.findall(r"'([^']*)'", entry.value)[-2:]
            return layer_path(scopes[0], "") if len(scopes) == 2 else ""
    return ""


@dataclass(frozen=True)
class Operator:
    """How an operator is read, and what it does with inputs that are rounded to grids.

    With `commutes`, rounding before it equals rounding after it, for one scale per tensor. With
    `takes_grids`, the function sees the grids; otherwise inputs are rounded before it.
    """

    function: Callable[[Reader, OnnxNode], Result]
    commutes: bool = False
    takes_grids: bool = False


OPERATORS: Registry[Operator] = Registry("ONNX operator", "chop.onnx.reading.ops")


def reads(
    *ops: str, domains: Sequence[str] = ("",), commutes: bool = False, takes_grids: bool = False
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorator that registers the function of one or more operators."""

    def add(function: Callable[..., Result]) -> Callable[..., Result]:
        names = [operator_name(domain, op) for domain in domains for op in ops]
        OPERATORS.register(*names)(Operator(function, commutes, takes_grids))
        return function

    return add


def operator_name(domain: str, op: str) -> str:
    """Return the name of an operator: with its domain, unless that is ONNX's own."""
    return op if domain in ("", "ai.onnx") else f"{domain}.{op}"
