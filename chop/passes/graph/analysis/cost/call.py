"""The input of a cost rule, one call of an op, and its result, a count."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from chop.ir.op_spec import OPS, Flops
from chop.registry import Registry

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Product:
    """Multiply-accumulates of two operands, named as in the metadata.

    None stands for an intermediate value of the op. `depth` is the number of products in one sum.
    `part` (i, n) means the i-th of n equal parts of the right operand.
    """

    macs: int
    left: str | None
    right: str | None
    depth: int
    part: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Count:
    """The arithmetic of one call: its products, and all operations beside them."""

    products: tuple[Product, ...] = ()
    other: int = 0
    other_backward: int = 0

    @property
    def macs(self) -> int:
        return sum(product.macs for product in self.products)

    @property
    def flops(self) -> int:
        """All operations; a multiply-accumulate is two."""
        return 2 * self.macs + self.other

    @property
    def backward_flops(self) -> int:
        """Operations of the backward pass: each operand's gradient costs as much as the product."""
        return 4 * self.macs + self.other_backward

    def __add__(self, more: Count) -> Count:
        other, backward = self.other + more.other, self.other_backward + more.other_backward
        return Count(self.products + more.products, other, backward)


NOTHING = Count()


def plain(forward: int, backward: int | None = None) -> Count:
    """A count of operations without products; `backward` defaults to the same number."""
    return Count((), forward, forward if backward is None else backward)


@dataclass(frozen=True)
class Call:
    """One call of an op: the shapes of its tensors by operand name, and its other arguments."""

    op: str
    inputs: Mapping[str, Shape]
    outputs: Sequence[Shape]
    module: nn.Module | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""  # of the parameters' names, inside a module made of submodules
    function: str = ""  # which of the op's functions is called, as upsample_bilinear2d

    @property
    def out(self) -> Shape:
        """The shape of the first result; () if that is not a tensor."""
        return self.outputs[0] if self.outputs else (0,)

    @property
    def data(self) -> list[Shape]:
        """The tensors that are neither weight nor bias."""
        return [shape for name, shape in self.inputs.items() if name.startswith("data_in_")]

    def shape(self, name: str) -> Shape | None:
        """The shape of an operand, or of a parameter even if it is stored in another form."""
        if name in self.inputs:
            return self.inputs[name]
        held = getattr(self.module, name, None)
        return tuple(held.shape) if isinstance(held, Tensor) else None

    def required(self, name: str) -> Shape:
        shape = self.shape(name)
        assert shape is not None, f"{self.op} has no operand {name!r}; it has {list(self.inputs)}"
        return shape

    def option(self, name: str, default: Any = None) -> Any:
        """A setting of the module, or an argument of the function."""
        source = self.arguments.get(name, default)
        return source if self.module is None else getattr(self.module, name, source)

    def inside(self, part: str, op: str, shapes: Sequence[Shape], result: Shape) -> Call:
        """The call of a module inside this one's, on data of these shapes."""
        assert self.module is not None, f"{self.op} is not a module"
        inputs, module = numbered(shapes), self.module.get_submodule(part)
        return Call(op, inputs, [result], module, prefix=f"{self.prefix}{part}.")


def numbered(shapes: Sequence[Shape]) -> dict[str, Shape]:
    """Name shapes as inputs of a call: data_in_0, data_in_1, …"""
    return {f"data_in_{i}": shape for i, shape in enumerate(shapes)}


Rule = Callable[[Call], Count]
# of ops that cost something else than a number per element
RULES: Registry[Rule] = Registry("cost rule", room="costs")


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register the cost of a call of these ops, as `@rule("my_op")`; yours replaces ours."""
    return RULES.register(*ops, replace=True)


def rule_of(op: str) -> Rule | None:
    """Return the rule of an op: its own, or that of its row in the table."""
    row, own = OPS.get(op), RULES.quoted(op)
    if own is None and row is not None and "no_arithmetic" in row.traits:
        return lambda call: NOTHING
    flops = None if row is None else row.flops
    if own is None and flops is not None:
        return lambda call: _per_element(call, flops)
    return own or RULES.get(op)


def _per_element(call: Call, flops: Flops) -> Count:
    shape = call.out if flops.per == "result" else next(iter(call.inputs.values()), call.out)
    return plain(flops.forward * size(shape), flops.backward * size(shape))


def count(call: Call) -> Count | None:
    """Return what a call costs, or None for an op without a rule."""
    rule_of_op = rule_of(call.op)
    # traced code also computes with sizes; plain Python numbers cost nothing
    if not call.outputs and (rule_of_op is not None or not call.inputs):
        return NOTHING
    return None if rule_of_op is None else rule_of_op(call)


def size(shape: Sequence[int]) -> int:
    """The number of elements."""
    return math.prod(shape)


def per_dimension(value: Any, rank: int) -> list[int]:
    """Return an option such as kernel_size for each dimension; one number counts for all."""
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def spelt(names: str) -> tuple[str, ...]:
    """Split a string of names at its spaces."""
    return tuple(names.split())
