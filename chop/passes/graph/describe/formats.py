"""The number formats in which a node computes."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from chop.dotted import deepgetattr
from chop.ir.graph.mase_metadata import mase
from chop.ir.operands import NAMED_OPERANDS
from chop.ir.ops import OPS, StandIn, has_trait
from chop.numerics import NumberFormat, from_dtype
from chop.numerics.weight_cache import CachesWeights

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
        return module.formats
    if isinstance(node.target, FormattedFunction):
        return node.target.formats(node.kwargs["config"])
    return {}


def note_formats(node: fx.Node) -> None:
    """Write into the metadata the formats in which a node takes and returns its tensors."""
    common, formats = mase(node).common, node_formats(node)
    operands = operands_of(node)
    for name, tensor in common.args.tensors():
        dtype = dtype_of(node, name)
        fmt = formats.get(operands.get(name) or "") if dtype.is_floating_point else None
        tensor.format = fmt or from_dtype(dtype)
    result = common.results.get("data_out_0", {})
    if "torch_dtype" in result:
        result.format = _result_format(common.mase_op, formats) or from_dtype(result.torch_dtype)


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
        name if name in NAMED_OPERANDS else f"data_in_{next(number)}": operand
        for name, operand, value in function.arguments(node.args, node.kwargs)
        if isinstance(value, fx.Node) and _is_tensor(value)
    }


def _is_tensor(node: fx.Node) -> bool:
    return "torch_dtype" in mase(node).common.results.get("data_out_0", {})


def dtype_of(node: fx.Node, name: str) -> torch.dtype:
    """The dtype in which torch stores an argument; the metadata of a parameter lacks it."""
    tensor = mase(node).common.args.tensor(name)
    module = mase(node).module
    if "torch_dtype" in tensor or module is None:
        return tensor.torch_dtype
    parameter: torch.Tensor = deepgetattr(module, name)  # in a masked layer it is not a parameter
    return parameter.dtype


def _result_format(op: str, formats: Mapping[str, NumberFormat]) -> NumberFormat | None:
    """The format of `data_out`, or the input's grid if results stay on it, as those of relu do."""
    if op != "relu" or "data_out" in formats:
        return formats.get("data_out")
    grid = formats.get("data_in")
    return grid if grid is not None and grid(0.0) == 0.0 else None  # some formats have no zero
