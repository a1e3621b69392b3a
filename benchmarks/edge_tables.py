"""Training steps per second of a population of networks of tables on edges.

    python benchmarks/edge_tables.py --threads 1
    python benchmarks/edge_tables.py --train 1500

All networks take one step together, with their own batches. "codes" evaluates the functions for
the codes of the inputs, and samples look results up; "samples" evaluates them for every sample;
"one tensor" does the same without vmap, with the networks as a dimension of every tensor, and
rounds by a few plain operations. With `--train`, networks with a price per LUT each are trained on
jsc-sim for so many steps, and their accuracy on the test split and their LUTs are listed.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from chop.dataset import get_dataset_info
from chop.dataset.jsc_sim import jsc_sim
from chop.methods.edge_tables import edge_table
from chop.models import get_model

Step = Callable[[Tensor, Tensor], Tensor]  # the losses of all networks, for inputs and classes


class WithCost(nn.Module):
    """A network that returns its scores and its LUTs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tables = [m for m in self.network.modules() if isinstance(m, edge_table.EdgeTable)]
        return self.network(x), sum((t.bit_cost("lut") for t in tables), x.new_zeros(()))


class VmappedPopulation:
    """Networks under vmap, as a trainer has them."""

    def __init__(self, count: int, function: str) -> None:
        info = get_dataset_info("jsc-sim")
        self.networks = [
            WithCost(get_model("jsc-table", task="cls", dataset_info=info, function=function))
            for _ in range(count)
        ]
        self.base = copy.deepcopy(self.networks[0])
        self.parameters, self.buffers = stack_module_state(self.networks)

    def tensors(self) -> list[Tensor]:
        return list(self.parameters.values())

    def losses(self, x: Tensor, y: Tensor, price: Tensor | float = 0.0) -> Tensor:
        def of_one(p: Any, b: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            scores, cost = functional_call(self.base, (p, b), (x,))
            return F.cross_entropy(scores, y), cost

        loss, cost = vmap(of_one)(self.parameters, self.buffers, x, y)
        return loss + price * cost

    def trained(self) -> list[nn.Module]:
        """Return the networks with the parameters that were trained."""
        for number, network in enumerate(self.networks):
            state = {**self.parameters, **self.buffers}
            network.load_state_dict({k: v[number].detach() for k, v in state.items()})
        return [network.network.eval() for network in self.networks]


class OneTensor:
    """The networks as the first dimension of all tensors."""

    def __init__(self, count: int) -> None:
        self.layers = [self._layer(count, 16, 20), self._layer(count, 20, 5)]

    def _layer(self, count: int, n_in: int, n_out: int) -> dict[str, Tensor]:
        edges, size = (count, n_in, n_out), 8
        start = {"i_in": 2.0, "f_in": 3.0, "i_out": 1.0, "f_out": 4.0}
        made = {name: torch.full(edges, bits) for name, bits in start.items()}
        made |= {"w1": torch.randn(*edges, size), "b1": 0.5 * torch.randn(*edges, size)}
        made |= {"w2": size**-0.5 * torch.randn(*edges, size)}
        made |= {"gain": torch.ones(count, n_out), "shift": torch.zeros(count, n_out)}
        return {name: tensor.requires_grad_() for name, tensor in made.items()}

    def tensors(self) -> list[Tensor]:
        return [tensor for layer in self.layers for tensor in layer.values()]

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        for p in self.layers:
            u = _fixed(x[..., None], p["i_in"][:, None], p["f_in"][:, None])
            hidden = torch.tanh(u[..., None] * p["w1"][:, None] + p["b1"][:, None])
            t = (hidden * p["w2"][:, None]).sum(-1)
            mean, var = t.mean((1, 2)), t.var((1, 2))
            scale = (p["gain"] * torch.rsqrt(var + 1e-3))[:, None, None]
            z = (t - mean[:, None, None]) * scale + p["shift"][:, None, None]
            z = z / math.sqrt(x.shape[-1])
            x = _fixed(z, p["i_out"][:, None], p["f_out"][:, None]).sum(2)
        return F.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="none").view(len(y), -1)


def _fixed(x: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """Return x in fixed point, with straight-through gradients of plain operations."""
    i, f = (bits + (bits.round() - bits).detach() for bits in (i, f))
    step, top = torch.exp2(-f), torch.exp2(i)
    steps = torch.maximum(torch.minimum(x, top - step), step - top) / step
    whole = torch.floor(steps + 0.5).detach() + (steps - steps.detach())
    return whole * step * (i + f > 0).to(x.dtype)


def speed(population: Any, batch: int, count: int, steps: int, repeats: int) -> float:
    """Return steps per second, the median of several runs."""
    x, y = torch.randn(count, batch, 16), torch.randint(5, (count, batch))
    optimiser = torch.optim.Adam(population.tensors(), 1e-3)

    def step() -> None:
        optimiser.zero_grad()
        population.losses(x, y).mean(-1).sum().backward()
        optimiser.step()

    step()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        found.append(steps / (time.perf_counter() - start))
    return statistics.median(found)


def compare(args: argparse.Namespace) -> None:
    rows = []
    for way in args.ways:
        torch.manual_seed(0)
        edge_table.FEW_SAMPLES = 2**40 if way == "samples" else 256
        made = OneTensor(args.nets) if way == "one tensor" else None
        population = made or VmappedPopulation(args.nets, args.function)
        per_second = speed(population, args.batch, args.nets, args.steps, args.repeats)
        samples = per_second * args.nets * args.batch
        rows.append({"Way": way, "Steps/s": per_second, "Net-steps/s": per_second * args.nets,
                     "Million samples/s": samples / 1e6})  # fmt: skip
    print(tabulate(rows, headers="keys", floatfmt=".2f"))


def train(args: argparse.Namespace) -> None:
    """Train networks with a price per LUT each, and list what came of them."""
    torch.manual_seed(0)
    data, test = jsc_sim("train"), jsc_sim("test")
    population = VmappedPopulation(args.nets, args.function)
    optimiser = torch.optim.Adam(population.tensors(), args.rate)
    prices = torch.logspace(math.log10(args.beta[0]), math.log10(args.beta[1]), args.nets)
    start = time.perf_counter()
    for number in range(args.train):
        part = number / args.train
        optimiser.param_groups[0]["lr"] = max(
            args.rate * 0.5 * (1 + math.cos(math.pi * part)), 1e-5
        )
        rows = torch.randint(len(data.y), (args.nets, args.batch))
        price = prices * min(max((part - 0.05) / 0.55, 0), 1)
        optimiser.zero_grad()
        population.losses(data.x[rows], data.y[rows], price).sum().backward()
        optimiser.step()
    print(f"{args.train} steps of {args.nets} networks in {time.perf_counter() - start:.0f} s")
    found = []
    for network in population.trained():
        tables = [m for m in network.modules() if isinstance(m, edge_table.EdgeTable)]
        with torch.no_grad():
            right = (network(test.x).argmax(1) == test.y).float().mean().item()
        luts = sum(t.bit_cost("lut", exact=True).item() for t in tables)
        edges = sum(int(t.live_edges().sum()) for t in tables)
        found.append({"LUTs": luts, "Accuracy": 100 * right, "Edges": edges})
    found.sort(key=lambda row: row["LUTs"])
    print(tabulate(found, headers="keys", floatfmt=".2f"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", type=int, default=16)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--function", choices=["mlp", "spline"], default="mlp")
    ways = ["codes", "samples", "one tensor"]
    parser.add_argument("--ways", nargs="*", choices=ways, default=ways)
    parser.add_argument("--train", type=int, default=0, metavar="STEPS")
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--beta", type=float, nargs=2, default=[3e-6, 1e-3])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(args) if args.train else compare(args)


if __name__ == "__main__":
    main()
