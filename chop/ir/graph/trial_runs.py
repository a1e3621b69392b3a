"""Runs of a model that leave it as it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from chop.ir.graph.tracer import attributes_restored
from chop.ir.nested import separated


@contextmanager
def unchanged(model: nn.Module, held: Sequence[Tensor]) -> Iterator[None]:
    """Run with copies of the buffers; restore attributes and random number generators."""
    devices = {tensor.device for tensor in held if tensor.is_cuda}
    copies = {id(buffer): buffer.detach().clone() for buffer in model.buffers()}
    with torch.random.fork_rng(devices=list(devices)), attributes_restored(model):
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                own = {name: copies.get(id(buffer)) for name, buffer in module._buffers.items()}
                module._buffers.update(own)
        yield


class _Functions(TorchFunctionMode):
    """Records the functions of torch that are called inside; `weights` are those to look for."""

    def __init__(self, weights: Collection[int] | None) -> None:
        super().__init__()
        self.weights, self.called = weights, list[Any]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        taken = [id(value) for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if self.weights is None:
            self.called.append(func)
        elif any(each in self.weights for each in taken):
            self.called.append((func, [each for each in taken if each in self.weights]))
        return func(*args, **kwargs)


@dataclass(frozen=True)
class TrialRun:
    """What a run of forward() did: the functions that it called, and its results."""

    functions: list[Any]
    results: list[Tensor]


@dataclass(frozen=True)
class TrialRuns:
    """Runs of a model's forward() on other tensors, to compare them."""

    model: nn.Module
    run: Callable[..., Any]

    def is_on_meta(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether there are no values to compare."""
        return any(tensor.is_meta for tensor in self._held(tensors))

    def _held(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [*tensors, *self.model.parameters(), *self.model.buffers()]

    def observed(self, tensors: Sequence[Tensor], only_of_weights: bool) -> TrialRun | None:
        """Return the functions that forward() calls and its results; None if it fails."""
        weights = {id(p) for p in self.model.parameters()} if only_of_weights else None
        functions = _Functions(weights)
        try:
            with unchanged(self.model, self._held(tensors)), torch.no_grad(), functions:
                results = self.run(*tensors)
        except Exception:
            return None
        return TrialRun(functions.called, separated(results)[1])

    def of_graph(self, graph: fx.Graph, given: Mapping[str, Any]) -> list[Tensor] | None:
        """Return the results of a graph for inputs by name; None if it fails."""
        nodes = graph.find_nodes(op="placeholder")
        inputs = {node: given[str(node.target).lstrip("*")] for node in nodes}
        held = self._held(separated(given)[1])
        try:
            with unchanged(self.model, held), torch.no_grad():
                results = fx.Interpreter(fx.GraphModule(self.model, graph)).run(initial_env=inputs)
        except Exception:  # of a check of sizes, for example
            return None
        return separated(results)[1]


def are_close(results: list[Tensor] | None, expected: list[Tensor]) -> bool:
    """Return whether results are the same but for rounding."""
    try:
        torch.testing.assert_close(results, expected, equal_nan=True)
    except (AssertionError, TypeError):
        return False
    return True


def with_noise(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return random numbers in the place of floating-point tensors."""
    with torch.random.fork_rng(devices=[]):
        return [
            torch.randn(t.shape, dtype=t.dtype).to(t.device) if t.is_floating_point() else t
            for t in tensors
        ]
