"""A call of an op, as the functions that write ONNX nodes see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, fx, nn

from chop.ir.op_spec import StandIn
from chop.onnx import ModelBuilder
from chop.passes.graph.interface.export_onnx.observe import KnownGraph
from chop.passes.graph.interface.export_onnx.values import (
    DTYPES,
    DynamicSize,
    ExportError,
    OnnxSize,
    OnnxTensor,
    TensorFacts,
    as_array,
)

__all__ = ["OpCall"]

NOTHING: Any = object()


class WritesNodes(Protocol):
    """What a call needs of the writer of the graph."""

    known: KnownGraph
    builder: ModelBuilder
    gemm: bool
    names: dict[int, str]  # of the tensors of the model, by identity
    rounding: Callable[[fx.Node], Any]

    def given(self, value: Any) -> Any: ...

    def stored(self, tensor: Tensor, name: str | None = None) -> str: ...

    def first_name(self, name: str) -> str: ...


class OpCall:
    """One node with its operands; tensors come as names of values in the file.

    Functions add ONNX nodes by `add` and return the name of their result.
    """

    def __init__(self, writer: WritesNodes, node: fx.Node) -> None:
        self.writer, self.node, self.builder = writer, node, writer.builder
        self.op, self.facts = writer.known.op(node), writer.known.facts[node]
        self.args: tuple[Any, ...] = writer.given(node.args)
        self.kwargs: dict[str, Any] = writer.given(node.kwargs)
        if isinstance(node.target, StandIn):
            own = node.target.own_arguments
            self.kwargs = {key: v for key, v in self.kwargs.items() if key not in own}
        self.rounding = writer.rounding(node)
        if self.kwargs.pop("out", None) is not None:
            raise self.refusal("writes to the tensor `out`; use its result instead")

    @property
    def module(self) -> nn.Module | None:
        """The layer that the node calls."""
        if self.node.op != "call_module":
            return None
        return self.writer.known.model.get_submodule(str(self.node.target))

    # --- arguments

    def arg(self, place: int, *names: str, default: Any = NOTHING) -> Any:
        """Return an argument by its place or one of its names, as a value, a size or a constant."""
        if place < len(self.args):
            return self.args[place]
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        if default is NOTHING:
            raise self.refusal(f"lacks the argument {names[0] if names else place!r}")
        return default

    def setting(self, name: str, place: int, default: Any = NOTHING) -> Any:
        """Return an option of the layer, or the argument of the function at a place."""
        if self.module is not None:
            return getattr(self.module, name)
        value = self.arg(place, name, default=default)
        return self.plain(value, name)

    def plain(self, value: Any, name: str) -> Any:
        """Return an argument that must be known when the file is written."""
        if isinstance(value, OnnxTensor | OnnxSize):
            raise self.refusal(f"has a {name} that is computed; only a constant can be written")
        return value

    def many(self, place: int, *names: str) -> list[Any]:
        """Return numbers that come one by one or as a list, as those of view(2, -1)."""
        first = self.arg(place, *names)
        whole = isinstance(first, list | tuple | torch.Size)
        return [*first] if whole else [*self.args[place:]]

    def x(self, place: int = 0, *names: str) -> str:
        """Return the name of a tensor among the arguments, rounded where the node rounds it."""
        names = names or (("input", "self") if place == 0 else ())
        value = self.arg(place, *names)
        operand = self.rounding.operand(self, place, names, value)
        return self.value(value, operand)

    def maybe(self, place: int, *names: str) -> str | None:
        """Return the same for an argument that may be None or missing."""
        given = self.arg(place, *names, default=None)
        return None if given is None else self.x(place, *names)

    def value(self, value: Any, operand: str | None = None, dtype: Any = None) -> str:
        """Return the name of a tensor, a size or a number."""
        if isinstance(value, OnnxTensor):
            name = value.name
        elif isinstance(value, OnnxSize):
            return value.name
        elif isinstance(value, Tensor):
            constant: str = self.rounding.constant(self, value, operand)
            return constant
        elif isinstance(value, bool | int | float):
            if operand is not None:
                value = self.rounding.number(value, operand)
            return self.constant(value, dtype)
        else:
            raise self.refusal(f"takes {type(value).__name__}, which a file does not hold")
        rounded: str = self.rounding.activation(self, name, operand, value.facts)
        return rounded

    def parameter(self, name: str, operand: str | None = None) -> str | None:
        """Return the name of a layer's parameter or buffer, rounded as the layer rounds it."""
        found: str | None = self.rounding.parameter(self, name, operand or name)
        return found

    def weight(self, name: str, place: int) -> str | None:
        """Return a parameter of the layer, or the argument of the function, if there is one."""
        if self.module is not None:
            return self.parameter(name)
        return self.maybe(place, name)

    def turned(self, name: str, place: int) -> str:
        """Return a matrix among the weights with its dimensions exchanged."""
        found = self.rounding.turned(self, name) if self.module is not None else None
        if found is None:
            weight = self.weight(name, place)
            assert weight is not None
            found = self.add("Transpose", weight, perm=[1, 0])
        return found

    def weight_shape(self, name: str, place: int) -> list[int]:
        """Return the shape of a weight."""
        if self.module is not None:
            return [*getattr(self.module, name).shape]
        return [int(n or 0) for n in self.given_facts(place, name).shape]

    def given_facts(self, place: int = 0, *names: str) -> TensorFacts:
        """Return dtype and shape of an argument."""
        value = self.arg(place, *(names or ("input", "self")))
        return self.facts_of(value)

    def facts_of(self, value: Any) -> TensorFacts:
        """Return dtype and shape of a value."""
        if isinstance(value, OnnxTensor):
            return value.facts
        if isinstance(value, Tensor):
            return TensorFacts(value.dtype, tuple(value.shape))
        if isinstance(value, OnnxSize | int | bool):
            return TensorFacts(torch.bool if isinstance(value, bool) else torch.int64, ())
        if isinstance(value, float):
            return TensorFacts(torch.get_default_dtype(), ())
        raise self.refusal(f"takes {type(value).__name__}, which a file does not hold")

    @property
    def out(self) -> TensorFacts:
        """Dtype and shape of the result, of several the first."""
        facts = self.facts
        while isinstance(facts, tuple | list):
            facts = facts[0]
        if isinstance(facts, DynamicSize):
            return TensorFacts(torch.int64, ())
        if not isinstance(facts, TensorFacts):
            raise self.refusal(f"gives {type(facts).__name__}, which a file does not hold")
        return facts

    @property
    def rank(self) -> int:
        return len(self.given_facts().shape)

    # --- nodes

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append an ONNX node and return the name of its result."""
        return self.add_many(op, *inputs, count=1, **attributes)[0]

    def add_many(self, op: str, *inputs: str, count: int, **attributes: Any) -> list[str]:
        """Append an ONNX node with several results."""
        base = f"{self.node.name}_{op.lower()}"
        names = [self.builder.unique(base) for _ in range(count)]
        given = {key: value for key, value in attributes.items() if value is not None}
        return self.builder.add_many(op, *inputs, results=names, **given)

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Return the name of a constant; a number has the dtype of the result if none is given."""
        if isinstance(value, Tensor):
            return self.builder.constant(as_array(value))
        if isinstance(value, np.ndarray):
            return self.builder.constant(value)
        return self.builder.constant(np.array(value, dtype=self.numpy(dtype)))

    def numpy(self, dtype: Any = None) -> Any:
        """Return the numpy dtype of a torch dtype, or of the result."""
        dtype = self.out.dtype if dtype is None else dtype
        if not isinstance(dtype, torch.dtype):
            return dtype
        if dtype not in DTYPES:
            raise self.refusal(f"gives {dtype}; convert the model to float32 first")
        return DTYPES[dtype]

    def ints(self, *values: int) -> str:
        """Return the name of a vector of integers, such as axes."""
        return self.builder.constant(np.array(values, dtype=np.int64))

    def sizes(self, values: Sequence[Any]) -> str:
        """Return the name of a vector of sizes, some of which may be computed."""
        if all(isinstance(value, int) for value in values):
            return self.ints(*values)
        parts = [
            self.ints(value)
            if isinstance(value, int)
            else self.add("Unsqueeze", self.value(value), self.ints(0))
            for value in values
        ]
        return self.add("Concat", *parts, axis=0)

    def cast(self, name: str, have: torch.dtype, want: torch.dtype) -> str:
        """Return a value in another dtype."""
        if have == want:
            return name
        from onnx import helper

        return self.add(
            "Cast", name, to=helper.np_dtype_to_tensor_dtype(np.dtype(self.numpy(want)))
        )

    def reshape(self, x: str, shape: Sequence[int | None] | None = None) -> str:
        """Return a value in the shape of the result, or in another of which one size is unknown."""
        wanted = self.out.shape if shape is None else shape
        if sum(size is None for size in wanted) > 1:
            raise self.refusal(
                "has a shape in which several sizes depend on the batch; compute them from sizes"
            )
        return self.add("Reshape", x, self.ints(*(-1 if n is None else n for n in wanted)))

    def vector(self, x: str, rank: int | None = None) -> str:
        """Return a tensor; one without dimensions becomes a vector of one number."""
        rank = self.rank if rank is None else rank
        return x if rank else self.add("Reshape", x, self.ints(1))

    def rounded(self, x: str, rounding: str) -> str:
        """Round a value to integers: ties to even or up, or always down."""
        if rounding == "floor":
            return self.add("Floor", x)
        near = self.add("Round", x)
        if rounding == "even":
            return near
        # exact, unlike the sum of a number and one half
        tie = self.add("Equal", self.add("Sub", x, near), self.constant(0.5))
        return self.add("Add", near, self.cast(tie, torch.bool, torch.float32))

    def refusal(self, reason: str) -> ExportError:
        return ExportError(f"node {self.node.name!r} ({self.op}) {reason}")
