"""Layers with weights: linear layers, convolutions and matrix products."""

from __future__ import annotations

from typing import Any

from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.registry import writes

PAD_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def one_each(value: Any, rank: int) -> list[int]:
    """Return one number per dimension."""
    return [value] * rank if isinstance(value, int) else [*value]


def with_bias(call: OpCall, op: str, x: str, weight: str, rank: int, **settings: Any) -> str:
    """Return a weighted sum; a bias that is not on the grid of the products is added apart.

    onnxruntime rounds a float bias of a quantised sum to that grid. `rank` is the number of
    dimensions after the channels.
    """
    bias = call.weight("bias", 2)  # after the weight, whose step a bias may have
    if bias is None or not call.rounding.bias_apart:
        return call.add(op, x, weight, *([bias] if bias else []), **settings)
    if rank:
        bias = call.add("Unsqueeze", bias, call.ints(*range(1, rank + 1)))
    return call.add("Add", call.add(op, x, weight, **settings), bias)


@writes("linear")
def linear(call: OpCall) -> str:
    x = call.x()
    if call.rank == 2 and call.writer.gemm:
        weight = call.weight("weight", 1)
        assert weight is not None
        return with_bias(call, "Gemm", x, weight, 0, transB=1)
    product, bias = call.add("MatMul", x, call.turned("weight", 1)), call.weight("bias", 2)
    return call.add("Add", product, bias) if bias else product


@writes("transposed_linear")
def transposed_linear(call: OpCall) -> str:
    product = call.add("MatMul", call.x(), call.parameter("weight"))  # type: ignore[arg-type]
    bias = call.parameter("bias")
    return call.add("Add", product, bias) if bias else product


@writes("bilinear")
def bilinear(call: OpCall) -> str:
    first, second = call.x(0), call.x(1, "input2")
    weight, bias = call.weight("weight", 2), call.weight("bias", 3)
    both = call.add("Einsum", first, weight, second, equation="...i,oij,...j->...o")  # type: ignore[arg-type]
    return call.add("Add", both, bias) if bias else both


@writes("conv1d", "conv2d", "conv3d")
def convolution(call: OpCall) -> str:
    rank = int(call.op[-2])
    x = call.x()
    stride = one_each(call.setting("stride", 3, 1), rank)
    padding, dilation = (
        call.setting("padding", 4, 0),
        one_each(call.setting("dilation", 5, 1), rank),
    )
    groups = call.setting("groups", 6, 1)
    mode = getattr(call.module, "padding_mode", "zeros")
    weight, kernel = call.weight("weight", 1), call.weight_shape("weight", 1)[2:]
    begins, ends = _pads(padding, kernel, dilation)
    if mode != "zeros":
        x = _padded(call, x, begins, ends, PAD_MODES[mode])
        begins = ends = [0] * rank
    unbatched = call.rank == rank + 1
    if unbatched:
        x = call.add("Unsqueeze", x, call.ints(0))
    assert weight is not None
    result = with_bias(
        call, "Conv", x, weight, rank, kernel_shape=kernel, strides=stride,
        pads=[*begins, *ends], dilations=dilation, group=groups,
    )  # fmt: skip
    return call.add("Squeeze", result, call.ints(0)) if unbatched else result


def _pads(padding: Any, kernel: list[int], dilation: list[int]) -> tuple[list[int], list[int]]:
    if padding == "valid":
        return [0] * len(kernel), [0] * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [total // 2 for total in totals], [total - total // 2 for total in totals]
    both = one_each(padding, len(kernel))
    return both, [*both]


def _padded(call: OpCall, x: str, begins: list[int], ends: list[int], mode: str) -> str:
    others = [0] * (call.rank - len(begins))
    return call.add("Pad", x, call.ints(*others, *begins, *others, *ends), mode=mode)


@writes("convtranspose1d", "convtranspose2d", "convtranspose3d")
def transposed_convolution(call: OpCall) -> str:
    rank = int(call.op[-2])
    if call.rank == rank + 1:
        raise call.refusal("takes one sample without a batch; give it a batch")
    if call.module is not None and (call.args[1:] or call.kwargs):
        raise call.refusal("takes an output_size; give the layer an output_padding instead")
    x, weight = call.x(), call.weight("weight", 1)
    assert weight is not None
    pads, strides, beyond = (
        one_each(call.setting(name, place, default), rank)
        for name, place, default in (("padding", 4, 0), ("stride", 3, 1), ("output_padding", 5, 0))
    )
    if any(more >= stride for more, stride in zip(beyond, strides, strict=True)):
        raise call.refusal("has an output_padding that is not below the stride; pad its result")
    return with_bias(
        call, "ConvTranspose", x, weight, rank,
        kernel_shape=call.weight_shape("weight", 1)[2:],
        strides=strides,
        pads=[*pads, *pads],
        output_padding=beyond,
        group=call.setting("groups", 6, 1),
        dilations=one_each(call.setting("dilation", 7, 1), rank),
    )  # fmt: skip


@writes("matmul", "bmm", "mm", "mv", "dot", "inner")
def matmul(call: OpCall) -> str:
    names = ("other", "mat2", "vec", "tensor")
    second = call.given_facts(1, *names)
    right = call.x(1, *names)
    if call.op == "inner":
        if len(second.shape) > 2:
            raise call.refusal("takes tensors of more than two dimensions; use einsum")
        right = call.add("Transpose", right) if len(second.shape) == 2 else right
    return call.add("MatMul", call.x(), right)


@writes("addmm", "baddbmm", "addmv")
def added_product(call: OpCall) -> str:
    product = call.add(
        "MatMul", call.x(1, "mat1", "batch1", "mat"), call.x(2, "mat2", "batch2", "vec")
    )
    added = call.x(0)
    for name, value in (("alpha", "product"), ("beta", "added")):
        factor = call.plain(call.kwargs.get(name, 1), name)
        if factor != 1:
            scaled = call.add(
                "Mul", product if value == "product" else added, call.constant(factor)
            )
            product, added = (scaled, added) if value == "product" else (product, scaled)
    return call.add("Add", product, added)


@writes("einsum")
def einsum(call: OpCall) -> str:
    equation = call.plain(call.arg(0, "equation"), "equation")
    operands = call.many(1, "operands")
    names = [
        call.value(value, call.rounding.operand(call, 1 + i, (), value))
        for i, value in enumerate(operands)
    ]
    return call.add("Einsum", *names, equation=equation)


@writes("outer")
def outer(call: OpCall) -> str:
    left = call.add("Unsqueeze", call.x(), call.ints(1))
    return call.add("Mul", left, call.add("Unsqueeze", call.x(1, "vec2"), call.ints(0)))
