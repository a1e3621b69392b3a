"""Pools, padding and resizing."""

from __future__ import annotations

from typing import Any

from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.ops.weighted import one_each
from chop.passes.graph.interface.export_onnx.registry import writes

DIMS = (1, 2, 3)
PAD_MODES = {
    "Reflection": "reflect", "Replication": "edge", "Circular": "wrap",
    "reflect": "reflect", "replicate": "edge", "circular": "wrap", "constant": "constant",
}  # fmt: skip


def pool_rank(call: OpCall) -> int:
    """Return the number of dimensions of the windows."""
    return int(call.op[-2])


def batched(call: OpCall, rank: int, x: str) -> tuple[str, bool]:
    """Return the input with a batch, and whether one was added."""
    if call.rank == rank + 2:
        return x, False
    return call.add("Unsqueeze", x, call.ints(0)), True


def unbatched(call: OpCall, x: str, added: bool) -> str:
    """Return a result without the batch that was added."""
    return call.add("Squeeze", x, call.ints(0)) if added else x


def _window(call: OpCall, rank: int) -> tuple[list[int], list[int], list[int]]:
    kernel = one_each(call.setting("kernel_size", 1), rank)
    stride = call.setting("stride", 2, None)
    stride = kernel if stride is None or stride == [] else one_each(stride, rank)
    return kernel, stride, one_each(call.setting("padding", 3, 0), rank)


@writes(*(f"max_pool{d}d" for d in DIMS))
def max_pool(call: OpCall) -> Any:
    rank = pool_rank(call)
    kernel, stride, padding = _window(call, rank)
    dilation = one_each(call.setting("dilation", 4, 1), rank)
    if isinstance(call.facts, tuple):
        raise call.refusal("returns indices too; leave out return_indices")
    x, added = batched(call, rank, call.x())
    ceil = int(bool(call.setting("ceil_mode", 5, False)))
    window = {"kernel_shape": kernel, "strides": stride, "pads": padding * 2}
    result = call.add("MaxPool", x, **window, dilations=dilation, ceil_mode=ceil)
    return unbatched(call, result, added)


@writes(*(f"avg_pool{d}d" for d in DIMS))
def avg_pool(call: OpCall) -> str:
    rank = pool_rank(call)
    kernel, stride, padding = _window(call, rank)
    divisor = call.setting("divisor_override", 6, None) if rank > 1 else None
    if divisor is not None:
        raise call.refusal("has a divisor_override; multiply the result instead")
    ceil = int(bool(call.setting("ceil_mode", 4, False)))
    whole = int(bool(call.setting("count_include_pad", 5, True)))
    x, added = batched(call, rank, call.x())
    if ceil and whole and any(padding):
        raise call.refusal("pads with ceil_mode; use count_include_pad=False")
    window = {"kernel_shape": kernel, "strides": stride, "pads": padding * 2}
    result = call.add("AveragePool", x, **window, ceil_mode=ceil, count_include_pad=whole)
    return unbatched(call, result, added)


@writes(*(f"adaptive_{how}_pool{d}d" for how in ("avg", "max") for d in DIMS))
def adaptive_pool(call: OpCall) -> str:
    rank = pool_rank(call)
    if isinstance(call.facts, tuple):
        raise call.refusal("returns indices too; leave out return_indices")
    sizes, results = call.given_facts().shape[-rank:], call.out.shape[-rank:]
    how = "Average" if "avg" in call.op else "Max"
    x, added = batched(call, rank, call.x())
    if all(n == 1 for n in results):
        return unbatched(call, call.add(f"Global{how}Pool", x), added)
    pairs = list(zip(sizes, results, strict=True))
    if any(n is None or m is None or n % m for n, m in pairs):
        return unbatched(call, _uneven(call, x, rank, how), added)
    kernel = [n // m for n, m in pairs]  # type: ignore[operator]
    result = call.add(f"{how}Pool", x, kernel_shape=kernel, strides=kernel)
    return unbatched(call, result, added)


def _uneven(call: OpCall, x: str, rank: int, how: str) -> str:
    """Return an adaptive pool whose windows differ in size, dimension by dimension."""
    op = "ReduceMean" if how == "Average" else "ReduceMax"
    for dim in range(-rank, 0):
        size, result = call.given_facts().shape[dim], call.out.shape[dim]
        if size is None or result is None:
            raise call.refusal("pools a size that depends on the batch; give it a fixed size")
        parts = []
        for i in range(result):
            low, high = i * size // result, -(-(i + 1) * size // result)
            part = call.add("Slice", x, call.ints(low), call.ints(high), call.ints(dim))
            parts.append(call.add(op, part, call.ints(dim), keepdims=1))
        x = call.add("Concat", *parts, axis=dim)
    return x


@writes(*(f"lp_pool{d}d" for d in DIMS))
def lp_pool(call: OpCall) -> str:
    rank = pool_rank(call)
    order = call.setting("norm_type", 1)
    if call.setting("ceil_mode", 4, False) or order % 2:
        # torch adds powers of the numbers, ONNX powers of their absolute values
        raise call.refusal("has ceil_mode or an order that is not even; use neither")
    kernel = one_each(call.setting("kernel_size", 2), rank)
    stride = call.setting("stride", 3, None)
    stride = kernel if stride is None else one_each(stride, rank)
    x, added = batched(call, rank, call.x())
    result = call.add("LpPool", x, kernel_shape=kernel, strides=stride, p=int(order))
    return unbatched(call, result, added)


@writes("pad")
def pad(call: OpCall) -> str:
    name = type(call.module).__name__
    if call.module is not None:
        pads: Any = call.module.padding
        mode = next((PAD_MODES[key] for key in PAD_MODES if name.startswith(key)), "constant")
        value = getattr(call.module, "value", 0.0)
        rank = int(name.partition("Pad")[2][:1])
        pads = [pads] * 2 * rank if isinstance(pads, int) else [*pads]
    else:
        pads = [*call.plain(call.arg(1, "pad"), "pad")]
        mode = PAD_MODES[call.setting("mode", 2, "constant")]
        value = call.setting("value", 3, None) or 0.0
    if mode != "constant" and min(pads) < 0:
        raise call.refusal(
            f"cuts and pads by {mode!r}; cut by slices, and pad without numbers below 0"
        )
    others = [0] * (call.rank - len(pads) // 2)
    begins, ends = pads[-2::-2], pads[-1::-2]
    spread = call.ints(*others, *begins, *others, *ends)
    fill = [call.constant(value, call.given_facts().dtype)] if mode == "constant" else []
    return call.add("Pad", call.x(), spread, *fill, mode=mode)


@writes("interpolate", "upsample")
def interpolate(call: OpCall) -> str:
    scale, mode = call.setting("scale_factor", 2, None), call.setting("mode", 3, "nearest")
    aligned = call.setting("align_corners", 4, None)
    kinds = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear",
             "bicubic": "cubic"}  # fmt: skip
    if mode not in kinds or call.kwargs.get("antialias"):
        raise call.refusal(f"resizes by {mode!r}; use nearest, bilinear or bicubic")
    rank = call.rank - 2
    where = "align_corners" if aligned else "half_pixel"
    extra: dict[str, Any] = {"coordinate_transformation_mode": where, "mode": kinds[mode]}
    if mode == "nearest":
        extra |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if mode == "bicubic":
        extra["cubic_coeff_a"] = -0.75
    have, sizes = call.given_facts().shape[2:], call.out.shape[2:]
    if None in sizes or None in have:
        raise call.refusal("resizes to a size that depends on the batch; give it a fixed size")
    if scale is not None and not aligned and not call.setting("recompute_scale_factor", 5, None):
        factors = [scale] * rank if isinstance(scale, int | float) else scale
        exact = all(n * f == m for n, f, m in zip(have, factors, sizes, strict=True))
        if not exact:  # torch steps by the factor, and ONNX by the quotient of the sizes
            raise call.refusal(
                "resizes by a factor to sizes that are not whole; give a size, or "
                "recompute_scale_factor=True"
            )
    axes = [*range(2, rank + 2)]
    return call.add("Resize", call.x(), "", "", call.ints(*sizes), axes=axes, **extra)  # type: ignore[arg-type]


@writes("pixel_shuffle")
def pixel_shuffle(call: OpCall) -> str:
    size = call.setting("upscale_factor", 1)
    return call.add("DepthToSpace", call.x(), blocksize=size, mode="CRD")


@writes("pixel_unshuffle")
def pixel_unshuffle(call: OpCall) -> str:
    r = call.setting("downscale_factor", 1)
    _, c, h, w = call.given_facts().shape
    if call.rank != 4 or None in (c, h, w):
        raise call.refusal("needs a batch of images of a fixed size")
    split = call.reshape(call.x(), (None, c, h // r, r, w // r, r))
    return call.reshape(call.add("Transpose", split, perm=[0, 1, 3, 5, 2, 4]))


@writes("channel_shuffle")
def channel_shuffle(call: OpCall) -> str:
    groups, (_, channels, *sizes) = call.setting("groups", 1), call.given_facts().shape
    split = call.reshape(call.x(), (None, groups, channels // groups, *sizes))
    rest = range(3, 3 + len(sizes))
    return call.reshape(call.add("Transpose", split, perm=[0, 2, 1, *rest]))
