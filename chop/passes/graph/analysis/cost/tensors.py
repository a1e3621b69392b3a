"""Facts about tensors for the cost pass: their source, their width, and which are zero."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.graph.mase_metadata import Operands, TensorMeta, mase
from chop.ir.operands import bind_operands
from chop.ir.ops import has_trait, identify
from chop.numerics import NumberFormat, from_dtype
from chop.passes.base import PassArgsError
from chop.passes.graph.describe.formats import (
    OPERANDS,
    formatted_parameters,
    layer_operand,
    node_formats,
)
from chop.passes.graph.describe.nodes import fetch_attr
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized

Place = tuple[int, int, int]


def result_tensors(node: fx.Node) -> list[TensorMeta]:
    return [tensor for _, tensor in real_tensors(mase(node).common.results)]


def real_tensors(operands: Operands) -> Iterator[tuple[str, TensorMeta]]:
    """The operands that are tensors; plain numbers have a shape in the metadata as well."""
    for name, tensor in operands.tensors():
        if "precision" in tensor:
            yield name, tensor


def sources(node: fx.Node) -> dict[str, fx.Node]:
    """Map each tensor operand of a call to the node that produces it."""
    if node.op not in ("call_module", "call_function", "call_method"):
        return {}

    def marked(n: fx.Node) -> Any:
        marks = [TensorMeta(type="", source=n) for _ in result_tensors(n)]
        return marks[0] if len(marks) == 1 else marks or 0

    module = mase(node).module
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), marked)
    bound = bind_operands(node, identify(node, module), module, args, kwargs)
    return {name: t["source"] for name, t in bound.items() if isinstance(t, TensorMeta)}


def format_of(tensor: TensorMeta) -> NumberFormat:
    """The format that the metadata names, or torch's dtype."""
    if tensor.get("type") == "model_specific_input":
        return from_dtype(tensor.torch_dtype)
    return tensor.format


def operand_format(node: fx.Node, name: str) -> NumberFormat:
    """Return the format in which a node takes an operand."""
    part, _, operand = name.rpartition(".")
    args, module = mase(node).common.args, mase(node).module
    inside = None if module is None else module.get_submodule(part)
    # a quantized layer knows more than its metadata: options beyond the precision may cost bits
    fmt = None
    if isinstance(module, Quantized):  # its parts, as attention has them, take its formats
        fmt = _counted(module, layer_operand(mase(node).common.mase_op, name), name)
    elif isinstance(inside, Quantized):
        fmt = _counted(inside, OPERANDS.get(operand), operand)
    if fmt is not None:
        return fmt
    # a submodule may take an operand of its module unrounded
    recorded = next((key for key in (name, operand) if key in args), None)
    if recorded is None:  # a parameter that is stored in another form
        return from_dtype(parameters_of(node)[name].dtype)
    return format_of(args.tensor(recorded))


def _counted(layer: Quantized, operand: str | None, name: str) -> NumberFormat | None:
    """Return the format whose bits an operand of a layer costs; None for one in float."""
    fmt = layer.formats.get(operand or "")
    if fmt is None:
        return None
    return layer.counted_format("data_in" if operand == "data_in" else name, fmt)


def stored_bits(fmt: NumberFormat, shape: list[int]) -> int:
    """Bits of a tensor of that shape, including shared exponents and scales."""
    return round(fmt.average_bits(shape) * math.prod(shape))


def element_width(fmt: NumberFormat) -> float:
    """Bits per element as a multiplier sees them, without the shared part of a block."""
    return float(getattr(fmt, "element_bits", fmt.bits))


def result_bits(node: fx.Node) -> int:
    """Bits of a node's results while they are stored: as many as the widest reader needs.

    A reader that rounds what it reads needs no more than its own format.
    """
    total = 0
    for tensor in result_tensors(node):
        stored = stored_bits(format_of(tensor), tensor.shape)
        read = [_read_bits(user, node, tensor) for user in readers_of(node)]
        total += stored if None in read or not read else min(stored, max(b for b in read if b))
    return total


def readers_of(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that read the numbers of a result, not only its sizes."""
    return [
        user
        for user in node.users
        if result_tensors(user) or not has_trait(mase(user).common.mase_op, "sizes")
    ]


def _read_bits(user: fx.Node, source: fx.Node, tensor: TensorMeta) -> int | None:
    """Bits per tensor that a reader needs, or None for all of them."""
    if not node_formats(user):
        return None
    names = [name for name, origin in sources(user).items() if origin is source]
    bits = (stored_bits(operand_format(user, name), tensor.shape) for name in names)
    return max(bits, default=None)


def place_of(tensor: Tensor) -> Place:
    """Identify the memory of a tensor: equal for all tensors that share it."""
    # private; data_ptr() is zero for all tensors on the meta device
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tensor.numel()


def parameters_of(node: fx.Node) -> dict[str, Tensor]:
    """The parameters of a node by operand name: of its module, or the one that get_attr reads."""
    module = mase(node).module
    if module is not None:
        return {**formatted_parameters(module)}
    if node.op == "get_attr":
        attribute = fetch_attr(mase(node).model, str(node.target))
        if isinstance(attribute, torch.nn.Parameter):
            return {"data_out_0": attribute}
    return {}


def weights_of(node: fx.Node) -> dict[str, Tensor]:
    """The constant tensors that a node computes with, rounded as it rounds them."""
    module = mase(node).module
    if module is None:
        origins = {name: s for name, s in sources(node).items() if s.op == "get_attr"}
        tensors = {n: fetch_attr(mase(s).model, str(s.target)) for n, s in origins.items()}
        return {name: operand_format(node, name)(t.detach()) for name, t in tensors.items()}
    tensors = {name: fetch_attr(module, name) for name in parameters_of(node)}
    weight = getattr(module, "weight", None)  # it may be computed from several parameters
    if isinstance(weight, Tensor) and "weight" not in tensors:
        return {**tensors, "weight": weight.detach()}
    return {name: _as_rounded(node, name, t.detach()) for name, t in tensors.items()}


def _as_rounded(node: fx.Node, name: str, values: Tensor) -> Tensor:
    """Return a parameter as its layer rounds it."""
    module = mase(node).module
    fmt = module.formats.get(module.operand_of(name)) if isinstance(module, Quantized) else None
    if fmt is None or not isinstance(module, Quantized):
        return operand_format(node, name)(values)  # type: ignore[no-any-return]
    with torch.no_grad():
        rounded: Tensor = module.rounding(name, fmt)(values)
    return rounded


def nonzero(tensor: Tensor) -> int:
    if tensor.is_meta:
        raise PassArgsError(
            "sparse = true reads the weights, which are on the meta device; load the model first"
        )
    return int(torch.count_nonzero(tensor))
