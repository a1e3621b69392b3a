"""Matrix products: linear layers where the weight is a constant."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, reads
from chop.onnx.reading.values import OnnxValue, is_constant
from chop.onnx.reading.weighted import weighted


@reads("Gemm", takes_grids=True)
def gemm(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read alpha · A' · B' + beta · C."""
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    bias = node.get(2)
    flat_bias = None if bias is None else flat(bias, node[1], node.attribute("transB", 0))
    if node.attribute("transA", 0) or not is_constant(node[1]) or node[0].is_known:
        return _gemm_in_parts(reader, node, alpha, beta)
    weight = node[1].tensor if node.attribute("transB", 0) else node[1].tensor.T
    if weight.dim() != 2:
        raise node.wrong("has a weight that is not a matrix; export the network again")
    axis = 0 if node.attribute("transB", 0) else 1
    scaled = weight if alpha == 1 else weight * alpha
    tensors: dict[str, Tensor] = {"weight": scaled}
    if flat_bias is not None:
        tensors["bias"] = flat_bias if beta == 1 else flat_bias * beta
    layer = nn.Linear(*_sizes(weight), bias=flat_bias is not None, device="meta")
    turned = {0: axis, 1: 1 - axis}
    folded = bias if flat_bias is not None else None
    exact = alpha == beta == 1
    result = weighted(reader, layer, node, tensors, turned, bias=folded, exact=exact)
    if bias is None or flat_bias is not None:
        return result
    rest = reader.settled(bias)
    term = rest if beta == 1 else reader.call(torch.mul, rest, beta)
    return reader.call(torch.add, result, term)  # type: ignore[no-any-return]


def _gemm_in_parts(reader: Reader, node: OnnxNode, alpha: float, beta: float) -> OnnxValue:
    a, b = (reader.settled(node[place]) for place in (0, 1))
    a = reader.call(torch.t, a) if node.attribute("transA", 0) else a
    b = reader.call(torch.t, b) if node.attribute("transB", 0) else b
    result = reader.call(torch.matmul, a, b)
    result = result if alpha == 1 else reader.call(torch.mul, result, alpha)
    c = node.get(2)
    if c is not None:
        c = reader.settled(c)
        c = c if beta == 1 else reader.call(torch.mul, c, beta)
        result = reader.call(torch.add, result, c)
    return result  # type: ignore[no-any-return]


def flat(bias: OnnxValue, weight: OnnxValue, transposed: bool) -> Tensor | None:
    """Return a bias as one number per output; None if it differs by row."""
    if not is_constant(bias) or weight.rank != 2:
        return None
    outputs = weight.tensor.shape[0 if transposed else 1]
    tensor = bias.tensor
    if tensor.dim() > 2 or (tensor.dim() == 2 and tensor.shape[0] != 1):
        return None
    row = tensor.reshape(-1)
    if row.numel() not in (1, outputs):
        return None
    return row.expand(outputs)


@reads("MatMul", takes_grids=True)
def matmul(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a product; that with a constant matrix is a linear layer."""
    if not is_constant(node[1]) or node[1].rank != 2 or node[0].is_known or node[0].rank < 2:
        return reader.call(torch.matmul, *(reader.settled(node[i]) for i in (0, 1)))  # type: ignore[no-any-return]
    weight = node[1].tensor.T
    layer = nn.Linear(*_sizes(weight), bias=False, device="meta")
    return weighted(reader, layer, node, {"weight": weight}, {0: 1, 1: 0})


def _sizes(weight: Tensor) -> tuple[int, int]:
    return weight.shape[1], weight.shape[0]


@reads("Einsum")
def einsum(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a sum of products by its equation."""
    equation = node.attribute("equation", "")
    operands = [node[place] for place in range(len(node.inputs))]
    return reader.call(torch.einsum, equation, *operands)  # type: ignore[no-any-return]
