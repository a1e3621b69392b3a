"""Run a graph for what it shows, and leave no trace of it in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn


class RunError(RuntimeError):
    """A node that failed, by name, with the reason in one sentence."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module is in the mode that it was in."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def kept_random_state(model: nn.Module) -> Iterator[None]:
    """Random numbers drawn inside do not advance the generators outside."""
    devices = {t.device for t in (*model.parameters(), *model.buffers()) if t.is_cuda}
    with torch.random.fork_rng(devices=sorted(device.index for device in devices)):
        yield


class Runner(fx.Interpreter):
    """Runs a graph node by node, for what it shows; a node that fails is named.

    Subclasses look at nodes in `run_node`. Model, inputs and random state stay as they are: it runs
    in eval mode and without gradients, on clones of the buffers (a functional batch norm traced in
    train mode updates those) and of the inputs (the first op may be in-place). `on_meta` runs with
    all tensors on the meta device instead, where nothing is computed.
    """

    def __init__(self, model: fx.GraphModule, on_meta: bool = False) -> None:
        super().__init__(model)
        self.extra_traceback = False
        self.on_meta = on_meta

    def run_untouched(self, inputs: Sequence[Any]) -> Any:
        model = self.module
        device = torch.device("meta") if self.on_meta else nullcontext()
        with torch.no_grad(), evaluation_mode(model), kept_random_state(model), device:
            return torch.func.functional_call(
                _Lent(model, self.run), self._stand_ins(), tuple(self._copied(x) for x in inputs)
            )

    def _stand_ins(self) -> dict[str, Tensor]:
        """What to lend the model: all its tensors on the meta device, or clones of its buffers."""
        lent = list(self.module.named_buffers())
        if self.on_meta:
            lent += self.module.named_parameters()
        return {f"model.{name}": self._copied(tensor) for name, tensor in lent}

    def _copied(self, value: Any) -> Any:
        def copy(v: Any) -> Any:
            if not isinstance(v, Tensor):
                return v
            return v.detach().to("meta") if self.on_meta else v.detach().clone()

        return fx.node.map_aggregate(value, copy)

    def run_node(self, n: fx.Node) -> Any:
        try:
            return super().run_node(n)
        except Exception as error:
            raise RunError(self._explain(n, error)) from error

    def _explain(self, node: fx.Node, error: Exception) -> str:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        given = ", ".join(
            f"{source.name} = {_shape(self.env[source])}" for source in node.all_input_nodes
        )
        fix = "drop force_device_meta" if self.on_meta else "check the shapes and dtypes you give"
        what = node.target if isinstance(node.target, str) else node.target.__name__
        return (
            f"node {node.name!r} ({node.op} {what}) failed{given and ' on ' + given}: "
            f"{reason}; {fix}"
        )


class _Lent(nn.Module):
    """A model run by an interpreter, as a module, so that functional_call can lend it tensors."""

    def __init__(self, model: nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.run = model, run

    def forward(self, *inputs: Any) -> Any:
        return self.run(*inputs, enable_io_processing=False)


def _shape(value: Any) -> Any:
    return list(value.shape) if isinstance(value, Tensor) else type(value).__name__
