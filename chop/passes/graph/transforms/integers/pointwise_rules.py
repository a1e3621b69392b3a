"""Activations, sums, products and concatenation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from torch import Tensor, fx

from chop import integers
from chop.integers import (
    Codes,
    MixedWord,
    QuantizeInput,
    ReluCodes,
    Scale,
    Word,
)
from chop.integers.codes import MAX_BITS
from chop.integers.scale import simple_fraction
from chop.ir.ops import has_trait
from chop.passes.graph.transforms.integers.converter import (
    Converter,
    NodeCall,
    converts,
    shape_of,
)
from chop.passes.graph.transforms.integers.needed import returns
from chop.passes.graph.transforms.integers.values import Constant, Known, Unrounded, Value

TABLE_BITS = 16
END = 2**62  # beyond any code
SCALES_MOVE = (
    "moves values before they are rounded to one scale per channel; round them before it, or use "
    "one scale for the whole tensor"
)
FINER_BITS = 20  # finer than a step, for the bounds of a clamp whose result is not rounded
Ends = tuple[Fraction | None, Fraction | None] | list[Fraction | None]


def after_rounding(
    value: Value, call: NodeCall, to: Converter, make: Callable[[Known], Known], moves: bool
) -> Value:
    """Apply an op to codes, or to a float value once a reader has rounded it.

    Rounding first changes nothing for an op that `moves` values, nor for one that is monotone and
    keeps zero, unless the rounding wraps.
    """
    if isinstance(value, Known):
        return make(value)
    if not isinstance(value, Unrounded):
        raise call.refusal("computes with constants only; compute its result beforehand")
    before = value

    def rounded(word: Word) -> Known:
        if word.wraps and not moves:
            raise call.refusal(
                f"takes {before.what} in float, and the format after it wraps; quantise this node"
            )
        known = make(before.in_word(_before_moving(word, call, moves)))
        if not to.codes(known).scale.same(word.scale):
            raise call.refusal(SCALES_MOVE)
        return known

    exact = before.exact
    return Unrounded(
        rounded,
        before.what,
        None if exact is None else lambda: make(exact()),
        by_element=before.by_element,
    )


def _before_moving(word: Word, call: NodeCall, moves: bool) -> Word:
    """Return the word of the operand of an op for a word of its result."""
    if not isinstance(word, MixedWord):
        shapes = (shape_of(call.source)[1:], *(part.shape for part in word.scale.parts))
        if moves and not word.scale.uniform and not _fit(*shapes):
            raise call.refusal(SCALES_MOVE)
        return word
    before, after = shape_of(call.source)[1:], call.shape()
    if has_trait(call.op, "reshape"):
        return word.reshaped(after, before)
    keeps = has_trait(call.op, "pointwise") or has_trait(call.op, "activation")
    if not keeps and not (has_trait(call.op, "pool") and word.is_by_channel(len(after))):
        raise call.refusal(
            "moves values before they are rounded to bits that differ by element; use "
            "data_in_granularity 'tensor' after it"
        )
    return word


def _fit(shape: Sequence[int], *others: Sequence[int]) -> bool:
    """Return whether tensors of other shapes broadcast to a shape."""
    try:
        whole: torch.Size = torch.broadcast_shapes(shape, *others)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return tuple(whole) == tuple(shape)


@converts("ReluCodes")
def relu(call: NodeCall, to: Converter) -> Value:
    """Return max(x, 0)."""

    def make(value: Known) -> Known:
        if to.codes(value).lowest >= 0:
            return value
        return to.add(call.node.name, ReluCodes(), [value.name], call.node)

    return after_rounding(to.operand(call.source, call), call, to, make, moves=False)


@converts("ClampCodes")
def clamp(call: NodeCall, to: Converter) -> Value:
    """Return values within bounds: relu6, hardtanh, clamp.

    Bounds are rarely codes of a measured step. They are rounded by the readers of the result,
    after its values: that gives the same, as rounding is monotone.
    """
    bounds = _bounds(call, to)
    value = to.operand(call.source, call)
    if isinstance(value, Unrounded) and value.exact is None:
        return _clamped_later(call, to, value, bounds, None)
    known = to.known(call.source, call)
    scale = to.codes(known).scale
    if not scale.uniform and not scale.exact:
        return _clamped_later(call, to, known, bounds, None)
    known = to.uniform(known, call)
    scale = to.codes(known).scale
    ends = [None if end is None else end / _fraction(scale) for end in bounds]
    finer = math.lcm(*(end.denominator for end in ends if end is not None))
    if scale.exact or finer == 1:
        return _clamped(call, to, known, ends, finer)
    return _clamped_later(call, to, known, bounds, lambda: _nearly_clamped(call, to, known, ends))


def _clamped(call: NodeCall, to: Converter, value: Known, ends: Ends, finer: int) -> Known:
    """Clamp codes between bounds in their steps, on a grid that is finer by an integer."""
    low, high = (None if end is None else round(end * finer) for end in ends)
    value = to.refined(value, to.codes(value).scale.divided(finer), call)
    op = integers.ClampCodes(-END if low is None else low, END if high is None else high)
    return to.add(call.node.name, op, [value.name], call.node)


def _nearly_clamped(call: NodeCall, to: Converter, value: Known, ends: Ends) -> Known:
    """Clamp codes of a measured step, without rounding after it, to bounds on a finer grid."""
    reach = max(to.codes(value).largest, *(abs(round(end)) for end in ends if end is not None), 1)
    bits = max(0, min(FINER_BITS, MAX_BITS - 2 - reach.bit_length()))
    return _clamped(call, to, value, ends, 1 << bits)


def _clamped_later(
    call: NodeCall,
    to: Converter,
    value: Known | Unrounded,
    bounds: Ends,
    exact: Callable[[], Known] | None,
) -> Value:
    """Clamp a value between the codes of the bounds, once a reader has rounded it."""
    name, cached = call.node.name, functools.cache(exact) if exact is not None else None

    def rounded(word: Word) -> Known:
        if word.wraps or not word.scale.uniform or isinstance(word, MixedWord):
            if cached is None:
                raise call.refusal(
                    "takes a float value, and the format after it wraps or differs by channel; "
                    "quantise this node"
                )
            return to.in_word(cached(), word, f"{name}_in", call)
        codes = to.in_word(value, word, f"{name}_in", call)
        low, high = (
            _code_of(bound, word, end) for bound, end in zip(bounds, (-END, END), strict=True)
        )
        if low <= to.codes(codes).lowest and to.codes(codes).highest <= high:
            return codes
        return to.add(name, integers.ClampCodes(low, high), [codes.name], call.node)

    before = value
    function = None
    if isinstance(before, Known) and _few(before, to):
        function = before, call.evaluate
    elif isinstance(before, Unrounded) and before.function is not None:
        source, earlier = before.function
        function = source, lambda x: call.evaluate(earlier(x))
    return Unrounded(rounded, f"the result of {call.op}", cached, function)


def _code_of(bound: Fraction | None, word: Word, end: int) -> int:
    """Return the code to which a word rounds a bound; `end` if there is none."""
    if bound is None:
        return end
    return int(QuantizeInput(word, ()).run(torch.tensor(float(bound))))


def _bounds(call: NodeCall, to: Converter) -> Ends:
    """Return the lower and the upper bound of a clamp."""
    if call.op == "relu6":
        return Fraction(0), Fraction(6)
    names = ("min_val", "max_val") if call.op == "hardtanh" else ("min", "max")
    usual = (-1.0, 1.0) if call.op == "hardtanh" else (None, None)
    found = [call.setting(name, default) for name, default in zip(names, usual, strict=True)]
    for place, source in _tensor_bounds(call):
        found[place] = _number(source, call, to)
    low, high = (None if end is None or math.isinf(end) else simple_fraction(end) for end in found)
    if low is not None and high is not None and low > high:
        raise call.refusal(f"clamps between {found[0]} and {found[1]}; swap them")
    return low, high


def _tensor_bounds(call: NodeCall) -> list[tuple[int, fx.Node]]:
    """Return the bounds of a clamp that are tensors, each with its place."""
    if call.module is not None:
        return []
    name = str(getattr(call.node.target, "__name__", call.node.target))
    first = 1 if name.startswith("clamp_max") else 0
    kwargs = call.node.kwargs
    given = [*enumerate(call.node.args[1:], first), (0, kwargs.get("min")), (1, kwargs.get("max"))]
    return [(place, bound) for place, bound in given if isinstance(bound, fx.Node)]


def _number(source: fx.Node, call: NodeCall, to: Converter) -> float:
    """Return the number in a constant."""
    value = to.values.get(source)
    if not isinstance(value, Constant) or value.tensor.numel() != 1:
        raise call.refusal("clamps between tensors; use numbers")
    return float(value.tensor.detach())


def _fraction(scale: Scale) -> Fraction:
    """Return a scale as a fraction of integers."""
    exponent, divisor = int(scale.exponent), int(scale.divisor)
    return Fraction(float(scale.factor)) * Fraction(2) ** exponent / divisor


@converts("LeakyReluCodes")
def leaky_relu(call: NodeCall, to: Converter) -> Value:
    """Return codes with negative ones scaled: as a table if they are few, else exactly."""
    slope = simple_fraction(call.setting("negative_slope", 0.01))
    value = to.uniform(to.known(call.source, call), call)

    def exact() -> Known:
        op = integers.LeakyReluCodes(slope.numerator, slope.denominator)
        return to.add(call.node.name, op, [value.name], call.node)

    power = slope.denominator & (slope.denominator - 1) == 0
    if power or not _few(value, to):
        return exact()
    return Unrounded(_table(call, to, value, call.evaluate), "a leaky relu", exact)


@converts("Lookup", "div", "pow")
def pointwise(call: NodeCall, to: Converter) -> Value:
    """Return any other function of one value, as a table that its readers round."""
    others = [x for x in call.node.all_input_nodes if x is not call.source]
    if others:
        raise call.refusal(
            f"is {call.op} of several values, which has no integer meaning; replace it"
        )
    source, function = _function(call, to)
    if not _few(source, to):
        codes = to.codes(source)
        raise call.refusal(
            f"is {call.op} of codes of {codes.width} bits; quantise its input to at most "
            f"{TABLE_BITS}, so that it becomes a table"
        )
    table = _table(call, to, source, function)
    return Unrounded(table, f"the result of {call.op}", function=(source, function))


def _function(call: NodeCall, to: Converter) -> tuple[Known, Callable[[Tensor], Tensor]]:
    """Return the codes that a node is a function of: its input, or what that is a function of."""
    value = to.operand(call.source, call)
    if isinstance(value, Unrounded) and value.function is not None:
        source, before = value.function
        return source, lambda x: call.evaluate(before(x))
    return to.uniform(to.known(call.source, call), call), call.evaluate


def _few(value: Known, to: Converter) -> bool:
    codes: Codes = to.codes(value)
    return codes.highest - codes.lowest < 1 << TABLE_BITS


def _table(
    call: NodeCall, to: Converter, value: Known, function: Callable[[Tensor], Tensor]
) -> Callable[[Word], Known]:
    """Return what makes the table of a node for a word."""

    def table(word: Word) -> Known:
        codes = to.codes(value)
        every = torch.arange(codes.lowest, codes.highest + 1)
        results = function(codes.values(every).float())
        entries = QuantizeInput(word, ()).run(results)
        op = integers.Lookup(entries, codes.lowest, word)
        return to.add(call.node.name, op, [value.name], call.node)

    return table


@converts("identity", "contiguous", "detach", "clone", "float")
def same(call: NodeCall, to: Converter) -> Value:
    """Return the value itself: identity, contiguous."""
    return to.operand(call.source, call)


@converts("dropout")
def dropout(call: NodeCall, to: Converter) -> Value:
    """Return the value itself, as dropout does in eval mode."""
    if call.module is None and call.setting("training", True) and call.setting("p", 0.5):
        raise call.refusal("drops values at random in evaluation too; pass training=False")
    return to.operand(call.source, call)


@converts("prelu")
def prelu(call: NodeCall, to: Converter) -> Value:
    """Return the table of a leaky relu with one learnt slope."""
    if call.module is not None and call.module.weight.numel() > 1:  # type: ignore[operator]
        raise call.refusal("has one slope per channel; use one slope, so that it becomes a table")
    return pointwise(call, to)


@converts("rrelu")
def rrelu(call: NodeCall, to: Converter) -> Value:
    """Return the table of a leaky relu with a slope that is random in training only."""
    if call.module is None and call.setting("training", False):
        raise call.refusal("draws its slopes at random in evaluation too; pass training=False")
    return pointwise(call, to)


@converts("softmax", "log_softmax")
def softmax(call: NodeCall, to: Converter) -> Value:
    """Drop a softmax whose result is only returned or compared."""
    if not all(returns(user) or _is_argmax(user) for user in call.node.users):
        raise call.refusal(
            f"is {call.op} within the network; only one at the end has an integer meaning, as it "
            f"keeps the order of the classes; use another function, such as relu, or convert the "
            f"parts before and after it"
        )
    _check_classes(call)
    note = f"{call.node.name}: {call.op} at the end is left out; the output has its inputs"
    to.integers.notes.append(note)
    to.integers.left_out.append(call.node.name)
    return to.known(call.source, call)


def _check_classes(call: NodeCall) -> None:
    """Refuse a softmax that does not keep the order of what is compared."""
    rank = len(shape_of(call.node))
    dim = call.setting("dim", None)
    dim = (0 if rank in (1, 3) else 1) if dim is None else dim % rank  # as torch chooses
    if dim == 0:
        raise call.refusal("normalises over the batch; give it the dimension of the classes")
    for user in (user for user in call.node.users if not returns(user)):
        along = user.meta["mase"].common.args.get("dim")
        if along is not None and along % rank != dim:
            raise call.refusal(
                f"normalises over dimension {dim}, and {user.name!r} looks along {along % rank}; "
                f"use the same"
            )


def _is_argmax(node: fx.Node) -> bool:
    return bool(node.meta["mase"].common.mase_op == "argmax")
