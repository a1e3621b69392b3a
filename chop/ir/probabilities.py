"""Networks that end in softmax or sigmoid: the scores of the classes, from which losses are taken.

A loss of probabilities would apply softmax twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS, identify, ops_with

CLASSES = 1  # the dimension of the classes in a prediction
PIXELS = -3  # that of Softmax2d, which has no attribute of it
_FUNCTIONS = {fn: name for name in ops_with("probabilities") for fn in OPS[name].functions}
# the scores of probabilities, up to what softmax does not see
INVERSES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda p: p.clamp(min=torch.finfo(p.dtype).tiny).log(),
    "log_softmax": lambda p: p,
    "sigmoid": lambda p: p.logit(torch.finfo(p.dtype).eps / 2),
}


def final_op(model: fx.GraphModule) -> tuple[fx.Node, str] | None:
    """Return the softmax over classes whose result is all that a graph returns, and its op."""
    (output,) = model.graph.find_nodes(op="output")
    if len(output.all_input_nodes) != 1:
        return None
    (last,) = output.all_input_nodes
    module = model.get_submodule(str(last.target)) if last.op == "call_module" else None
    op = identify(last, module).name
    # a sigmoid at the end may also be that of a picture
    if op not in ("softmax", "log_softmax") or not _is_over_classes(
        _dim(last, module), _rank(last)
    ):
        return None
    return last, op


def _dim(node: fx.Node, module: nn.Module | None) -> Any:
    """Return the dimension of a softmax; None: torch chooses it by the rank."""
    if module is not None:
        return getattr(module, "dim", PIXELS)
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")


def _rank(node: fx.Node) -> int:
    """Return the rank of a result; without metadata, that of a class for each sample."""
    common = mase(node).common if "mase" in node.meta else {}
    return len(common["results"].tensor("data_out_0").shape) if "results" in common else 2


def return_scores(model: fx.GraphModule) -> None:
    """Let a graph that ends in softmax return what enters it."""
    final = final_op(model)
    if final is not None:
        (output,) = model.graph.find_nodes(op="output")
        output.replace_input_with(final[0], final[0].all_input_nodes[0])
        model.recompile()


class KeepsScores(TorchFunctionMode):
    """Remembers what enters each softmax or sigmoid while a model runs."""

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[Tensor, Tensor, str] | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        if func in _FUNCTIONS and _is_by_class(func, *args, **given):
            self._last = result, args[0] if args else given["input"], _FUNCTIONS[func]
        return result

    def origin(self, prediction: Tensor) -> tuple[Tensor | None, str]:
        """Return what a prediction was made of and by which op; nothing if by another one."""
        if self._last is None or prediction is not self._last[0]:
            return None, ""
        return self._last[1:]


def _is_by_class(func: Any, input: Tensor, dim: Any = None, *rest: Any, **options: Any) -> bool:
    """Whether a softmax normalises over the classes; sigmoid takes each number by itself."""
    if _FUNCTIONS[func] == "sigmoid":
        return input.dim() > CLASSES and input.shape[CLASSES] > 1
    return _is_over_classes(dim, input.dim())


def _is_over_classes(dim: Any, rank: int) -> bool:
    return dim in (CLASSES, CLASSES - rank) or (dim is None and rank in (2, 4))
