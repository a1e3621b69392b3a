"""Networks with the same layers, stacked: one computation trains and scores all of them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from chop.dataset.nested import Inputs, map_tensors
from chop.numerics.learned import LearnsBits
from chop.training.outputs import Predictor
from chop.training.scores import Score
from chop.training.tasks import CLASSIFICATION, TrainingTask

State = dict[str, Tensor]


class Priced(nn.Module):
    """A network that returns its prediction and what it costs."""

    def __init__(
        self, network: nn.Module, weights: Mapping[str, float], task: TrainingTask
    ) -> None:
        super().__init__()
        self.network, self.weights = network, dict(weights)
        self._predict = Predictor(network, scores=task.of_scores)
        self.learning = [layer for layer in network.modules() if isinstance(layer, LearnsBits)]

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        return self._predict(inputs), self.cost(exact=False)

    def learn_the_end(self, inputs: Inputs) -> None:
        """Run the network once as it is, so that compiled code knows how it ends."""
        self._predict.learn_the_end(inputs)

    def cost(self, *, exact: bool) -> Tensor:
        """Return the weighted sum of the costs of all layers that learn."""
        costs: Any = self.weights.items()
        parts = [
            weight * layer.bit_cost(name, exact=exact)
            for layer in self.learning
            for name, weight in costs
        ]
        return torch.stack(parts).sum()


class _CostOnly(nn.Module):
    """The same network, of which only the cost is computed."""

    def __init__(self, priced: Priced) -> None:
        super().__init__()
        self.network, self._cost = priced.network, priced.cost

    def forward(self) -> Tensor:
        return self._cost(exact=True)


class Members:
    """The parameters and buffers of all networks, one row each, and what is computed with them.

    Parameters that are numbers of bits are the last columns of `values`.
    """

    def __init__(
        self,
        models: Iterable[nn.Module],
        weights: Mapping[str, float],
        device: torch.device,
        task: TrainingTask = CLASSIFICATION,
    ) -> None:
        networks = [*models]
        network = copy.deepcopy(networks[0]).to(device)
        self.device, self.skeleton = device, Priced(network, weights, task).train()
        self._cost_only = _CostOnly(self.skeleton)
        learned = [name for name, p in network.named_parameters() if p.requires_grad]
        bits = set(width_names(network))
        self.names = sorted(learned, key=lambda name: name in bits)
        shapes = {name: p.shape for name, p in network.named_parameters()}
        self.shapes = [shapes[name] for name in self.names]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.num_weights = sum(
            n for name, n in zip(self.names, self.sizes, strict=True) if name not in bits
        )
        rows = [self._row(dict(model.named_parameters())) for model in networks]
        self.values = torch.stack(rows).to(device).requires_grad_()
        fixed = [
            {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
            | dict(model.named_buffers())
            for model in networks
        ]
        self.buffers: State = {
            name: torch.stack([row[name] for row in fixed]).to(device) for name in fixed[0]
        }

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def widths(self) -> Tensor:
        """The numbers of bits of all networks, as a view."""
        return self.values.detach()[:, self.num_weights :]

    def _row(self, parameters: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([parameters[name].detach().float().reshape(-1) for name in self.names])

    def parameters(self) -> State:
        """Return the parameters by name, one row for each network, with gradients to `values`."""
        parts = self.values.split(self.sizes, dim=1)
        each = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape(self.count, *shape) for name, part, shape in each}

    def _state(self) -> State:
        return {f"network.{n}": t for n, t in {**self.parameters(), **self.buffers}.items()}

    def forward(self, inputs: Inputs, *, shared: bool) -> tuple[Tensor, Tensor]:
        """Return the predictions and costs of all networks; `shared` inputs are those of each."""

        def one(state: State, x: Inputs) -> Any:
            return functional_call(self.skeleton, state, (x,))

        if self.count == 1:  # without vmap, whose operations cost more
            # the gradient of squeeze is a view, that of an index a copy into zeros
            state = {name: tensor.squeeze(0) for name, tensor in self._state().items()}
            x = inputs if shared else map_tensors(lambda tensor: tensor[0], inputs)
            prediction, cost = one(state, x)
            return prediction.unsqueeze(0), cost.unsqueeze(0)
        stacked: Any = vmap(one, in_dims=(0, None if shared else 0), randomness="different")
        predictions, costs = stacked(self._state(), inputs)
        return predictions, costs

    @torch.no_grad()
    def exact_costs(self) -> Tensor:
        """Return what each network costs once its widths are frozen."""

        def one(state: State) -> Any:
            return functional_call(self._cost_only, state, ())

        costs: Tensor = vmap(one)(self._state())
        return costs

    @torch.no_grad()
    def scores(self, batches: Iterable[tuple[Inputs, Tensor]], task: TrainingTask) -> list[Score]:
        """Return the score of each network in eval mode."""
        tallies = [task.tally() for _ in range(self.count)]
        self.skeleton.eval()
        for x, y in batches:
            predictions, _ = self.forward(x, shared=True)
            for tally, outputs in zip(tallies, predictions, strict=True):
                tally.add(outputs, y)
        self.skeleton.train()
        return [tally.score(lambda sums: sums) for tally in tallies]

    def row(self, member: int) -> State:
        """Return the parameters and buffers of a network, copied."""
        parameters = {name: t[member].detach() for name, t in self.parameters().items()}
        state = parameters | {name: buffer[member] for name, buffer in self.buffers.items()}
        return {name: tensor.clone().cpu() for name, tensor in state.items()}

    @torch.no_grad()
    def copy_row(self, source: int, target: int) -> None:
        """Let a network continue from the state of another."""
        self.values[target] = self.values[source]
        for buffer in self.buffers.values():
            buffer[target] = buffer[source]


def width_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters that are numbers of bits."""
    layers = {n: layer for n, layer in model.named_modules() if isinstance(layer, LearnsBits)}
    own = {id(p) for layer in layers.values() for p in layer.width_parameters().values()}
    return [name for name, parameter in model.named_parameters() if id(parameter) in own]
