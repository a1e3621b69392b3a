"""The inputs of a layer, in the quantised network and in the float one, layer after layer.

All batches advance through the graph together, so that each layer runs once in each network. What
later nodes need is kept in between, up to a limit; beyond it, batches start from the beginning for
each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.tracer import attributes_restored
from chop.passes.base import PassArgsError
from chop.passes.graph.describe import batches as data
from chop.passes.graph.describe.batches import check_count, check_generator
from chop.passes.graph.describe.interpreter import (
    GraphRunner,
    RunError,
    device_of,
    evaluation_mode,
    restored_random_state,
)
from chop.passes.graph.transforms.metadata_sync import own_copy
from chop.passes.graph.transforms.quantize.quantized_funcs import QuantizedFunction
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.graph.transforms.repair.layers import QuantizedLayer, exchange_all
from chop.system.progress import progress_bar

Result = TypeVar("Result")

KEPT_BYTES = 4 * 2**30  # on a CPU; on a GPU, a quarter of its free memory

Modules = dict[nn.Module, nn.Module]  # what is called instead of a module


def samples_for(
    name: str, graph: MaseGraph, input_generator: Any, num_samples: int
) -> list[list[Any]]:
    """Return batches of inputs on the model's device, checked, for the pass `name`."""
    check_generator(name, "run the network on data", input_generator)
    device = device_of(graph.model)
    batches, count = [], 0
    for inputs, size in data.batches(graph, input_generator, num_samples):
        batches.append(tree_map_only(Tensor, lambda x: x.detach().to(device), inputs))
        count += size
        if any(_has_nan(leaf) for leaf in tree_leaves(inputs)):
            raise PassArgsError("input_generator yields NaN; remove such samples from the data")
    check_count(count, num_samples)
    watch_inputs(graph, batches[0], {})  # an error names the node that does not fit the data
    return batches


def _has_nan(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and bool(value.isnan().any())


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; on exit the model and the random state are what they were."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(attributes_restored(model))
        stack.enter_context(evaluation_mode(model))
        stack.enter_context(restored_random_state(model))
        yield


def float_twins(model: nn.Module) -> Modules:
    """Return each quantised layer with one that computes in float, on the same parameters."""
    twins: Modules = {}
    for layer in model.modules():
        if isinstance(layer, Quantized) and not hasattr(layer, "variant_name"):
            twin = own_copy(layer)
            assert isinstance(twin, Quantized)
            twin.bypass = True
            twins[layer] = twin
    return twins


class _BatchRun(GraphRunner):
    """One batch on its way through a graph."""

    def __init__(
        self, model: fx.GraphModule, inputs: Sequence[Any], modules: Modules, in_float: bool
    ) -> None:
        super().__init__(model)
        self.order = list(self.graph.nodes)
        self.modules, self.in_float, self.position = modules, in_float, 0
        self.args_iter = iter(self._copied(inputs))

    def advance(self, node: fx.Node) -> None:
        """Run all nodes before `node`, and forget values that no node reads any more."""
        while self.order[self.position] is not node:
            current = self.order[self.position]
            self.env[current] = self.run_node(current)
            for dead in self.user_to_last_uses.get(current, ()):
                del self.env[dead]
            self.position += 1

    def argument(self, node: fx.Node) -> Any:
        """Return the first argument of a node that is next."""
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        return args[0] if args else next(iter(kwargs.values()))

    def kept_bytes(self) -> int:
        tensors = [x for x in tree_leaves(list(self.env.values())) if isinstance(x, Tensor)]
        return sum({x.data_ptr(): x.nbytes for x in tensors}.values())

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._copied(super().get_attr(target, args, kwargs))  # functions may write to it

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.fetch_attr(target)
        return self.modules.get(module, module)(*args, **kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if self.in_float and isinstance(target, QuantizedFunction):
            kwargs = {**kwargs, "config": {**kwargs["config"], "bypass": True}}
        return super().call_function(target, args, kwargs)


class LayerInputs:
    """Gives the inputs of one layer after the other, in graph order.

    `replace` makes the quantised network compute with a repaired layer from then on.
    """

    def __init__(self, graph: MaseGraph, batches: Sequence[Sequence[Any]]) -> None:
        self.model, self.batches = graph.model, batches
        self.repaired: Modules = {}
        self.in_float = float_twins(graph.model)
        self.is_kept, self.limit = True, _limit(device_of(graph.model))
        self._runs: list[tuple[_BatchRun, _BatchRun]] = [self._start(b) for b in batches]

    def replace(self, layer: nn.Module, repaired: nn.Module) -> None:
        self.repaired[layer] = repaired

    def of(self, nodes: Sequence[fx.Node]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the layer's input in the quantised network and in the float one, per batch.

        A layer that several nodes call yields the inputs of all these calls.
        """
        try:
            yield from self._again(nodes) if len(nodes) > 1 or not self.is_kept else self._on(nodes)
        except RunError as error:
            raise PassArgsError(str(error)) from error.__cause__

    def _start(self, inputs: Sequence[Any]) -> tuple[_BatchRun, _BatchRun]:
        quantised = _BatchRun(self.model, inputs, self.repaired, in_float=False)
        return quantised, _BatchRun(self.model, inputs, self.in_float, in_float=True)

    def _on(self, nodes: Sequence[fx.Node]) -> Iterator[tuple[Tensor, Tensor]]:
        """Advance all batches to a node; forget them where they take more than the limit."""
        kept = 0
        for index, pair in enumerate(self._runs):
            yield self._inputs(pair, nodes[0])
            kept += sum(run.kept_bytes() for run in pair)
            self.is_kept = self.is_kept and kept <= self.limit
            if not self.is_kept:
                done = self._runs[: index + 1]
                for run in (run for finished in done for run in finished):
                    run.env.clear()
        if not self.is_kept:
            self._runs = []

    def _again(self, nodes: Sequence[fx.Node]) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs in self.batches:
            pair = self._start(inputs)
            for node in nodes:
                yield self._inputs(pair, node)

    def _inputs(self, pair: tuple[_BatchRun, _BatchRun], node: fx.Node) -> tuple[Tensor, Tensor]:
        for run in pair:
            run.advance(node)
        quantised, in_float = (run.argument(node) for run in pair)
        return quantised, in_float


def _limit(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else KEPT_BYTES


class _InputWatch(GraphRunner):
    """Runs a batch and shows the first argument of the watched nodes."""

    keep_random_state = False

    def __init__(
        self, model: fx.GraphModule, watched: Mapping[fx.Node, Callable[[Tensor], None]]
    ) -> None:
        super().__init__(model)
        self.watched = watched

    def run_node(self, n: fx.Node) -> Any:
        if n in self.watched:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self.watched[n](args[0] if args else next(iter(kwargs.values())))
        return super().run_node(n)


def watch_inputs(
    graph: MaseGraph,
    inputs: Sequence[Any],
    watched: Mapping[fx.Node, Callable[[Tensor], None]],
) -> None:
    """Run one batch, and call a function with the first argument of each watched node."""
    try:
        _InputWatch(graph.model, watched).run_unchanged(inputs)
    except RunError as error:
        raise PassArgsError(str(error)) from error.__cause__


def repair_in_order(
    graph: MaseGraph,
    batches: Sequence[Sequence[Any]],
    targets: Sequence[QuantizedLayer],
    title: str,
    change: Callable[[QuantizedLayer, LayerInputs], tuple[Quantized, Result]],
) -> dict[str, Result]:
    """Exchange layers one after the other; return what `change` says of each, by name.

    Each is changed on the inputs that the layers changed before it give. The graph itself changes
    at the end, when all of them are known.
    """
    changed: list[tuple[QuantizedLayer, Quantized]] = []
    results: dict[str, Result] = {}
    with unchanged(graph.model):
        inputs = LayerInputs(graph, batches)
        for target in progress_bar(targets, desc=title):
            new, results[target.name] = change(target, inputs)
            inputs.replace(target.layer, new)
            changed.append((target, new))
    exchange_all(graph, changed)
    return results
