"""Arithmetic, comparisons and changes of the dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.ops.activations import truncated
from chop.passes.graph.interface.export_onnx.registry import writes
from chop.passes.graph.interface.export_onnx.values import OnnxSize, OnnxTensor, TensorFacts

COMPARED = {
    "gt": "Greater", "greater": "Greater", "lt": "Less", "less": "Less", "eq": "Equal",
    "le": "LessOrEqual", "less_equal": "LessOrEqual", "ge": "GreaterOrEqual",
    "greater_equal": "GreaterOrEqual",
}  # fmt: skip
OTHER = ("other", "exponent", "value", "tensor2")
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _stand_in(value: Any, facts: TensorFacts) -> Any:
    """Return something of the same dtype and rank, from which torch tells the common dtype."""
    if isinstance(value, OnnxTensor | Tensor):
        return torch.empty([1] * len(facts.shape) if facts.shape else (), dtype=facts.dtype)
    return 1 if isinstance(value, OnnxSize) else value


def both(call: OpCall, dtype: torch.dtype | None = None) -> tuple[str, str, torch.dtype]:
    """Return two operands in one dtype: the given one, or the one that torch computes in."""
    values = call.arg(0, "input", "self"), call.arg(1, *OTHER)
    facts = [call.facts_of(value) for value in values]
    if dtype is None:
        dtype = torch.result_type(*(map(_stand_in, values, facts)))
    names = []
    for place, (value, about) in enumerate(zip(values, facts, strict=True)):
        if isinstance(value, bool | int | float):
            operand = call.rounding.operand(call, place, (), value)
            names.append(call.value(value, operand, dtype))
        else:
            name = call.x(place, *(OTHER if place else ()))
            names.append(call.cast(name, about.dtype, dtype))
    return names[0], names[1], dtype


@writes("add", "sub", "mul", "div", "rsub")
def arithmetic(call: OpCall) -> str:
    a, b, dtype = both(call, call.out.dtype)
    rounding = call.kwargs.get("rounding_mode") if call.op == "div" else None
    alpha = call.plain(call.kwargs.get("alpha", 1), "alpha")
    if call.op == "rsub":
        a, b = b, a
    if alpha != 1:
        b = call.add("Mul", b, call.constant(alpha, dtype))
    op = {"rsub": "Sub"}.get(call.op, call.op.capitalize())
    if dtype == torch.bool:
        return call.add("Or" if op == "Add" else "And", a, b)
    if rounding == "floor":
        return floor_quotient(call, a, b, dtype)
    result = call.add(op, a, b)
    if rounding == "trunc" and dtype.is_floating_point:
        return truncated(call, result)
    return result


def floor_quotient(call: OpCall, a: str, b: str, dtype: torch.dtype) -> str:
    """Return the quotient, rounded down, as torch computes it: without the remainder."""
    rest = call.add("Mod", a, b, fmod=1)
    whole = call.add("Div", call.add("Sub", a, rest), b)
    whole = call.add("Round", whole) if dtype.is_floating_point else whole
    return call.add("Sub", whole, _signs_differ(call, rest, b, dtype))


def _signs_differ(call: OpCall, a: str, b: str, dtype: torch.dtype) -> str:
    """Return 1 where one number is positive and the other negative, else 0."""
    product = call.add("Mul", call.add("Sign", a), call.add("Sign", b))
    return call.cast(call.add("Less", product, call.constant(0, dtype)), torch.bool, dtype)


@writes("floor_divide")
def floor_divide(call: OpCall) -> str:
    return floor_quotient(call, *both(call, call.out.dtype))


@writes("remainder")
def remainder(call: OpCall) -> str:
    a, b, dtype = both(call, call.out.dtype)
    name = getattr(call.node.target, "__name__", str(call.node.target))
    truncates = name.startswith("fmod")
    if truncates or not dtype.is_floating_point:
        return call.add("Mod", a, b, fmod=int(truncates))
    rest = call.add("Mod", a, b, fmod=1)
    return call.add("Add", rest, call.add("Mul", b, _signs_differ(call, rest, b, dtype)))


@writes("pow")
def power(call: OpCall) -> str:
    a, b, _ = both(call, call.out.dtype)
    if call.arg(1, "exponent") == 2 and isinstance(call.arg(1, "exponent"), int | float):
        return call.add("Mul", a, a)
    return call.add("Pow", a, b)


@writes("maximum", "minimum", "fmax", "fmin")
def extreme(call: OpCall) -> str:
    a, b, _ = both(call, call.out.dtype)
    return call.add("Max" if "max" in call.op else "Min", a, b)


@writes(*COMPARED)
def compared(call: OpCall) -> str:
    a, b, dtype = both(call)
    if dtype == torch.bool and call.op != "eq":
        a, b = (call.cast(x, torch.bool, torch.int64) for x in (a, b))
    return truths(call, call.add(COMPARED[call.op], a, b))


def truths(call: OpCall, x: str) -> str:
    """Return truth values in the dtype of the result, which in place is that of the input."""
    return call.cast(x, torch.bool, call.out.dtype)


@writes("ne")
def unequal(call: OpCall) -> str:
    a, b, _ = both(call)
    return truths(call, call.add("Not", call.add("Equal", a, b)))


@writes("bitwise_and", "bitwise_or", "bitwise_xor")
def bitwise(call: OpCall) -> str:
    what = call.op.removeprefix("bitwise_").capitalize()
    name = getattr(call.node.target, "__name__", str(call.node.target))
    a, b, dtype = both(call)
    if dtype == torch.bool:
        return call.add(what, a, b)
    if "logical" in name:
        a, b = (call.cast(x, dtype, torch.bool) for x in (a, b))
        return truths(call, call.add(what, a, b))
    return call.add(f"Bitwise{what}", a, b)


@writes("not", "invert")
def negation(call: OpCall) -> str:
    dtype = call.given_facts().dtype
    if call.op == "not" or dtype == torch.bool:
        return truths(call, call.add("Not", call.cast(call.x(), dtype, torch.bool)))
    return call.add("BitwiseNot", call.x())


@writes("isnan")
def isnan(call: OpCall) -> str:
    return call.add("IsNaN", call.x())


@writes("isinf")
def isinf(call: OpCall) -> str:
    return call.add("IsInf", call.x())


@writes("isfinite")
def isfinite(call: OpCall) -> str:
    return call.add("Not", call.add("Or", call.add("IsNaN", call.x()), call.add("IsInf", call.x())))


@writes("round")
def rounded(call: OpCall) -> str:
    if call.kwargs.get("decimals") or len(call.args) > 1:
        raise call.refusal("rounds to decimals; multiply and divide instead")
    return call.add("Round", call.x())


@writes("trunc")
def trunc(call: OpCall) -> str:
    return truncated(call, call.x())


@writes("clamp")
def clamp(call: OpCall) -> str:
    name = str(getattr(call.node.target, "__name__", call.node.target))
    low, high = call.arg(1, "min", default=None), call.arg(2, "max", default=None)
    if name.startswith("clamp_max"):
        low, high = None, call.arg(1, "max")
    have, want = call.given_facts().dtype, call.out.dtype
    x = call.cast(call.x(), have, want)
    if all(b is None or isinstance(b, int | float) for b in (low, high)):
        limits = ["" if b is None else call.constant(b, want) for b in (low, high)]
        return call.add("Clip", x, *limits)
    for bound, op in ((low, "Max"), (high, "Min")):
        if bound is not None:
            number = isinstance(bound, int | float)
            have = want if number else call.facts_of(bound).dtype
            x = call.add(op, x, call.cast(call.value(bound, None, want), have, want))
    return x


@writes("addcmul", "addcdiv")
def added(call: OpCall) -> str:
    op = "Mul" if call.op == "addcmul" else "Div"
    both_ = call.add(op, call.x(1, "tensor1"), call.x(2, "tensor2"))
    value = call.plain(call.kwargs.get("value", 1), "value")
    both_ = both_ if value == 1 else call.add("Mul", both_, call.constant(value))
    return call.add("Add", call.x(), both_)


@writes("lerp")
def lerp(call: OpCall) -> str:
    weight, x = call.arg(2, "weight"), call.x()
    share = call.value(weight, None, call.out.dtype)
    return call.add("Add", x, call.add("Mul", share, call.add("Sub", call.x(1, "end"), x)))


@writes("where")
def where(call: OpCall) -> str:
    if call.node.op == "call_method":  # x.where(condition, other)
        names = [call.arg(1, "condition"), call.arg(0, "self"), call.arg(2, "other")]
    else:
        names = [call.arg(0, "condition"), call.arg(1, "input", "self"), call.arg(2, "other")]
    condition = call.cast(call.value(names[0]), call.facts_of(names[0]).dtype, torch.bool)
    want = call.out.dtype
    chosen = []
    for value in names[1:]:
        number = isinstance(value, bool | int | float)
        have = want if number else call.facts_of(value).dtype
        chosen.append(call.cast(call.value(value, None, want), have, want))
    return call.add("Where", condition, *chosen)


@writes("masked_fill", "masked_fill_")
def masked_fill(call: OpCall) -> str:
    mask, value, want = call.arg(1, "mask"), call.arg(2, "value"), call.out.dtype
    condition = call.cast(call.value(mask), call.facts_of(mask).dtype, torch.bool)
    number = isinstance(value, bool | int | float)
    have = want if number else call.facts_of(value).dtype
    filled = call.cast(call.value(value, None, want), have, want)
    return call.add("Where", condition, filled, call.x())


@writes("to", "float", "long", "int", "bool", "half", "double", "type", "type_as", "short", "char",
        "byte")  # fmt: skip
def cast(call: OpCall) -> str:
    value = call.arg(0, "input", "self")
    return call.cast(call.x(), call.facts_of(value).dtype, call.out.dtype)


@writes("nan_to_num")
def nan_to_num(call: OpCall) -> str:
    x, limits = call.x(), torch.finfo(call.out.dtype)
    names = (("nan", 1, 0.0), ("posinf", 2, limits.max), ("neginf", 3, limits.min))
    nan, high, low = (
        default if (given := call.setting(name, place, None)) is None else given
        for name, place, default in names
    )
    x = call.add("Where", call.add("IsNaN", x), call.constant(nan), x)
    x = call.add("Where", call.add("IsInf", x, detect_negative=0), call.constant(high), x)
    return call.add("Where", call.add("IsInf", x, detect_positive=0), call.constant(low), x)
