"""Keep layers and functions whole while torch.export traces a model.

A call of a leaf becomes one call of the operator `mase::leaf`, which torch.export records as one
node. On the fake tensors of torch.export the operator runs the leaf itself, so that its results
have the right shapes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from chop.ir.graph.tracer import MaseTracer, attributes_restored, wrapped_functions
from chop.ir.nested import TRACED, filled, separated

_ACTIVE: list[LeafCalls] = []


@dataclass
class LeafCall:
    """One call: what is called, and the structure of its arguments and of its results."""

    target: str | Callable[..., Any]  # the dotted name of a module, or a function
    run: Callable[..., Any]
    arguments: Any  # template of (args, kwargs)
    kinds: list[bool]  # whether each slot holds a tensor, not a size
    results: Any = None


@cache
def leaf_operator() -> Any:
    """Return the operator `mase::leaf`, defined at the first use."""

    def leaf(tensors: list[Tensor], sizes: list[int], call: int) -> list[Tensor]:
        raise RuntimeError("mase::leaf is replaced by the layer itself before a graph runs")

    defined = torch.library.custom_op("mase::leaf", leaf, mutates_args=())
    defined.register_fake(lambda tensors, sizes, call: _ACTIVE[-1].results(call, tensors, sizes))
    operator = torch.ops.mase.leaf.default
    torch.fx.node.has_side_effect(operator)  # a leaf may write in place or count its calls
    return operator


class LeafCalls:
    """The calls of leaves during one export, by number."""

    def __init__(self, model: nn.Module, tracer: MaseTracer) -> None:
        self.model, self.tracer = model, tracer
        self.calls: list[LeafCall] = []
        self.path: list[tuple[str, nn.Module]] = [("", model)]  # of the module that is running
        self.examples: list[Any] = []  # results of each call in a real run
        self.by_value: set[Any] = set()  # leaves that cannot run on fake tensors
        self.failed = False  # by one more of these
        self._inside = self._recording = False

    def is_inside(self) -> bool:
        """Return whether a leaf is running, of which nothing is recorded."""
        return self._inside

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Replace the calls of all leaves inside."""
        self.calls, self.path = [], [("", self.model)]
        leaf_operator()
        with attributes_restored(self.model), self._functions_replaced():
            for name, module in self.model.named_modules():
                if isinstance(module, torch.jit.ScriptModule) or module is self.model:
                    continue
                leaf = self.tracer.is_leaf_module(module, name)
                # calls of a module look up this method, which is private; forward() would be too
                # late, as hooks and parametrizations run before it
                vars(module)["_call_impl"] = (self._leaf if leaf else self._entered)(name, module)
            _ACTIVE.append(self)
            try:
                yield
            finally:
                _ACTIVE.remove(self)

    def _leaf(self, name: str, module: nn.Module) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            return nn.Module._call_impl(module, *args, **kwargs)

        return self.recorded(name, run)

    def _entered(self, name: str, module: nn.Module) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.path.append((name, module))
            result = nn.Module._call_impl(module, *args, **kwargs)
            self.path.pop()  # not reached on an error, so that the innermost module is known
            return result

        return run

    def recorded(
        self, target: str | Callable[..., Any], run: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a function that calls `run` as a leaf."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return run(*args, **kwargs)
            if self._recording:
                return self._example(run, args, kwargs)
            self._refuse_packed(target, (*args, *kwargs.values()))
            template, found = separated((args, kwargs), TRACED)
            kinds = [isinstance(value, Tensor) for value in found]
            number = len(self.calls)
            self.calls.append(LeafCall(target, run, template, kinds))
            tensors = [value for value in found if isinstance(value, Tensor)]
            sizes = [value for value in found if not isinstance(value, Tensor)]
            results = leaf_operator()(tensors, sizes, number)
            return filled(self.calls[number].results, results)

        return call

    def _refuse_packed(self, target: str | Callable[..., Any], values: tuple[Any, ...]) -> None:
        """Refuse packed sequences, whose shapes depend on the values of the lengths."""
        if any(isinstance(value, nn.utils.rnn.PackedSequence) for value in values):
            raise NotImplementedError(
                f"the layer {target!r} is given packed sequences, whose shapes depend on the "
                f"values of the lengths; give it the padded sequences, and read the step at each "
                f"length with torch.gather"
            )

    def results(self, number: int, tensors: list[Tensor], sizes: list[Any]) -> list[Tensor]:
        """Run a leaf on fake tensors, note the structure of its results, and return them."""
        call = self.calls[number]
        given = {True: iter(tensors), False: iter(sizes)}
        args, kwargs = filled(call.arguments, [next(given[kind]) for kind in call.kinds])
        if call.target in self.by_value:
            call.results, examples = separated(self.examples[number])
            return [_like(example, tensors) for example in examples]
        self._inside = True
        try:
            # nothing inside is recorded; torch documents this name, which has no public one
            with torch._C.DisableTorchFunction():
                results = _of_recurrent(self._module(call), args) or call.run(*args, **kwargs)
                call.results, found = separated(results)
        except Exception:
            self.failed = True
            self.by_value.add(call.target)
            raise
        finally:
            self._inside = False
        return [tensor.clone() for tensor in found]  # an operator may not return its arguments

    def _module(self, call: LeafCall) -> nn.Module | None:
        return self.model.get_submodule(call.target) if isinstance(call.target, str) else None

    def record_examples(self, run: Callable[[], Any]) -> None:
        """Run the model for real and keep the results of leaves, for those that need values."""
        self.examples, self._recording = [], True
        try:
            with self.replaced(), torch.no_grad(), _buffers_restored(self.model):
                run()
        except Exception:
            self.by_value.clear()
            raise
        finally:
            self._recording = self.failed = False

    def _example(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        number = len(self.examples)
        self.examples.append([])
        self._inside = True
        try:
            result = run(*args, **kwargs)
        finally:
            self._inside = False
        self.examples[number] = result
        return result

    @contextmanager
    def _functions_replaced(self) -> Iterator[None]:
        replaced = list(_places(self.model, self.tracer))
        try:
            for table, name, function in replaced:
                table[name] = self.recorded(function, function)
            yield
        finally:
            for table, name, function in replaced:
                table[name] = function


RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)


def _of_recurrent(module: nn.Module | None, args: tuple[Any, ...]) -> Any:
    """Return fake results of a recurrent layer; torch would loop over time, and fix its length."""
    x = args[0] if args else None
    if type(module) not in RECURRENT or not isinstance(x, Tensor) or x.dim() != 3:
        return None
    layer: Any = module
    ways, width = 1 + layer.bidirectional, layer.proj_size or layer.hidden_size
    batch = x.shape[0 if layer.batch_first else 1]
    out = x.new_empty(x.shape[0], x.shape[1], ways * width)
    state = x.new_empty(ways * layer.num_layers, batch, width)
    cell = x.new_empty(ways * layer.num_layers, batch, layer.hidden_size)
    return out, (state, cell) if isinstance(layer, nn.LSTM) else state


@contextmanager
def _buffers_restored(model: nn.Module) -> Iterator[None]:
    """Restore what a run changes: statistics of BatchNorm, and random numbers."""
    kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for buffer, values in kept:
                buffer.copy_(values)


def _like(example: Tensor, tensors: list[Tensor]) -> Tensor:
    """Return a fake result of the example's shape, with the sizes of the arguments where equal."""
    sizes: list[Any] = list(example.shape)
    for place, size in enumerate(example.shape):
        for tensor in tensors:
            if tensor.dim() > place and _hint(tensor.shape[place]) == size:
                sizes[place] = tensor.shape[place]
    return torch.empty(sizes, dtype=example.dtype, device=example.device)


def _hint(size: Any) -> Any:
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _places(
    model: nn.Module, tracer: MaseTracer
) -> Iterator[tuple[dict[str, Any], str, Callable[..., Any]]]:
    """Where functions that are kept whole are looked up: tables of globals, and their names."""
    whole = set(tracer.custom_leaf_functions)
    for module in tracer.custom_leaf_modules:
        public = (value for name, value in vars(module).items() if not name.startswith("_"))
        whole.update(value for value in public if isinstance(value, FunctionType))
    for (_, name), table in wrapped_functions().items():
        if isinstance(table.get(name), FunctionType):
            yield table, name, table[name]
    if not whole:
        return
    names = {type(module).__module__ for module in model.modules()}
    names |= {str(getattr(function, "__module__", "")) for function in whole}
    tables = [vars(sys.modules[name]) for name in names if name in sys.modules]
    forwards = [getattr(type(module).forward, "__globals__", None) for module in model.modules()]
    unique = {id(table): table for table in (*tables, *forwards) if table is not None}
    for table in unique.values():
        for name, value in list(table.items()):
            if isinstance(value, FunctionType) and value in whole:
                yield table, name, value
