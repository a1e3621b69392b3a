"""Networks that end in softmax or sigmoid: the scores of the classes, from which losses are taken.

A loss of probabilities would apply softmax twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS, identify, ops_with

CLASSES = 1  # the dimension of the classes in a prediction
PIXELS = -3  # that of Softmax2d, which has no attribute of it
_FUNCTIONS = {fn: name for name in ops_with("probabilities") for fn in OPS[name].functions}
# what keeps numbers and their order
_MOVING = {*ops_with("reshape"), "identity", "contiguous", "clone"}
_MOVES = {fn for name in _MOVING for fn in OPS[name].functions}
# the scores of probabilities, up to what softmax does not see
INVERSES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda p: p.clamp(min=torch.finfo(p.dtype).tiny).log(),
    "log_softmax": lambda p: p,
    "sigmoid": lambda p: p.logit(torch.finfo(p.dtype).eps / 2),
}


def final_op(model: fx.GraphModule) -> tuple[fx.Node, str] | None:
    """Return the softmax over classes whose result is all that a graph returns, and its op."""
    found = _final(model)
    return None if found is None else found[:2]


def _final(model: fx.GraphModule) -> tuple[fx.Node, str, fx.Node] | None:
    """Return the softmax at the end of a graph, its op, and the node that reads it."""
    (output,) = model.graph.find_nodes(op="output")
    if len(output.all_input_nodes) != 1:
        return None
    reader, (last,) = output, output.all_input_nodes
    while _op(last, model) in _MOVING and len(last.users) == len(last.all_input_nodes) == 1:
        reader, (last,) = last, last.all_input_nodes
    op = _op(last, model)
    # a sigmoid at the end may also be that of a picture
    if op not in ("softmax", "log_softmax"):
        return None
    (end,) = output.all_input_nodes
    shape, dim = _shape(last), _dim(last, model)
    if shape is None:  # without metadata: a class for each sample
        is_over = end is last and dim in (CLASSES, -1, None)
    else:
        is_over = _is_class(_classes(shape, dim), shape, _shape(end) or ())
    return (last, op, reader) if is_over else None


def _op(node: fx.Node, model: fx.GraphModule) -> str:
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    return identify(node, module).name


def _dim(node: fx.Node, model: fx.GraphModule) -> Any:
    """Return the dimension of a softmax; None: torch chooses it by the rank."""
    if node.op == "call_module":
        return getattr(model.get_submodule(str(node.target)), "dim", PIXELS)
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    """Return the shape of a result; None without metadata."""
    common = mase(node).common if "mase" in node.meta else {}
    return tuple(common["results"].tensor("data_out_0").shape) if "results" in common else None


def return_scores(model: fx.GraphModule) -> None:
    """Let a graph that ends in softmax return what enters it."""
    found = _final(model)
    if found is not None:
        final, _, reader = found
        reader.replace_input_with(final, final.all_input_nodes[0])
        model.recompile()


class KeepsScores(TorchFunctionMode):
    """Remembers what enters each softmax or sigmoid while a model runs."""

    def __init__(self) -> None:
        super().__init__()
        self._scores: tuple[Tensor, int, str] | None = None  # with the number of classes and the op
        self._results: list[Tensor] = []  # the result, and others with its numbers in their order

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        if func in _FUNCTIONS:
            classes = _classes_of(func, *args, **given)
            if classes is not None:
                entered = args[0] if args else given["input"]
                self._scores, self._results = (entered, classes, _FUNCTIONS[func]), [result]
        elif func in _MOVES and args and self._has(args[0]):
            self._results.append(result)
        return result

    def _has(self, x: Any) -> bool:
        return any(x is result for result in self._results)

    def origin(self, prediction: Tensor) -> tuple[Tensor | None, str]:
        """Return what a prediction was made of and by which op; nothing if by another one."""
        if self._scores is None or not self._has(prediction):
            return None, ""
        scores, classes, op = self._scores
        if not _is_class(classes, scores.shape, prediction.shape):
            return None, ""
        return scores.reshape(prediction.shape), op


def _classes_of(func: Any, input: Tensor, dim: Any = None, *rest: Any, **options: Any) -> Any:
    """Return the number of classes of a call; sigmoid takes each number by itself."""
    if _FUNCTIONS[func] != "sigmoid":
        return _classes(input.shape, dim)
    return input.shape[CLASSES] if input.dim() > CLASSES and input.shape[CLASSES] > 1 else None


def _classes(shape: Sequence[int], dim: Any) -> int | None:
    """Return the size of a softmax's dimension if it follows the samples; None for others."""
    rank = len(shape)
    if dim is None:  # as torch chooses
        dim = CLASSES if rank in (2, 4) else 0
    dim = dim % rank if rank else 0
    return shape[dim] if dim and all(size == 1 for size in shape[1:dim]) else None


def _is_class(classes: int | None, shape: Sequence[int], result: Sequence[int]) -> bool:
    """Return whether a softmax over so many is over the classes of a result with its numbers."""
    return classes is not None and tuple(result[: CLASSES + 1]) == (shape[0], classes)
