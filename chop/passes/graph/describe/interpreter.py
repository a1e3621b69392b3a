"""Run a graph to observe it, and leave the model unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map_only

from chop.ir.graph.arguments import without_surplus
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.tracer import attributes_restored
from chop.passes.base import PassArgsError
from chop.registry import unknown
from chop.system.memory import OutOfMemory, memory_for

OWN_CHECK = "this graph is "  # how the messages of checks begin that exported graphs contain


class RunError(RuntimeError):
    """A node failed; the message names it and gives the reason in one sentence."""


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first tensor of a model."""
    tensors = (*model.parameters(), *model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module is in the mode that it was in.

    The flags are set directly, as a user's train() may do more, such as merging weights.
    """
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def restored_random_state(model: nn.Module) -> Iterator[None]:
    """Restore the random state on exit, so that numbers drawn inside have no effect outside."""
    devices = {t.device for t in (*model.parameters(), *model.buffers()) if t.is_cuda}
    with torch.random.fork_rng(devices=sorted(device.index for device in devices)):
        yield


class GraphRunner(fx.Interpreter):
    """Runs a graph node by node to observe it; an error names the node that failed.

    Subclasses observe nodes in `run_node`. Model, inputs and random state stay unchanged: it runs
    in eval mode and without gradients, on clones of the inputs and of all tensors of the model that
    functions read, as these may write in place or be a batch norm traced in train mode. `on_meta`
    runs with all tensors on the meta device instead, where nothing is computed.
    """

    keep_random_state = True  # a caller with many batches restores it once for all of them

    def __init__(self, model: fx.GraphModule, on_meta: bool = False) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self.on_meta = on_meta

    def run_unchanged(self, inputs: Sequence[Any]) -> Any:
        model = self.module
        with (
            torch.no_grad(),
            attributes_restored(model),
            evaluation_mode(model),
            restored_random_state(model) if self.keep_random_state else nullcontext(),
            torch.device("meta") if self.on_meta else nullcontext(),
        ):
            whole = _InterpretedModule(model, self.run)
            copies = tuple(self._copied(x) for x in inputs)
            return torch.func.functional_call(whole, self._stand_ins(), copies)

    def _stand_ins(self) -> dict[str, Tensor]:
        """Copies of the model's buffers, and of the parameters that functions read, to run with.

        On the meta device these are all its tensors.
        """
        read = {id(self.fetch_attr(str(n.target))) for n in self.graph.nodes if n.op == "get_attr"}
        lent = [
            *self.module.named_buffers(),
            *((k, p) for k, p in self.module.named_parameters() if self.on_meta or id(p) in read),
        ]
        return {f"model.{name}": self._copied(tensor) for name, tensor in lent}

    def _copied(self, value: Any) -> Any:
        device = "meta" if self.on_meta else None
        return tree_map_only(Tensor, lambda x: x.detach().to(device, copy=True), value)

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        return next(self.args_iter)  # one value per input; *args is a tuple, **kwargs a dict

    def run_node(self, n: fx.Node) -> Any:
        try:
            with memory_for(f"run the node {n.name!r}"):
                return super().run_node(n)
        except OutOfMemory:
            raise
        except Exception as error:
            raise RunError(self._explain(n, error)) from error

    def _explain(self, node: fx.Node, error: Exception) -> str:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        sources = node.all_input_nodes
        inputs = ", ".join(f"{source.name} = {_shape(self.env[source])}" for source in sources)
        missing = [n for n in sources if n.op == "placeholder" and self.env[n] is None]
        absent = [str(source.target) for source in missing]
        fix = "check the shapes, dtypes and values of the inputs"
        if self.on_meta:
            fix += ", or drop force_device_meta"
        if absent:
            frozen = ", ".join(f"{name!r}: None" for name in absent)
            fix = f"give {', '.join(absent)} a value, or MaseGraph(model, cf_args={{{frozen}}})"
        if node.target is torch._assert and reason.startswith(OWN_CHECK):
            return reason if "; " in reason else f"{reason}; {fix}"
        what = getattr(node.target, "__name__", node.target)
        failed = f"node {node.name!r} ({node.op} {what}) failed{inputs and ' on ' + inputs}"
        return f"{failed}: {reason}; {fix}"


class _InterpretedModule(nn.Module):
    """An interpreted model as a module, so that functional_call can replace its tensors."""

    def __init__(self, model: nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.run = model, run

    def forward(self, *inputs: Any) -> Any:
        return self.run(*inputs, enable_io_processing=False)


def _shape(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def input_name(node: fx.Node) -> str:
    """The name of a placeholder in forward(); fx renames the node of an input called `input`."""
    return str(node.target).lstrip("*")


def input_values(graph: MaseGraph, values: Mapping[str, Any], option: str) -> list[Any]:
    """A value for each input of the model: from `values`, its `additional_inputs`, or its default.

    `option` is the name of `values` for the user.
    """
    names = [input_name(node) for node in graph.inputs]
    rest = next((input_name(n) for n in graph.inputs if str(n.target).startswith("**")), None)
    values = without_surplus(values, names)
    for name, value in values.items():
        if name not in names and rest is None:
            raise PassArgsError(f"{option}: {unknown('input', name, names)}")
        if isinstance(value, np.ndarray):
            raise PassArgsError(
                f"{option}: the input {name!r} is a numpy array; give torch.from_numpy(array)"
            )
    if rest is not None:
        further = {name: value for name, value in values.items() if name not in names}
        values = {**values, rest: {**values.get(rest, {}), **further}}
    known = {**getattr(graph.model, "additional_inputs", {}), **values}
    required = [input_name(n) for n in graph.inputs if not n.args and "*" not in str(n.target)]
    return [_value(node, known, required, option) for node in graph.inputs]


def _value(node: fx.Node, known: Mapping[str, Any], required: list[str], option: str) -> Any:
    name, stars = input_name(node), str(node.target).count("*")
    if stars:  # *args and **kwargs may be empty
        return tuple(known.get(name, ())) if stars == 1 else dict(known.get(name, {}))
    if name not in known and not node.args:
        wanted = ", ".join(f"{n!r}: tensor" for n in required)
        raise PassArgsError(
            f"{option} has no value for the model's input {name!r}; "
            f"give {{{option!r}: {{{wanted}}}}}"
        )
    return known[name] if name in known else node.args[0]
