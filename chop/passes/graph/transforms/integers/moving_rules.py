"""Shapes, padding, pooling and argmax."""

from __future__ import annotations

import math
from typing import Any

import torch

from chop.integers import (
    ArgMaxCodes,
    AvgPoolCodes,
    IntegerOp,
    MaxPoolCodes,
    PadCodes,
    PermuteCodes,
    PickCodes,
    QuantizeInput,
    ReshapeCodes,
    Word,
)
from chop.ir.ops import ops_with
from chop.passes.graph.transforms.integers.converter import Converter, NodeCall, converts, shape_of
from chop.passes.graph.transforms.integers.pointwise_rules import after_rounding
from chop.passes.graph.transforms.integers.values import Known, Unrounded, Value

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)  # sizes that tell dimensions apart
MODES = {"Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}


def move(call: NodeCall, to: Converter, op: IntegerOp, moves: bool = True) -> Value:
    """Append an op that commutes with rounding."""

    def make(value: Known) -> Known:
        return to.add(call.node.name, op, [value.name], call.node)

    return after_rounding(to.operand(call.source, call), call, to, make, moves)


@converts(*ops_with("reshape"))
def reshape(call: NodeCall, to: Converter) -> Value:
    """Return the value in another shape."""
    before, after = shape_of(call.source), shape_of(call.node)
    if before == after:
        return to.operand(call.source, call)
    if before[:1] != after[:1] or math.prod(before[1:]) != math.prod(after[1:]):
        raise call.refusal("reshapes the batch as well; keep the first dimension")
    return move(call, to, ReshapeCodes(after[1:]))


@converts("transpose", "swapdims", "swapaxes", "permute", "movedim", "t")
def permute(call: NodeCall, to: Converter) -> Value:
    """Return the value with its dimensions in another order."""
    sizes = PRIMES[: len(shape_of(call.source))]
    result = call.evaluate(torch.empty(sizes, device="meta"))
    dims = tuple(sizes.index(n) for n in result.shape)
    if dims[0] != 0:
        raise call.refusal("moves the batch to another dimension; keep it the first")
    return move(call, to, PermuteCodes(dims))


@converts(
    "getitem",
    "narrow",
    "select",
    "flip",
    "roll",
    "pixel_shuffle",
    "pixel_unshuffle",
    "channel_shuffle",
)
def pick(call: NodeCall, to: Converter) -> Value:
    """Return some of the codes of each sample: `x[:, 0]`, `x[..., ::2]`, `x.flip(1)`."""
    shape = shape_of(call.source)
    if _touches_batch(call, len(shape)):
        raise call.refusal("picks samples of the batch; keep all of them")
    places = torch.arange(math.prod(shape[1:]), dtype=torch.float64).view(1, *shape[1:])
    (picked,) = call.evaluate(places)
    return move(call, to, PickCodes(picked.long()))


def _touches_batch(call: NodeCall, rank: int) -> bool:
    """Return whether an op that picks codes names the dimension of the batch, or may move it."""
    if call.op == "getitem":
        given = call.node.args[1]
        places = given if isinstance(given, tuple) else (given,)
        if places[0] is ...:
            return len([place for place in places[1:] if place is not None]) >= rank
        return places[0] != slice(None)
    if call.op in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"):
        return False
    named = call.setting("dims", call.setting("dim", None))
    if named is None and call.op == "flip":
        named = call.node.args[1:]  # as in x.flip(1, 2)
    dims = [named] if isinstance(named, int) else list(named or ())
    return not dims or any(dim % rank == 0 for dim in dims)


@converts("pad")
def pad(call: NodeCall, to: Converter) -> Value:
    """Return the value with padding."""
    name = type(call.module).__name__
    mode = call.setting("mode", "constant")
    mode = next((known for prefix, known in MODES.items() if prefix in name), mode)
    pads = call.setting("padding") if call.module is not None else call.setting("pad")
    rank = len(shape_of(call.source)) - 1
    if isinstance(pads, int):
        pads = (pads,) * 2 * (rank - 1)
    if len(pads) > 2 * rank or (mode != "constant" and len(pads) // 2 != rank - 1):
        raise call.refusal(
            "pads the batch, or not all dimensions after the channels; pad only those"
        )
    filled = float(call.setting("value", 0.0) or 0.0) if mode == "constant" else 0.0
    if filled == 0.0:
        return move(call, to, PadCodes(tuple(pads), mode))
    return _filled(call, to, tuple(pads), filled)


def _filled(call: NodeCall, to: Converter, pads: tuple[int, ...], value: float) -> Value:
    """Pad with a number other than zero, which must have a code."""
    if not math.isfinite(value):
        raise call.refusal(f"pads with {value}, which has no code; use a finite number")

    def padded(source: Known, code: int) -> Known:
        op = PadCodes(pads, "constant", code)
        return to.add(call.node.name, op, [source.name], call.node)

    source = to.operand(call.source, call)
    if isinstance(source, Unrounded):
        before = source

        def rounded(word: Word) -> Known:
            code = int(QuantizeInput(word, ()).run(torch.tensor(value)))
            return padded(before.in_word(word), code)

        return Unrounded(rounded, before.what)
    known = to.uniform(to.known(call.source, call), call)
    step = float(to.codes(known).scale.value)
    code = value / step
    if code != round(code):
        raise call.refusal(
            f"pads with {value}, which is not a multiple of {step:g}, its input's step; use one"
        )
    return padded(known, round(code))


def _window(call: NodeCall, names: tuple[str, ...], rank: int) -> list[tuple[int, ...]]:
    """Return settings of a pool, one number per dimension each."""
    kernel = call.setting("kernel_size")
    usual = {"stride": kernel, "padding": 0, "dilation": 1}
    found = []
    for name in names:
        value: Any = kernel if name == "kernel_size" else call.setting(name, usual[name])
        value = usual[name] if value is None or value == [] else value
        found.append((value,) * rank if isinstance(value, int) else tuple(value))
    return found


def _rank(call: NodeCall) -> int:
    rank = int(call.op[-2])  # max_pool2d
    if len(shape_of(call.source)) != rank + 2:
        raise call.refusal(
            f"pools {len(shape_of(call.source))} dimensions; give it a batch and channels"
        )
    return rank


@converts("MaxPoolCodes")
def max_pool(call: NodeCall, to: Converter) -> Value:
    """Return the largest code of each window."""
    if call.setting("return_indices", False):
        raise call.refusal("returns indices too; leave out return_indices")
    rank = _rank(call)
    names = ("kernel_size", "stride", "padding", "dilation")
    if call.op.startswith("adaptive"):
        kernel = _adaptive(call, rank)
        ones, zeros = (1,) * rank, (0,) * rank
        return _pooled(call, to, MaxPoolCodes(kernel, kernel, zeros, ones))
    kernel, stride, padding, dilation = _window(call, names, rank)
    ceil = bool(call.setting("ceil_mode", False))
    return _pooled(call, to, MaxPoolCodes(kernel, stride, padding, dilation, ceil))


def _pooled(call: NodeCall, to: Converter, op: IntegerOp) -> Value:
    """Append a max pool, once all elements have one scale."""

    def make(value: Known) -> Known:
        return to.add(call.node.name, op, [to.by_channel(value, call).name], call.node)

    return after_rounding(to.operand(call.source, call), call, to, make, moves=False)


def _adaptive(call: NodeCall, rank: int) -> tuple[int, ...]:
    """Return the window of an adaptive pool, which must divide the input."""
    sizes, results = (shape_of(node)[2:] for node in (call.source, call.node))
    if any(size % result for size, result in zip(sizes, results, strict=True)):
        raise call.refusal(f"pools {list(sizes)} to {list(results)}; use sizes that divide")
    return tuple(size // result for size, result in zip(sizes, results, strict=True))


@converts("AvgPoolCodes")
def avg_pool(call: NodeCall, to: Converter) -> Value:
    """Return the sum of each window, with a scale divided by its size."""
    rank = _rank(call)
    source = to.by_channel(to.known(call.source, call), call)
    if call.op.startswith("adaptive"):
        kernel = _adaptive(call, rank)
        op = AvgPoolCodes(kernel, kernel, (0,) * rank)
    else:
        kernel, stride, padding = _window(call, ("kernel_size", "stride", "padding"), rank)
        op = AvgPoolCodes(
            kernel,
            stride,
            padding,
            ceil=bool(call.setting("ceil_mode", False)),
            count_padding=bool(call.setting("count_include_pad", True)),
            divisor=call.setting("divisor_override", None),
        )
    return to.add(call.node.name, op, [source.name], call.node)


@converts("mean", "sum")
def mean(call: NodeCall, to: Converter) -> Value:
    """Return a mean or a sum over dimensions other than the batch."""
    shape = shape_of(call.source)
    dims = call.setting("dim", None)
    dims = range(1, len(shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    reduced = sorted(d % len(shape) for d in dims)
    if 0 in reduced or not reduced or call.setting("dim", None) is None:
        raise call.refusal("reduces the batch as well; name the other dimensions")
    known = to.known(call.source, call)
    source = to.uniform(known, call) if 1 in reduced else to.by_channel(known, call)
    kept = [d for d in range(1, len(shape)) if d not in reduced]
    count = math.prod(shape[d] for d in reduced)
    rest = math.prod(shape[d] for d in kept)
    node, name = call.node, call.node.name
    moved = to.add(f"{name}_moved", PermuteCodes((0, *kept, *reduced)), [source.name], node)
    flat = to.add(f"{name}_flat", ReshapeCodes((rest, count)), [moved.name], node)
    divisor = 1 if call.op == "sum" else None
    pool = AvgPoolCodes((count,), (count,), (0,), divisor=divisor)
    total = to.add(f"{name}_sum", pool, [flat.name], node)
    return to.add(name, ReshapeCodes(call.shape()), [total.name], node)


@converts("ArgMaxCodes")
def argmax(call: NodeCall, to: Converter) -> Value:
    """Return the first place of the largest value."""
    dim, rank = call.setting("dim", None), len(shape_of(call.source))
    if dim is None or dim % rank == 0:
        raise call.refusal("looks for the largest value of the whole batch; give it dim = 1")
    source = to.uniform(to.known(call.source, call), call)
    op = ArgMaxCodes(dim % rank, bool(call.setting("keepdim", False)))
    return to.add(call.node.name, op, [source.name], call.node)
