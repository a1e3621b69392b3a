"""Batches of data for a pass, and the tensors that a node takes and gives."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map_only

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import TensorMeta, mase
from chop.ir.operands import bind_operands, described, flatten
from chop.ir.ops import identify
from chop.passes.base import PassArgsError
from chop.passes.graph.describe.interpreter import input_values

logger = logging.getLogger(__name__)

NOT_ONE = (">= 2", "> 1", "2 <= ", "1 < ")  # in messages of checks that one sample does not pass


def check_generator(name: str, purpose: str, input_generator: Any) -> None:
    """Refuse what does not yield batches, which the pass `name` needs for a `purpose`."""
    if not isinstance(input_generator, Iterable):
        raise PassArgsError(
            f"pass {name!r} needs an input_generator to {purpose}: "
            f"an iterator of dicts such as {{'x': batch}}, not {type(input_generator).__name__}"
        )


def batches(
    graph: MaseGraph, input_generator: Any, num_samples: int
) -> Iterator[tuple[list[Any], int]]:
    """Yield inputs in the order of the model's arguments, and the number of samples in them.

    The last batch is cut so that there are `num_samples` samples in total, or one more
    if the graph refuses a single sample.
    """
    left, least = num_samples, least_size(graph)
    for values in input_generator:
        if not isinstance(values, Mapping):
            raise PassArgsError(
                f"input_generator yields dicts such as {{'x': batch}}, not {type(values).__name__}"
            )
        tensors = [v for v in tree_leaves(dict(values)) if isinstance(v, Tensor) and v.ndim]
        if not tensors:
            raise PassArgsError("input_generator yields a dict without a tensor in it")
        whole = len(tensors[0])
        if whole == 0:
            raise PassArgsError("input_generator yields an empty batch")
        size = min(whole, max(left, least))
        cut = tree_map_only(Tensor, partial(_first_rows, whole, size), dict(values))
        yield input_values(graph, cut, "input_generator"), size
        left -= size
        if left <= 0:
            return


def least_size(graph: MaseGraph) -> int:
    """Return the fewest samples to which a batch is cut: 2 if the graph refuses a single one."""
    checks = [str(node.args[1:]) for node in graph.nodes if node.target is torch._assert]
    return 2 if any(words in check for words in NOT_ONE for check in checks) else 1


def check_count(seen: int, wanted: int, unit: str = "samples") -> None:
    """Refuse a generator that yielded nothing; warn of one that ended early."""
    if seen == 0:
        raise PassArgsError("input_generator yields no batches; it must yield at least one")
    if seen < wanted:
        logger.warning("The data ended after %d of the %d requested %s", seen, wanted, unit)


def _first_rows(whole: int, size: int, x: Tensor) -> Tensor:
    """Return the first `size` samples of a tensor that has `whole` of them."""
    return x[:size] if x.ndim and len(x) == whole else x


def taken(node: fx.Node, args: Any, kwargs: Any) -> dict[str, Tensor]:
    """The tensors that a node takes, by operand name."""
    if node.op == "output":
        return numbered("data_in", args)
    module = mase(node).module
    args, kwargs = (described(value, lambda tensor: tensor) for value in (args, kwargs))
    operands = bind_operands(node, identify(node, module), module, args, kwargs)
    return {name: op.value for name, op in operands.items() if isinstance(op, TensorMeta)}


def numbered(prefix: str, value: Any) -> dict[str, Tensor]:
    """The tensors in `value` by name, numbered as in the metadata, where other values count too."""
    leaves = enumerate(flatten(value))
    return {f"{prefix}_{i}": leaf for i, leaf in leaves if isinstance(leaf, Tensor)}
