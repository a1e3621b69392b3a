"""What `max_parallelism` buys: clock cycles, multipliers, memory and LUTs of a streaming circuit.

python benchmarks/streaming.py                       # a small LeNet on images of 28 x 28
python benchmarks/streaming.py --no-synthesis --samples 1000 --parallelism 1 16 256
python benchmarks/streaming.py --network ds-cnn --no-synthesis --samples 6 --parallelism 4 16 64
python benchmarks/streaming.py --network resnet-8 --no-synthesis --samples 4 --parallelism 16 64 256
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.dataset import get_dataset_info
from chop.hardware.simulation import Stalls, check_circuit
from chop.hardware.streaming import streaming_circuit
from chop.hardware.streaming.plan import make_plan
from chop.hardware.synthesis import synthesize_circuit
from chop.integers import IntegerGraph
from chop.ir import MaseGraph
from chop.models import get_model
from chop.passes import Pipeline

CONFIG = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5, "weight_width": 6}
CONFIG |= {"weight_frac_width": 5, "bias_width": 8, "bias_frac_width": 5}
PARALLELISM = (1, 4, 16, 64, 256)
HEADS = ("most", "interval", "simulated", "latency", "simulated", "multipliers", "kbit")
RESOURCES = ("LUT", "FF", "DSP", "BRAM")
WRONG = ("wrong codes", "cycles/s")


def lenet() -> nn.Module:
    """Return the network with random weights."""
    return get_model("lenet", task="cls", dataset_info=get_dataset_info("mnist"))


def ds_cnn(channels: int = 64) -> nn.Module:
    """Return a network of the shapes of DS-CNN, for keywords in spectrograms."""
    layers = [nn.Conv2d(1, channels, (10, 4), 2, (5, 1)), nn.ReLU()]
    for _ in range(4):
        depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        layers += [depthwise, nn.ReLU(), nn.Conv2d(channels, channels, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d((25, 5)), nn.Flatten(), nn.Linear(channels, 12))


class Block(nn.Module):
    """Two convolutions, and a shortcut that is one where sizes change."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1)
        self.short = nn.Conv2d(before, after, 1, stride) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv2(F.relu(self.conv1(x))) + self.short(x))


def resnet8() -> nn.Module:
    """Return a network of the shapes of ResNet-8, for images of 32 x 32."""
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    first = [nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU()]
    return nn.Sequential(*first, *blocks, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10))


NETWORKS = {
    "lenet": (lenet, (1, 28, 28)),
    "ds-cnn": (ds_cnn, (1, 49, 10)),
    "resnet-8": (resnet8, (3, 32, 32)),
}


def integers(network: str) -> IntegerGraph:
    """Return a network in integers, with random weights."""
    torch.manual_seed(0)
    make, shape = NETWORKS[network]
    graph = MaseGraph(make().eval())
    dummy = {str(next(iter(graph.nodes)).target): torch.zeros(2, *shape)}
    quantise = {"by": "type", "default": {"config": CONFIG}}
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": dummy}), ("quantize", quantise)]
    return Pipeline(steps)(graph)[0].to_integers()


def measure(
    graph: IntegerGraph, most: int, samples: int, synthesis: bool, folder: Path
) -> list[str]:
    """Return a row of the table."""
    circuit = streaming_circuit(graph, max_parallelism=most)
    total = make_plan(graph, most).total
    (port,) = circuit.inputs
    x = torch.randn(samples, *port.shape) * 2
    check = check_circuit(graph, circuit, [x], folder=folder, boundaries=False)
    start = time.perf_counter()
    stalled = check_circuit(
        graph, circuit, [x], folder=folder, boundaries=False, stalls=Stalls(0.5, 0.5)
    )
    speed = stalled.simulation.cycles / (time.perf_counter() - start)
    run = check.simulation
    row = [most, circuit.interval, round(run.interval), circuit.latency, run.latency]
    row += [total.multipliers, round(total.memory_bits / 1000)]
    cells = [f"{cell:,}" for cell in row]
    if synthesis:
        found = synthesize_circuit(circuit, folder=folder, timeout=None)
        cells += [f"{x:,}" for x in (found.packed_luts, found.ffs, found.dsps, found.brams)]
    wrong = check.mismatches + stalled.mismatches
    codes = 2 * samples * sum(each.size for each in circuit.outputs)
    return [*cells, f"{wrong} of {codes:,}", f"{speed:,.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="lenet")
    parser.add_argument("--parallelism", type=int, nargs="+", default=PARALLELISM)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--no-synthesis", action="store_true")
    options = parser.parse_args()
    heads = [*HEADS, *(() if options.no_synthesis else RESOURCES), *WRONG]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    graph = integers(options.network)
    with tempfile.TemporaryDirectory() as folder:
        for most in options.parallelism:
            row = measure(graph, most, options.samples, not options.no_synthesis, Path(folder))
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
