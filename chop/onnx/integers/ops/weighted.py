"""Linear layers and convolutions: products of bytes, summed in int32.

Wider operands are split into limbs, each a byte. onnxruntime's kernels are fast if one operand has
no sign: the input of MatMulInteger, and the weight of ConvInteger. On x86 without VNNI they add two
products in 16 bits, which saturate, if exactly one operand has a sign: such pairs are used only if
two products fit, so that results do not depend on `session.x64quantprecision`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.integers import Codes, ConvCodes, LinearCodes
from chop.integers.ops.weighted import WeightedOp
from chop.onnx.integers.registry import writes
from chop.onnx.integers.rounding import Bounded, quotient
from chop.onnx.integers.writer import INT32, Writer, WrittenValue, numbers_dtype

INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)
BYTE = 8
MAX_PAIR = 2**15 - 1  # two products that 16 bits hold
MAX_SUM = 2**31 - 1
LEFT_OUT = WrittenValue("", UINT8)  # an input of a node


@dataclass(frozen=True)
class Limb:
    """A part of a value, in units of 2^shift; its bounds."""

    part: Any  # a WrittenValue, or a Tensor of weights
    shift: int
    low: int
    high: int

    @property
    def largest(self) -> int:
        return max(abs(self.low), abs(self.high))

    @property
    def span(self) -> int:
        """The largest byte without a sign that stands for the limb, or for zero."""
        return max(self.high, 0) - min(self.low, 0)


@dataclass(frozen=True)
class Byte:
    """A limb as ONNX operands: the byte and its zero point."""

    value: WrittenValue
    zero: WrittenValue | None  # none for 0


Product = Callable[[Byte, Byte], WrittenValue]  # of one limb of the input with one of the weight


@writes(LinearCodes)
def linear(
    w: Writer, op: LinearCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    def product(x: Byte, weight: Byte) -> WrittenValue:
        return w.op("MatMulInteger", *_operands(x, weight), dtype=INT32)

    limbs = _limbs(w, op, inputs[0], codes[0])
    left = _bytes(w, limbs.inputs, _unsigned)
    right = _bytes(w, limbs.transposed, _signed_beside(limbs.inputs))
    return _sums(w, op, limbs, left, right, product)


@writes(ConvCodes)
def conv(
    w: Writer, op: ConvCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    settings = {
        "strides": op.stride,
        "pads": (*op.padding, *op.padding),
        "dilations": op.dilation,
        "group": op.groups,
    }

    def product(x: Byte, weight: Byte) -> WrittenValue:
        return w.op("ConvInteger", *_operands(x, weight), dtype=INT32, **settings)

    limbs = _limbs(w, op, inputs[0], codes[0])
    right = _bytes(w, limbs.weights, _unsigned)
    left = _bytes(w, limbs.inputs, _signed_beside(limbs.weights))
    return _sums(w, op, limbs, left, right, product)


def _operands(x: Byte, weight: Byte) -> list[WrittenValue]:
    # onnxruntime refuses models in which layers share the zero point of weights that it converts
    zeros = [x.zero] if weight.zero is None else [x.zero, weight.zero]
    zeros = [] if zeros == [None] else zeros
    return [x.value, weight.value, *(zero or LEFT_OUT for zero in zeros)]


@dataclass(frozen=True)
class Limbs:
    """The limbs of the input and of the weight."""

    inputs: list[Limb]
    weights: list[Limb]

    @property
    def transposed(self) -> list[Limb]:
        return [replace(limb, part=limb.part.T) for limb in self.weights]


def _limbs(w: Writer, op: WeightedOp, value: WrittenValue, x: Codes) -> Limbs:
    inputs = _input_limbs(w, Bounded(value, x.lowest, x.highest))
    return Limbs(inputs, _weight_limbs(op, inputs))


def _sums(
    w: Writer,
    op: WeightedOp,
    limbs: Limbs,
    left: Sequence[Byte],
    right: Sequence[Byte],
    product: Product,
) -> WrittenValue:
    """Return the sum of the products of all pairs of limbs, and the bias."""
    pairs = list(itertools.product(limbs.inputs, limbs.weights))
    sums = [_sum_bound(one, other) << one.shift + other.shift for one, other in pairs]
    reach = op.reach if len(pairs) == 1 else (sum(sums) << op.shift) + op.reach
    # where int64 cannot hold parts of the sum, it wraps around, and the whole sum is right again
    dtype = numbers_dtype(-reach, reach)
    total: WrittenValue | None = None
    for (one, other), operands in zip(pairs, itertools.product(left, right), strict=True):
        part = w.cast(product(*operands), dtype)
        shift = one.shift + other.shift + op.shift
        part = w.op("Mul", part, 1 << shift) if shift else part
        total = part if total is None else w.op("Add", total, part)
    assert total is not None
    if op.bias is None:
        return total
    bias = w.constant(op.along_channels(op.bias), dtype, f"{w.node}.bias")
    return w.op("Add", total, bias)


def _input_limbs(w: Writer, x: Bounded) -> list[Limb]:
    """Split codes into bytes, the lowest first; all but the last are not negative."""
    limbs, shift = [], 0
    while not _holds(Limb(None, 0, x.low, x.high), UINT8):
        mask = (1 << BYTE) - 1
        limbs.append(Limb(w.op("BitwiseAnd", x.value, mask), shift, 0, mask))
        low, high = x.low >> BYTE, x.high >> BYTE
        upper = quotient(w, x, torch.tensor(1), torch.tensor(BYTE), "floor")
        x, shift = Bounded(upper.value, low, high), shift + BYTE
    return [*limbs, Limb(x.value, shift, x.low, x.high)]


def _weight_limbs(op: WeightedOp, inputs: Sequence[Limb]) -> list[Limb]:
    """Split weights into bytes, or fewer bits if sums of products would not fit into int32."""
    for bits in range(BYTE, 0, -1):
        limbs = _split(op.weight, bits)
        alone = len(inputs) == len(limbs) == 1
        if alone and op.reach >> op.shift <= MAX_SUM:
            return limbs
        if all(_sum_bound(x, limb) <= MAX_SUM for x in inputs for limb in limbs):
            return limbs
    raise AssertionError("a sum of so many products does not fit into memory")


def _split(weight: Tensor, bits: int) -> list[Limb]:
    limbs, shift = [], 0
    last = _limb(weight, shift)
    while not last.span < 1 << bits:
        limbs.append(_limb(weight & ((1 << bits) - 1), shift))
        weight, shift = weight >> bits, shift + bits
        last = _limb(weight, shift)
    return [*limbs, last]


def _limb(weight: Tensor, shift: int) -> Limb:
    return Limb(weight, shift, int(weight.min()), int(weight.max()))


def _sum_bound(x: Limb, weight: Limb) -> int:
    """Return a bound of the sums of products of two limbs."""
    return x.largest * int(weight.part.abs().flatten(1).sum(1).max())


def _holds(limb: Limb, dtype: np.dtype[Any]) -> bool:
    """Return whether a byte holds a limb; one without a sign has a zero point."""
    if dtype == INT8:
        return limb.low >= -128 and limb.high <= 127
    return limb.span <= 255


def _unsigned(limb: Limb) -> np.dtype[Any]:
    return UINT8


def _signed_beside(others: Sequence[Limb]) -> Callable[[Limb], np.dtype[Any]]:
    """Return a function that chooses int8 where two products with `others` fit into 16 bits."""
    span = max(other.span for other in others)

    def kind(limb: Limb) -> np.dtype[Any]:
        safe = 2 * span * limb.largest <= MAX_PAIR
        return INT8 if safe and _holds(limb, INT8) else UINT8

    return kind


def _bytes(w: Writer, limbs: Sequence[Limb], kind: Callable[[Limb], np.dtype[Any]]) -> list[Byte]:
    return [_byte(w, limb, kind(limb)) for limb in limbs]


def _byte(w: Writer, limb: Limb, dtype: np.dtype[Any]) -> Byte:
    assert _holds(limb, dtype)
    zero = 0 if dtype == INT8 else max(0, -limb.low)
    point = w.constant(zero, dtype) if zero else None
    if isinstance(limb.part, Tensor):
        name = f"{w.node}.weight" + (f".{limb.shift}" if limb.shift else "")
        return Byte(w.constant((limb.part + zero).contiguous(), dtype, name), point)
    part = w.op("Add", limb.part, zero) if zero else limb.part
    return Byte(w.cast(part, dtype), point)
