"""The channels between two layers: where they lie in a tensor, and in the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import TensorMeta, mase
from chop.ir.ops import OPS, has_trait
from chop.passes.base import PassArgsError, has_metadata
from chop.passes.graph.describe.formats import node_formats
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized

SHAPES = ("size", "dim", "numel", "shape")  # ops that read no numbers
ATTRIBUTES = ("shape", "ndim", "dtype", "device")


class ChannelDim(NamedTuple):
    """The dimension of the channels, and how many consecutive numbers of it are one channel's."""

    dim: int
    repeats: int = 1

    def spread(self, numbers: Tensor, rank: int) -> Tensor:
        """Return one number per channel in a shape that broadcasts over a tensor of that rank."""
        shape = [1] * rank
        shape[self.dim] = -1
        return numbers.repeat_interleave(self.repeats).view(shape)


def require_float(name: str, graph: MaseGraph) -> None:
    """Refuse a quantised graph, for the pass `name`."""
    for node in graph.nodes:
        if node_formats(node) or isinstance(mase(node).module, Quantized):
            raise PassArgsError(
                f"pass {name!r} needs a float graph, but node {node.name!r} is quantised; "
                f"{name} first, then quantise"
            )


def data_input(node: fx.Node) -> fx.Node | None:
    """The node that gives a call its first tensor; None for a node that calls nothing."""
    if node.op not in ("call_module", "call_function", "call_method"):
        return None
    given = node.args[0] if node.args else node.kwargs.get("input")
    return given if isinstance(given, fx.Node) else None


def data_users(node: fx.Node) -> list[fx.Node]:
    """The nodes that read the numbers of a result, and not only its shape or dtype."""
    return [user for user in node.users if not _reads_shape(user)]


def _reads_shape(node: fx.Node) -> bool:
    op = mase(node).common.mase_op
    return op in SHAPES or (op == "getattr" and node.args[1] in ATTRIBUTES)


def result_shape(node: fx.Node) -> list[int] | None:
    """The shape of a node's result; None if it is not a single tensor."""
    results = mase(node).common.get("results", {})
    if list(results) != ["data_out_0"] or not isinstance(results["data_out_0"], TensorMeta):
        return None
    shape = results["data_out_0"].get("shape")
    return None if shape is None else list(shape)


def output_axis(node: fx.Node, layer: nn.Module) -> ChannelDim | None:
    """The channels in the result of a layer; None if it is called without a batch."""
    shape = result_shape(node) or []
    if isinstance(layer, _ConvNd):
        return ChannelDim(1) if len(shape) == layer.weight.ndim else None
    return ChannelDim(len(shape) - 1) if shape else None


def fits_input(node: fx.Node, layer: nn.Module, axis: ChannelDim) -> bool:
    """Whether the channels along `axis` are those that a layer multiplies by its weights."""
    source = data_input(node)
    shape = (source is not None and result_shape(source)) or []
    if isinstance(layer, _ConvNd):
        return len(shape) == layer.weight.ndim and axis == (1, 1)
    return len(shape) >= 2 and axis.dim == len(shape) - 1


def axis_after(node: fx.Node, axis: ChannelDim) -> ChannelDim | None:
    """The channels in the result of a node that treats each by itself; None if it mixes them."""
    source, shape, op = data_input(node), result_shape(node), mase(node).common.mase_op
    before = None if source is None else result_shape(source)
    if before is None or shape is None:
        return None
    if has_trait(op, "reshape"):
        return _reshaped(before, shape, axis)
    if has_trait(op, "pool"):
        dims = int(op[-2])  # max_pool2d
        return axis if axis.dim == 1 and len(before) == dims + 2 else None
    return axis if shape == before else None


def _reshaped(before: Sequence[int], after: Sequence[int], axis: ChannelDim) -> ChannelDim | None:
    """The channels after a reshape that joins all dimensions behind them, or only others."""
    if axis.dim == len(before) - 1 and after and after[-1] == before[-1]:
        return ChannelDim(len(after) - 1, axis.repeats)
    joined = math.prod(before[2:])
    if axis.dim == 1 and list(after) == [before[0], before[1] * joined]:
        return ChannelDim(1, axis.repeats * joined)
    return None


def along_inputs(layer: _ConvNd | nn.Linear, numbers: Tensor) -> Tensor:
    """Reshape one number per input channel so that it multiplies the weight."""
    rest = [1] * (layer.weight.ndim - 2)
    if isinstance(layer, _ConvTransposeNd):
        return numbers.view(-1, 1, *rest)
    if isinstance(layer, nn.Linear):
        return numbers.view(1, -1)
    # [out, in / groups, …]: rows of the same group share their input channels
    rows = numbers.view(layer.groups, -1).repeat_interleave(layer.out_channels // layer.groups, 0)
    return rows.view(layer.out_channels, -1, *rest)


def is_watched(module: nn.Module | None) -> bool:
    """Whether hooks of a module see what it takes or gives."""
    return module is not None and bool(module._forward_hooks or module._forward_pre_hooks)


def has_own_forward(node: fx.Node) -> bool:
    """Whether a module's class overrides the forward of its op."""
    module, op = mase(node).module, mase(node).common.mase_op
    return module is not None and type(module).forward not in {
        cls.forward for cls in OPS[op].modules
    }


def forget_statistics(node: fx.Node, part: str) -> None:
    """Drop the statistics of the data that a node takes (`args`) or gives (`results`)."""
    if not has_metadata(node, "software"):
        return
    table = mase(node).software.get(part, {})
    for name in table:
        if name.startswith("data_"):
            table[name] = {"stat": {}}


def divide_value(entry: Any, axis: ChannelDim, scale: Tensor) -> None:
    """Divide the recorded value of an operand by one number per channel."""
    value = entry.get("value") if isinstance(entry, TensorMeta) else None
    if isinstance(value, Tensor):
        entry["value"] = (value / axis.spread(scale.to(value.device), value.ndim)).to(value.dtype)
