"""Tell a model that fails on its example inputs from one that cannot be captured."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph.arguments import call_arguments, given_arguments
from chop.ir.graph.trace_errors import first_sentence
from chop.ir.graph.trial_runs import are_close, unchanged
from chop.ir.nested import filled, separated

MAX_ITEMS = 8  # of a dict or a list, in a message
SEVERAL_RESULTS = (nn.MultiheadAttention, nn.RNNBase, nn.LSTMCell)
# mistakes in forward(), whatever the inputs are
OF_FORWARD = (NameError, AttributeError, ImportError)


def failure_on_inputs(model: nn.Module, dummy_in: Any, fixed: Mapping[str, Any]) -> str | None:
    """Return a message if `model` itself fails on `dummy_in`, after running it once.

    Returns None where it runs, where forward() has a mistake, and on the meta device.
    """
    given = given_arguments(model, dummy_in, fixed)
    if _is_on_meta(model, given):
        return None
    try:
        _results(model, model, given, fixed)
    except OF_FORWARD:
        return None
    except Exception as error:
        params = inspect.signature(model.forward).parameters
        takes_any = any(params[name].kind is inspect.Parameter.VAR_KEYWORD for name in given)
        return _message(error, given, "names, " * takes_any)
    return None


def misreads_inputs(
    graph: fx.Graph, model: nn.Module, dummy_in: Any, fixed: Mapping[str, Any]
) -> bool:
    """Return whether a graph by torch.fx gives other results than `model`.

    torch.fx takes parts of nested inputs, and what attention and recurrent layers return, for
    tensors, which misleads `is None` and `isinstance`; other models are not run.
    """
    given = given_arguments(model, dummy_in, fixed)
    is_plain = all(isinstance(value, Tensor) for value in given.values())
    if (is_plain and not _has_several_results(graph, model)) or _is_on_meta(model, given):
        return False
    try:
        expected = _results(model, model, given, fixed)
    except Exception:  # of which passes tell, with the node
        return False
    inputs = {str(node.target).lstrip("*") for node in graph.find_nodes(op="placeholder")}
    read = {name: value for name, value in given.items() if name in inputs}
    try:
        return not are_close(_results(fx.GraphModule(model, graph), model, read, {}), expected)
    except Exception:
        return True


def _has_several_results(graph: fx.Graph, model: nn.Module) -> bool:
    """Whether a layer of a graph returns a tuple, which a model may test for None or its class."""
    layers = {model.get_submodule(str(node.target)) for node in graph.find_nodes(op="call_module")}
    return any(isinstance(layer, SEVERAL_RESULTS) for layer in layers)


def _is_on_meta(model: nn.Module, given: Mapping[str, Any]) -> bool:
    held = (*separated(given)[1], *model.parameters(), *model.buffers())
    return any(tensor.is_meta for tensor in held)


def _results(
    called: nn.Module, model: nn.Module, given: Mapping[str, Any], fixed: Mapping[str, Any]
) -> list[Tensor]:
    """Return the results of the model, or of a graph of it, which leaves `model` as it was."""
    template, tensors = separated(given)
    held = (*tensors, *model.parameters(), *model.buffers())
    with unchanged(model, held), torch.no_grad():
        own = filled(template, [tensor.detach().clone() for tensor in tensors])
        args, kwargs = call_arguments(inspect.signature(called.forward), {**own, **fixed})
        return separated(called(*args, **kwargs))[1]


def _message(error: Exception, given: Mapping[str, Any], names: str) -> str:
    inputs = ", ".join(f"{name} = {_described(value)}" for name, value in given.items())
    kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
    checked = "the keys of dicts" if isinstance(error, KeyError) else f"{names}shapes and dtypes"
    return f"the model fails on dummy_in ({inputs}): {kind}{first_sentence(error)}; check {checked}"


def _described(value: Any) -> str:
    """Return `float32[2, 3]` for a tensor; containers show what they hold."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Mapping):
        return f"{{{_joined([f'{key!r}: {_described(each)}' for key, each in value.items()])}}}"
    if isinstance(value, list | tuple):
        return f"[{_joined([_described(each) for each in value])}]"
    return f"{value!r:.40}"


def _joined(items: list[str]) -> str:
    more = [f"and {len(items) - MAX_ITEMS} more"] if len(items) > MAX_ITEMS else []
    return ", ".join([*items[:MAX_ITEMS], *more])
