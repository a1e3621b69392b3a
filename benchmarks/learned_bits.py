"""What a training step costs when bit widths are learned, as a ratio to fixed widths.

python benchmarks/learned_bits.py               # jsc-s and vgg7, medians of CPU time
python benchmarks/learned_bits.py --networks jsc-s --threads 1
python benchmarks/learned_bits.py --device cuda

Each row takes the steps of both networks in turn: forward, backward and Adam, for the same batch.
"fixed" is the network with `integer` of 8 bits for inputs, weights and biases of its linear and
conv layers. "layers" has the same layers with bits that learn, and a price on their cost in the
loss, as a user's own loop has it; "front" is a step of `train_front` with `way = "ramp"`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn

from chop.dataset import TensorSplit, get_dataset_info
from chop.ir import MaseGraph
from chop.models import get_model
from chop.numerics.fused import set_fused
from chop.numerics.learned import LearnsBits
from chop.passes import Pipeline, learn_bits_transform_pass, quantize_transform_pass
from chop.training.devices import Place
from chop.training.feed import Feed
from chop.training.learned.batches import MemberBatches
from chop.training.learned.members import Members
from chop.training.learned.options import FrontOptions
from chop.training.learned.phase import TrainingPhase
from chop.training.learned.prices import prices_of
from chop.training.tasks import CLASSIFICATION

Work = Callable[[], Any]


class Network(NamedTuple):
    dataset: str
    shape: tuple[int, ...]
    batch: int
    repeats: int
    classes: int


NETWORKS = {
    "jsc-s": Network("jsc-sim", (16,), 1024, 40, 5),
    "vgg7": Network("cifar10", (3, 32, 32), 16, 5, 10),
}
GRANULARITIES = ("tensor", "channel", "element")


def graph_of(name: str) -> MaseGraph:
    """Return a network with the metadata that passes need."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    info = get_dataset_info(network.dataset)
    graph = MaseGraph(get_model(name, task="cls", dataset_info=info))
    (inlet, *_) = [node for node in graph.nodes if node.op == "placeholder"]
    dummy_in = {str(inlet.target): torch.randn(2, *network.shape)}
    made, _ = Pipeline(["init_metadata", ("add_common_metadata", {"dummy_in": dummy_in})])(graph)
    return made


def fixed(name: str) -> nn.Module:
    """Return the network with 8 bits for its linear and conv layers."""
    config: dict[str, Any] = {"name": "integer"}
    for operand in ("data_in", "weight", "bias"):
        config |= {f"{operand}_width": 8, f"{operand}_frac_width": 5}
    op = "conv2d" if name == "vgg7" else "linear"
    chosen = {"linear": {"config": config}, op: {"config": config}}
    graph, _ = quantize_transform_pass(graph_of(name), {"by": "type", **chosen})
    return graph.model


def learning(name: str, granularity: str) -> nn.Module:
    """Return the network whose linear and conv layers learn their bits."""
    data_in = "tensor" if granularity == "tensor" else "channel"
    options = {"width": 8, "granularity": granularity, "data_in_granularity": data_in}
    graph, _ = learn_bits_transform_pass(graph_of(name), options)
    return graph.model


def step_of(model: nn.Module, x: Tensor, y: Tensor) -> Work:
    """Return a step of a loop of one's own; widths that learn have a price."""
    model.to(x.device).train()
    layers = [layer for layer in model.modules() if isinstance(layer, LearnsBits)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if layers:
            loss = loss + 1e-9 * torch.stack([layer.bit_cost("ebops") for layer in layers]).sum()
        loss.backward()
        optimizer.step()
        _wait(x)

    return step


def step_of_front(model: nn.Module, x: Tensor, y: Tensor) -> Work:
    """Return a step of a ramp."""
    options = FrontOptions(way="ramp", cost="ebops", price=[1e-9, 1e-9], learning_rate=1e-6)
    place = Place(x.device)
    feed = Feed(TensorSplit(x.cpu(), y.cpu()), len(x), place)
    members = Members([model], options.weights, place.device)
    batches = MemberBatches(feed, 1, 0, None)
    prices = prices_of(options, place.device)
    made = TrainingPhase(
        members, batches, options, CLASSIFICATION, steps=10**6, prices=prices, rate=1e-6
    )

    def step() -> None:
        made.take()
        _wait(x)

    return step


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def seconds(work: Work, device: str) -> float:
    """Return the time of a step: of the processor, which other programs do not disturb."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    work()
    return clock() - start


def ratio(usual: Work, ours: Work, repeats: int, device: str) -> float:
    """Return the median ratio of neighbouring runs."""
    for work in (usual, ours, usual, ours, ours, ours, ours):  # a capture needs some steps
        work()
    pairs = [(seconds(usual, device), seconds(ours, device)) for _ in range(repeats)]
    return statistics.median(b / a for a, b in pairs)


def measure(name: str, ways: Sequence[str], device: str) -> list[dict[str, Any]]:
    network = NETWORKS[name]
    x = torch.randn(network.batch, *network.shape, device=device)
    y = torch.randint(network.classes, (network.batch,), device=device)
    usual = step_of(fixed(name), x, y)
    rows = []
    for granularity in GRANULARITIES:
        row: dict[str, Any] = {"Network": name, "Batch": network.batch, "Bits per": granularity}
        for way in ways:
            model = learning(name, granularity)
            step = step_of(model, x, y) if way == "layers" else step_of_front(model, x, y)
            row[f"{way} / fixed"] = ratio(usual, step, network.repeats, device)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--ways", nargs="+", default=["layers", "front"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    set_fused("on")  # the first call waits for the C++ library
    where = args.device if args.device != "cpu" else f"{args.threads} threads"
    print(f"torch {torch.__version__}, {where}")
    rows = [row for name in args.networks for row in measure(name, args.ways, args.device)]
    print(tabulate(rows, headers="keys", floatfmt=".2f"))


if __name__ == "__main__":
    main()
