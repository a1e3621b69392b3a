"""Zero-cost proxies: scores of an untrained network from one batch and at most one gradient.

Gradients and statistics are those of copies, so that the candidate does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.func import functional_call

from chop.actions.search.metrics.base import Metrics, Runner, RunnerContext, Trial, register_runner
from chop.actions.search.metrics.samples import Batch, Loader, seeded_batch, split_of
from chop.actions.search.metrics.state import copied_buffers, isolated
from chop.dataset.matching import ForwardSignature
from chop.dataset.nested import Inputs, copied, map_tensors, tensors_of
from chop.ir.ops import identify, ops_with
from chop.options import PositiveInt
from chop.registry import not_defined
from chop.training.outputs import prediction_and_scores, prediction_of
from chop.training.tasks import task_named

RIDGE = 1e-5  # keeps logarithms finite if samples are indistinguishable
Tensors = dict[str, Tensor]


class Proxy(Runner):
    """A score from one batch that is drawn with the seed of the search; higher is better."""

    training = True  # whether batch norms use the statistics of the batch, as in a first step

    def __init__(
        self,
        context: RunnerContext,
        *,
        batch_size: PositiveInt = 64,
        data_loader: Loader = "train_dataloader",
    ) -> None:
        super().__init__(context)
        self._split, self._batch_size = split_of(context, data_loader, self.name), batch_size

    @cached_property
    def _batch(self) -> Batch:
        return seeded_batch(self.context, self._split, self._batch_size)

    def __call__(self, trial: Trial) -> Metrics:
        with isolated(trial.model, self.context.device, trial.seed, training=self.training):
            return {self.name: float(self.score(trial, *self._batch))}

    def score(self, trial: Trial, x: Inputs, y: Tensor) -> Tensor:
        raise not_defined(self, "score", "zero-cost proxy")


def _weight_gradients(
    trial: Trial, context: RunnerContext, x: Inputs, y: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the weights of each layer, and the gradient of the loss with respect to them."""
    named = trial.model.named_parameters()
    parameters = {n: p.detach().clone().requires_grad_() for n, p in named}
    tensors, task = {**parameters, **copied_buffers(trial.model)}, task_named(context.task)
    outputs, scores, _ = prediction_and_scores(lambda: _result(trial.model, tensors, copied(x)))
    if scores is not None and task.of_scores:
        outputs = scores
    return _gradients(task.loss(outputs.float(), y), parameters)


def _output(model: nn.Module, tensors: Tensors, x: Inputs) -> Tensor:
    """Return the prediction of a model with other parameters and buffers."""
    return prediction_of(_result(model, tensors, x))


def _result(model: nn.Module, tensors: Tensors, x: Inputs) -> Any:
    positional, by_name = ForwardSignature.of(model).arguments(x)
    return functional_call(model, tensors, positional, by_name)


def _gradients(value: Tensor, parameters: Tensors) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield weights and gradients without those of biases and norms, as in the papers."""
    weights = [p for p in parameters.values() if p.dim() > 1]
    gradients = torch.autograd.grad(value, weights, allow_unused=True)
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is not None:
            yield weight.detach().double(), gradient.double()


@register_runner("grad_norm", "software", grad_norm="maximize")
class GradNorm(Proxy):
    """Sum over the layers of the Euclidean norm of the weights' gradient (Abdelfattah et al. 2021).

    The loss is that of the task on one batch in train mode.
    """

    def score(self, trial: Trial, x: Inputs, y: Tensor) -> Tensor:
        gradients = _weight_gradients(trial, self.context, x, y)
        return _total(gradient.norm() for _, gradient in gradients)


@register_runner("snip", "software", snip="maximize")
class Snip(Proxy):
    """Sum of |weight · gradient|, the connection sensitivity (Lee, Ajanthan, Torr 2019)."""

    def score(self, trial: Trial, x: Inputs, y: Tensor) -> Tensor:
        gradients = _weight_gradients(trial, self.context, x, y)
        return _total((weight * gradient).abs().sum() for weight, gradient in gradients)


@register_runner("synflow", "software", synflow="maximize")
class SynFlow(Proxy):
    """Sum of weight · gradient of the summed output for an input of ones (Tanaka et al. 2020).

    Parameters count with their absolute values and batch norms with mean 0 and variance 1, so that
    the score does not depend on data; it is in float64, as it grows with every layer.
    """

    training = False

    def score(self, trial: Trial, x: Inputs, y: Tensor) -> Tensor:
        model = trial.model
        parameters = {
            name: p.detach().abs().double().requires_grad_() for name, p in model.named_parameters()
        }
        flow = _output(model, {**parameters, **_neutral_buffers(model)}, _ones(x)).sum()
        return _total((weight * grad).sum() for weight, grad in _gradients(flow, parameters))


def _ones(x: Inputs) -> Inputs:
    """Return one sample of ones; integers, which may be indices, stay."""

    def one(tensor: Tensor) -> Tensor:
        first = tensor[:1]
        is_float = first.is_floating_point()
        return torch.ones_like(first, dtype=torch.float64) if is_float else first

    return map_tensors(one, x)


def _neutral_buffers(model: nn.Module) -> Tensors:
    """Return statistics of mean 0 and variance 1, and the absolute values of other buffers."""
    buffers = copied_buffers(model)
    for name, buffer in buffers.items():
        if name.endswith("running_mean"):
            buffer.zero_()
        elif name.endswith("running_var"):
            buffer.fill_(1)
    return {n: b.abs().double() if b.is_floating_point() else b for n, b in buffers.items()}


@register_runner("naswot", "software", naswot="maximize")
class NasWot(Proxy):
    """log |K|, where K counts in how many activations two samples agree (Mellor et al. 2021).

    Activations agree where both are positive or neither is.
    """

    needs_graph = True

    def score(self, trial: Trial, x: Inputs, y: Tensor) -> Tensor:
        model = trial.model if isinstance(trial.model, fx.GraphModule) else trial.graph.model
        recorder = _CodeRecorder(model)
        buffers = {f"model.{name}": b for name, b in copied_buffers(model).items()}
        with torch.no_grad():
            functional_call(recorder, buffers, (copied(x),))
        if not recorder.codes:
            raise ValueError(
                f"naswot needs activations such as relu, but this network has none; supported "
                f"activations: {', '.join(sorted(ops_with('signed')))}"
            )
        codes = torch.cat(recorder.codes, 1).double()
        agreeing = codes @ codes.T + (1 - codes) @ (1 - codes).T
        agreeing.diagonal().add_(RIDGE)
        return torch.as_tensor(torch.linalg.slogdet(agreeing).logabsdet)


class _CodeRecorder(nn.Module):
    """Runs a model node by node, and records which activations are positive."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__()
        self.model, self.codes = model, list[Tensor]()

    def forward(self, x: Inputs) -> Any:
        by_name = ForwardSignature.of(self.model).match(x)
        # in the order of the placeholders; those that are missing have defaults
        nodes = self.model.graph.find_nodes(op="placeholder")
        values = [by_name[str(node.target)] for node in nodes if str(node.target) in by_name]
        return _RecordingInterpreter(self.model, self.codes).run(*values)


class _RecordingInterpreter(fx.Interpreter):
    def __init__(self, model: fx.GraphModule, codes: list[Tensor]) -> None:
        super().__init__(model)
        self.codes = codes

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        module = self.module.get_submodule(str(n.target)) if n.op == "call_module" else None
        if n.op.startswith("call_") and "signed" in identify(n, module).traits:
            self.codes.append((result > 0).flatten(1))
        return result


@register_runner("jacob_cov", "software", jacob_cov="maximize")
class JacobCov(Proxy):
    """How little the Jacobians of different samples correlate (Mellor et al. 2020, first version).

    With the eigenvalues v of their correlation matrix, -sum(log(v + k) + 1 / (v + k)), k = 1e-5.
    Batch norms use their running statistics, so that each sample has its Jacobian.
    """

    training = False

    def score(self, trial: Trial, x: Inputs, y: Tensor) -> Tensor:
        x = map_tensors(lambda t: t.clone().requires_grad_(t.is_floating_point()), x)
        fixed = {n: p.detach() for n, p in trial.model.named_parameters()}
        tensors = {**fixed, **copied_buffers(trial.model)}
        output = _output(trial.model, tensors, copied(x))
        inputs = [tensor for tensor in tensors_of(x) if tensor.requires_grad]
        if not inputs:
            raise ValueError("jacob_cov needs an input of real numbers; use another proxy")
        jacobians = torch.autograd.grad(output.sum(), inputs, allow_unused=True)
        parts = [j.reshape(len(y), -1) for j in jacobians if j is not None]
        rows = torch.cat(parts, 1).double()
        rows = F.normalize(rows - rows.mean(1, keepdim=True))
        spread: Tensor = torch.linalg.eigvalsh(rows @ rows.T).clamp(min=0) + RIDGE
        return -(spread.log() + 1 / spread).sum()


def _total(parts: Iterable[Tensor]) -> Tensor:
    return sum(parts, torch.zeros((), dtype=torch.float64))
