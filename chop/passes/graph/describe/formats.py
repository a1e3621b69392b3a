"""The number formats in which a node computes."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from chop.ir.dotted import deepgetattr
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.operands import keeps_name
from chop.ir.ops import OPS, StandIn, has_trait
from chop.ir.parametrized import parameters_by_operand
from chop.numerics import NumberFormat, from_dtype
from chop.numerics.weight_cache import CachesWeights
from chop.passes.graph.utils import get_mase_op

# operands of a layer in the metadata -> in its config
OPERANDS = {"data_in_0": "data_in", "weight": "weight", "bias": "bias"}


def layer_operand(op: str, name: str) -> str | None:
    """Return the operand in a layer's config that a tensor in the metadata is; None: in float.

    >>> layer_operand("lstm", "weight_hh_l0"), layer_operand("attention", "data_in_2")
    ('weight', 'data_in')
    """
    known = OPERANDS.get(name)
    if known is not None or not has_trait(op, "inner_products"):
        return known
    if name.startswith("data_in_"):
        inputs = OPS[op].quantized.count("data_in")
        return "data_in" if int(name.removeprefix("data_in_")) < inputs else None
    return "bias" if "bias" in name else "weight"


class FormattedLayer(CachesWeights):
    """A layer that rounds its operands."""

    formats: dict[str, NumberFormat]

    def current_formats(self) -> dict[str, NumberFormat]:
        """Return the format of each operand as it is now: scales may have been trained."""
        return self.formats

    def parameter_formats(self) -> dict[str, NumberFormat]:
        """Return the formats of parameters that differ from that of their operand, by name."""
        return {}

    def format_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that belong to formats, such as scales and bits, by name."""
        return {}

    def cut_tensors(self, name: str, dim: int | None, kept: Sequence[int]) -> None:
        """Keep the scales or bits of these channels, if the operand has some along the dimension.

        None stands for any dimension: activations only lose channels along one.
        """


def format_tensor_ids(model: nn.Module) -> set[int]:
    """Return the identities of the tensors that belong to formats of a model's layers."""
    layers = [layer for layer in model.modules() if isinstance(layer, FormattedLayer)]
    return {id(tensor) for layer in layers for tensor in layer.format_tensors().values()}


def operand_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a module that are operands, with their names.

    Scales and bits that are trained are not: they belong to the format of another operand.
    """
    others = format_tensor_ids(module)
    return ((name, p) for name, p in module.named_parameters() if id(p) not in others)


def formatted_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the same under the names of formats: what a weight is computed from is `weight`."""
    others = format_tensor_ids(module)
    return {name: p for name, p in parameters_by_operand(module).items() if id(p) not in others}


class FormattedFunction(StandIn):
    """A function that rounds its operands; its argument `config` says into what."""

    @abc.abstractmethod
    def arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[str, str | None, Any]]:
        """Yield the name, the operand and the value of each argument, and of each in a list."""

    @abc.abstractmethod
    def formats(self, config: Mapping[str, Any]) -> dict[str, NumberFormat]:
        """Return the format of each operand, as the op needs it."""


def node_formats(node: fx.Node) -> dict[str, NumberFormat]:
    """Return the formats in which a quantized node computes, by operand; empty for a float node."""
    module = mase(node).module
    if isinstance(module, FormattedLayer):
        return module.current_formats()
    if isinstance(node.target, FormattedFunction):
        return node.target.formats(node.kwargs["config"])
    return {}


def is_float_network(graph: MaseGraph) -> bool:
    """Whether a network has linear layers or convolutions, and nothing in it is quantised."""
    return bool(layers_in_float(graph)) and all(_is_in_float(node) for node in graph.nodes)


def layers_in_float(graph: MaseGraph) -> list[str]:
    """Return the names of linear layers and convolutions that are not quantised."""
    weighted = [n for n in graph.nodes if has_trait(get_mase_op(n), "weighted_sum")]
    return [node.name for node in weighted if _is_in_float(node)]


def _is_in_float(node: fx.Node) -> bool:
    return getattr(mase(node).module, "variant_name", None) is None and not node_formats(node)


def note_formats(node: fx.Node) -> None:
    """Write into the metadata the formats in which a node takes and returns its tensors."""
    common, formats = mase(node).common, node_formats(node)
    computed = argument_formats(node)
    for name, tensor in common.args.tensors():
        tensor.format = computed.get(name) or from_dtype(dtype_of(node, name))
    result = common.results.get("data_out_0", {})
    if "torch_dtype" in result:
        result.format = _result_format(common.mase_op, formats) or from_dtype(result.torch_dtype)


def argument_formats(node: fx.Node) -> dict[str, NumberFormat]:
    """Return the formats that a node rounds its arguments to, by their names in the metadata."""
    formats, operands, module = node_formats(node), operands_of(node), mase(node).module
    own = module.parameter_formats() if isinstance(module, FormattedLayer) else {}
    found = {
        name: own.get(name) or formats.get(operands.get(name) or "")
        for name, _ in mase(node).common.args.tensors()
        if dtype_of(node, name).is_floating_point
    }
    return {name: fmt for name, fmt in found.items() if fmt is not None}


def note_scales(graph: MaseGraph) -> None:
    """Write into the metadata the scales and bits of layers as they are now, after training."""
    for node in graph.nodes:
        if "mase" not in node.meta:  # of a graph that was saved without metadata
            continue
        module = mase(node).module
        scaled = isinstance(module, FormattedLayer) and module.format_tensors()
        if scaled and "args" in mase(node).common:
            note_formats(node)


def operands_of(node: fx.Node, function: FormattedFunction | None = None) -> dict[str, str | None]:
    """Names of arguments in the metadata -> operands of the config.

    `function` is the replacement of a float function.
    """
    function = node.target if isinstance(node.target, FormattedFunction) else function
    if function is None:
        common = mase(node).common
        return {name: layer_operand(common.mase_op, name) for name, _ in common.args.tensors()}
    number = itertools.count()
    return {
        name if keeps_name(function.spec, name) else f"data_in_{next(number)}": operand
        for name, operand, value in function.arguments(node.args, node.kwargs)
        if isinstance(value, fx.Node) and _is_tensor(value)
    }


def _is_tensor(node: fx.Node) -> bool:
    return "torch_dtype" in mase(node).common.results.get("data_out_0", {})


def dtype_of(node: fx.Node, name: str) -> torch.dtype:
    """The dtype in which torch stores an argument; the metadata of a parameter lacks it."""
    args, module = mase(node).common.args, mase(node).module
    if module is not None and name not in args:
        return parameters_by_operand(module)[name].dtype
    tensor = args.tensor(name)
    if "torch_dtype" in tensor or module is None:
        return tensor.torch_dtype
    parameter: torch.Tensor = deepgetattr(module, name)  # in a masked layer it is not a parameter
    return parameter.dtype


def operand_shape(node: fx.Node, name: str) -> list[int]:
    """Return the shape of an argument; metadata list what a parametrized weight is made from."""
    args, module = mase(node).common.args, mase(node).module
    if module is not None and name not in args:
        return list(parameters_by_operand(module)[name].shape)
    return list(args.tensor(name).shape)


def _result_format(op: str, formats: Mapping[str, NumberFormat]) -> NumberFormat | None:
    """The format of `data_out`, or the input's grid if results stay on it."""
    if not has_trait(op, "keeps_grid") or "data_out" in formats:
        return formats.get("data_out")
    grid = formats.get("data_in")
    return grid if grid is not None and grid.has_zero else None
