"""Tell a model that fails on its example inputs from one that cannot be captured."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from chop.ir.graph.export_front_end import bound_arguments, given_arguments
from chop.ir.graph.trace_errors import first_sentence
from chop.ir.graph.tracer import attributes_restored
from chop.ir.nested import filled, separated

MOST_ITEMS = 8  # of a dict or a list, in a message
# mistakes in forward(), whatever the inputs are
OF_FORWARD = (NameError, AttributeError, ImportError)


def failure_on_inputs(model: nn.Module, dummy_in: Any, fixed: Mapping[str, Any]) -> str | None:
    """Return a message if `model` itself fails on `dummy_in`, after running it once.

    Returns None where it runs, where forward() has a mistake, and on the meta device.
    """
    given = given_arguments(model, dummy_in, fixed)
    template, tensors = separated(given)
    held = (*tensors, *model.parameters(), *model.buffers())
    if any(tensor.is_meta for tensor in held):
        return None
    try:
        with _unchanged(model, held), torch.no_grad():
            own = filled(template, [tensor.detach().clone() for tensor in tensors])
            bound = bound_arguments(inspect.signature(model.forward), own | dict(fixed))
            model(*bound.args, **bound.kwargs)
    except OF_FORWARD:
        return None
    except Exception as error:
        return _message(error, given)
    return None


def _message(error: Exception, given: Mapping[str, Any]) -> str:
    inputs = ", ".join(f"{name} = {_described(value)}" for name, value in given.items())
    kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
    checked = "the keys of dicts" if isinstance(error, KeyError) else "shapes and dtypes"
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
    more = [f"and {len(items) - MOST_ITEMS} more"] if len(items) > MOST_ITEMS else []
    return ", ".join([*items[:MOST_ITEMS], *more])


@contextmanager
def _unchanged(model: nn.Module, held: tuple[Tensor, ...]) -> Iterator[None]:
    """Run with copies of the buffers; restore attributes and random number generators."""
    devices = {tensor.device for tensor in held if tensor.is_cuda}
    copies = {id(buffer): buffer.detach().clone() for buffer in model.buffers()}
    with torch.random.fork_rng(devices=list(devices)), attributes_restored(model):
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                own = {name: copies.get(id(buffer)) for name, buffer in module._buffers.items()}
                module._buffers.update(own)
        yield
