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
from chop.ir.ops import identify, ops_with
from chop.options import PositiveInt

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

    def score(self, trial: Trial, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError


def _weight_gradients(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the weights of each layer, and the gradient of the loss with respect to them."""
    parameters = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    logits = functional_call(model, {**parameters, **copied_buffers(model)}, (x.clone(),))
    return _gradients(F.cross_entropy(logits.float(), y), parameters)


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

    The loss is the cross entropy of one batch in train mode.
    """

    def score(self, trial: Trial, x: Tensor, y: Tensor) -> Tensor:
        gradients = _weight_gradients(trial.model, x, y)
        return _total(gradient.norm() for _, gradient in gradients)


@register_runner("snip", "software", snip="maximize")
class Snip(Proxy):
    """Sum of |weight · gradient|, the connection sensitivity (Lee, Ajanthan, Torr 2019)."""

    def score(self, trial: Trial, x: Tensor, y: Tensor) -> Tensor:
        gradients = _weight_gradients(trial.model, x, y)
        return _total((weight * gradient).abs().sum() for weight, gradient in gradients)


@register_runner("synflow", "software", synflow="maximize")
class SynFlow(Proxy):
    """Sum of weight · gradient of the summed output for an input of ones (Tanaka et al. 2020).

    Parameters count with their absolute values and batch norms with mean 0 and variance 1, so that
    the score does not depend on data; it is in float64, as it grows with every layer.
    """

    training = False

    def score(self, trial: Trial, x: Tensor, y: Tensor) -> Tensor:
        model = trial.model
        parameters = {
            name: p.detach().abs().double().requires_grad_() for name, p in model.named_parameters()
        }
        ones = torch.ones_like(x[:1], dtype=torch.float64)
        flow = functional_call(model, {**parameters, **_neutral_buffers(model)}, (ones,)).sum()
        return _total((weight * grad).sum() for weight, grad in _gradients(flow, parameters))


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

    def score(self, trial: Trial, x: Tensor, y: Tensor) -> Tensor:
        model = trial.model if isinstance(trial.model, fx.GraphModule) else trial.graph.model
        recorder = _CodeRecorder(model)
        buffers = {f"model.{name}": b for name, b in copied_buffers(model).items()}
        with torch.no_grad():
            functional_call(recorder, buffers, (x.clone(),))
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

    def forward(self, x: Tensor) -> Any:
        return _RecordingInterpreter(self.model, self.codes).run(x)


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

    def score(self, trial: Trial, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        fixed = {n: p.detach() for n, p in trial.model.named_parameters()}
        tensors = {**fixed, **copied_buffers(trial.model)}
        output = functional_call(trial.model, tensors, (x.clone(),))
        [jacobian] = torch.autograd.grad(output.sum(), x)
        rows = jacobian.flatten(1).double()
        rows = F.normalize(rows - rows.mean(1, keepdim=True))
        spread: Tensor = torch.linalg.eigvalsh(rows @ rows.T).clamp(min=0) + RIDGE
        return -(spread.log() + 1 / spread).sum()


def _total(parts: Iterable[Tensor]) -> Tensor:
    return sum(parts, torch.zeros((), dtype=torch.float64))
