"""Scores of a network that nobody has to train: one batch, a gradient at most.

Gradients are those of copies of the parameters, and statistics go into copies of the buffers, so
that nothing of it stays in the candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.func import functional_call

from chop.actions.search.metrics.base import (
    Direction,
    Metrics,
    Runner,
    RunnerContext,
    Trial,
    register_runner,
)
from chop.actions.search.metrics.samples import Batch, Loader, seeded_batch, split_of
from chop.actions.search.metrics.state import aside, lent_buffers
from chop.ir.ops import identify, ops_with
from chop.options import PositiveInt

RIDGE = 1e-5  # keeps logarithms finite where samples cannot be told apart
Tensors = dict[str, Tensor]


class Proxy(Runner):
    """A score from one batch that the seed of the search draws; the more the better."""

    training = True  # whether batch norms take the statistics of the batch, as in a first step

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
        with aside(trial.model, self.context.device, trial.seed, training=self.training):
            return {self.name: float(self.score(trial, *self._batch))}

    def score(self, trial: Trial, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError


def _weight_gradients(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The weights of each layer, and the gradient of the loss with respect to them."""
    parameters = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    logits = functional_call(model, {**parameters, **lent_buffers(model)}, (x.clone(),))
    return _gradients(F.cross_entropy(logits.float(), y), parameters)


def _gradients(value: Tensor, parameters: Tensors) -> Iterator[tuple[Tensor, Tensor]]:
    """Weights, not biases and norms: what the papers count."""
    weights = [p for p in parameters.values() if p.dim() > 1]
    found = torch.autograd.grad(value, weights, allow_unused=True)
    for weight, gradient in zip(weights, found, strict=True):
        if gradient is not None:
            yield weight.detach().double(), gradient.double()


@register_runner("grad_norm", "software")
class GradNorm(Proxy):
    """Sum over the layers of the Euclidean norm of the weights' gradient (Abdelfattah et al. 2021).

    The loss is the cross entropy of one batch in train mode.
    """

    metrics: Mapping[str, Direction] = {"grad_norm": "maximize"}

    def score(self, trial: Trial, x: Tensor, y: Tensor) -> Tensor:
        gradients = _weight_gradients(trial.model, x, y)
        return _total(gradient.norm() for _, gradient in gradients)


@register_runner("snip", "software")
class Snip(Proxy):
    """Sum of |weight · gradient|, the connection sensitivity (Lee, Ajanthan, Torr 2019)."""

    metrics: Mapping[str, Direction] = {"snip": "maximize"}

    def score(self, trial: Trial, x: Tensor, y: Tensor) -> Tensor:
        gradients = _weight_gradients(trial.model, x, y)
        return _total((weight * gradient).abs().sum() for weight, gradient in gradients)


@register_runner("synflow", "software")
class SynFlow(Proxy):
    """Sum of weight · gradient of the summed output for an input of ones (Tanaka et al. 2020).

    All parameters count with their absolute values, and batch norms as if they had seen mean 0 and
    variance 1, so that the score depends on no data; in float64, as it grows with every layer.
    """

    metrics: Mapping[str, Direction] = {"synflow": "maximize"}
    training = False

    def score(self, trial: Trial, x: Tensor, y: Tensor) -> Tensor:
        model = trial.model
        parameters = {
            name: p.detach().abs().double().requires_grad_() for name, p in model.named_parameters()
        }
        ones = torch.ones_like(x[:1], dtype=torch.float64)
        flow = functional_call(model, {**parameters, **_neutral_buffers(model)}, (ones,)).sum()
        return _total(
            (weight * gradient).sum() for weight, gradient in _gradients(flow, parameters)
        )


def _neutral_buffers(model: nn.Module) -> Tensors:
    """Statistics that change nothing, and all other buffers without their signs."""
    found = lent_buffers(model)
    for name, buffer in found.items():
        if name.endswith("running_mean"):
            buffer.zero_()
        elif name.endswith("running_var"):
            buffer.fill_(1)
    return {n: b.abs().double() if b.is_floating_point() else b for n, b in found.items()}


@register_runner("naswot", "software")
class NasWot(Proxy):
    """log |K|, where K counts in how many activations two samples agree (Mellor et al. 2021).

    Activations agree where both are positive or neither is.
    """

    metrics: Mapping[str, Direction] = {"naswot": "maximize"}

    def score(self, trial: Trial, x: Tensor, y: Tensor) -> Tensor:
        model = trial.model if isinstance(trial.model, fx.GraphModule) else trial.graph.model
        seen = _Codes(model)
        buffers = {f"model.{name}": b for name, b in lent_buffers(model).items()}
        with torch.no_grad():
            functional_call(seen, buffers, (x.clone(),))
        if not seen.codes:
            raise ValueError(
                f"naswot needs activations such as relu, but this network has none; supported "
                f"activations: {', '.join(sorted(ops_with('signed')))}"
            )
        codes = torch.cat(seen.codes, 1).double()
        agreeing = codes @ codes.T + (1 - codes) @ (1 - codes).T
        agreeing.diagonal().add_(RIDGE)
        _, score = torch.linalg.slogdet(agreeing)
        return torch.as_tensor(score)


class _Codes(nn.Module):
    """Runs a model node by node, and notes which activations are positive."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__()
        self.model, self.codes = model, list[Tensor]()

    def forward(self, x: Tensor) -> Any:
        return _Noting(self.model, self.codes).run(x)


class _Noting(fx.Interpreter):
    def __init__(self, model: fx.GraphModule, codes: list[Tensor]) -> None:
        super().__init__(model)
        self.codes = codes

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        module = self.module.get_submodule(str(n.target)) if n.op == "call_module" else None
        if n.op.startswith("call_") and "signed" in identify(n, module).traits:
            self.codes.append((result > 0).flatten(1))
        return result


@register_runner("jacob_cov", "software")
class JacobCov(Proxy):
    """How little the Jacobians of different samples correlate (Mellor et al. 2020, first version).

    With the eigenvalues v of their correlation matrix, -sum(log(v + k) + 1 / (v + k)), k = 1e-5.
    Batch norms use their statistics, so that a sample has a Jacobian of its own.
    """

    metrics: Mapping[str, Direction] = {"jacob_cov": "maximize"}
    training = False

    def score(self, trial: Trial, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        held = {n: p.detach() for n, p in trial.model.named_parameters()}
        output = functional_call(trial.model, {**held, **lent_buffers(trial.model)}, (x.clone(),))
        [jacobian] = torch.autograd.grad(output.sum(), x)
        rows = jacobian.flatten(1).double()
        rows = F.normalize(rows - rows.mean(1, keepdim=True))
        spread: Tensor = torch.linalg.eigvalsh(rows @ rows.T).clamp(min=0) + RIDGE
        return -(spread.log() + 1 / spread).sum()


def _total(parts: Iterable[Tensor]) -> Tensor:
    return sum(parts, torch.zeros((), dtype=torch.float64))
