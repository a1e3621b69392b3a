"""Reductions and order."""

from __future__ import annotations

import math
from typing import Any

import torch

from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.ops.norms import reduced_norm
from chop.passes.graph.interface.export_onnx.registry import writes
from chop.passes.graph.interface.export_onnx.values import OnnxTensor

REDUCED = {
    "sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd", "amax": "ReduceMax",
    "amin": "ReduceMin", "logsumexp": "ReduceLogSumExp",
}  # fmt: skip


def _dims(call: OpCall, place: int = 1) -> tuple[list[int] | None, bool]:
    """Return the dimensions that are reduced, None for all, and whether they are kept."""
    dims = call.plain(call.arg(place, "dim", "axis", default=None), "dim")
    keep = bool(call.plain(call.arg(place + 1, "keepdim", "keepdims", default=False), "keepdim"))
    if dims is None or (isinstance(dims, list | tuple) and not dims) or not call.rank:
        return None, keep
    return ([dims] if isinstance(dims, int) else [*dims]), keep


def reduced(call: OpCall, op: str, x: str, dims: list[int] | None, keep: bool) -> str:
    """Return a reduction over dimensions, or over all."""
    axes = [] if dims is None else [call.ints(*dims)]
    return call.add(op, x, *axes, keepdims=int(keep))


@writes(*REDUCED)
def reduction(call: OpCall) -> str:
    dims, keep = _dims(call)
    x = call.cast(call.x(), call.given_facts().dtype, call.out.dtype)
    return reduced(call, REDUCED[call.op], x, dims, keep)


@writes("max", "min")
def extreme(call: OpCall) -> Any:
    op, second = call.op.capitalize(), call.arg(1, "dim", "other", default=None)
    if second is None:
        return call.add(f"Reduce{op}", call.x(), keepdims=0)
    if isinstance(second, OnnxTensor | torch.Tensor):
        return call.add(op, call.x(), call.x(1, "other"))
    keep = bool(call.arg(2, "keepdim", default=False)) and call.rank > 0
    x = call.vector(call.x())
    values = reduced(call, f"Reduce{op}", x, [second], keep)
    return values, call.add(f"Arg{op}", x, axis=second, keepdims=int(keep))


@writes("argmax", "argmin")
def arg_extreme(call: OpCall) -> str:
    dims, keep = _dims(call)
    op = "ArgMax" if call.op == "argmax" else "ArgMin"
    if dims is not None:
        return call.add(op, call.x(), axis=dims[0], keepdims=int(keep))
    flat = call.add("Reshape", call.x(), call.ints(-1))
    return call.reshape(call.add(op, flat, axis=0, keepdims=0))


@writes("var", "std", "var_mean", "std_mean")
def variance(call: OpCall) -> Any:
    dims, _ = _dims(call)
    if isinstance(call.arg(1, "dim", default=None), bool):
        raise call.refusal("takes `unbiased` in the place of dim; give both by name")
    less = call.arg(2, "correction", "unbiased", default=True)  # before keepdim, unlike others
    keep = bool(call.arg(3, "keepdim", default=False))
    sizes = call.given_facts().shape
    count = [sizes[d] for d in (range(len(sizes)) if dims is None else dims)]
    if None in count:
        raise call.refusal("reduces the batch; name the other dimensions")
    total: int = math.prod(count)  # type: ignore[arg-type]
    x = call.x()
    mean = reduced(call, "ReduceMean", x, dims, True)
    off = call.add("Sub", x, mean)
    squares = reduced(call, "ReduceSum", call.add("Mul", off, off), dims, keep)
    less = 1 if less is None else call.plain(less, "correction")
    result = call.add("Div", squares, call.constant(max(0.0, float(total - less))))
    result = call.add("Sqrt", result) if "std" in call.op else result
    if not call.op.endswith("mean"):
        return result
    return result, reduced(call, "ReduceMean", x, dims, keep)


@writes("norm")
def norm(call: OpCall) -> str:
    p = call.arg(1, "p", "ord", default=2)
    p = 2 if p in (None, "fro") else p
    if p not in (1, 2, math.inf):
        raise call.refusal(f"is the norm of order {p}; use 1 or 2")
    dims, keep = _dims(call, 2)
    function = getattr(call.node.target, "__name__", "")
    has_order = isinstance(call.arg(1, "ord", default=None), int | float)
    by_rank = function.startswith("linalg_norm") and has_order and len(dims or ()) != 1
    if by_rank or "matrix_norm" in function:
        raise call.refusal("may be the norm of a matrix; use torch.linalg.vector_norm")
    axes = call.ints(*(range(call.rank) if dims is None else dims))
    return reduced_norm(call, call.x(), p, axes, keep)


@writes("any", "all")
def any_all(call: OpCall) -> str:
    dims, keep = _dims(call)
    whole = call.cast(call.x(), call.given_facts().dtype, torch.bool)
    whole = call.cast(whole, torch.bool, torch.int32)
    result = reduced(call, "ReduceMax" if call.op == "any" else "ReduceMin", whole, dims, keep)
    return call.cast(result, torch.int32, torch.bool)


@writes("cumsum")
def cumsum(call: OpCall) -> str:
    x = call.cast(call.x(), call.given_facts().dtype, call.out.dtype)
    if not call.rank:
        return x
    return call.add("CumSum", x, call.constant(call.setting("dim", 1), "int64"))


@writes("topk")
def topk(call: OpCall) -> Any:
    k, dim = call.arg(1, "k"), call.plain(call.arg(2, "dim", default=-1), "dim")
    largest = bool(call.arg(3, "largest", default=True))
    count = call.ints(k) if isinstance(k, int) else call.sizes([k])
    x = call.vector(call.x())
    found = call.add_many("TopK", x, count, count=2, axis=dim, largest=int(largest), sorted=1)
    return tuple(found if call.rank else (call.reshape(each) for each in found))


@writes("sort", "argsort")
def sort(call: OpCall) -> Any:
    dim = call.plain(call.arg(1, "dim", default=-1), "dim")
    down = bool(call.arg(2, "descending", default=False))
    size = call.given_facts().shape[dim] if call.rank else 1
    if size is None:
        raise call.refusal("sorts the batch; sort another dimension")
    x = call.vector(call.x())
    found = call.add_many("TopK", x, call.ints(size), count=2, axis=dim, largest=int(down))
    found = found if call.rank else [call.reshape(each) for each in found]
    return found[1] if call.op == "argsort" else tuple(found)
