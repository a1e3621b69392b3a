"""What quantized layers cost, as ratios to the float model: eval forward and training step.

python benchmarks/layers.py                                  # every format, every network
python benchmarks/layers.py --quick                          # few repeats, small batches
python benchmarks/layers.py --formats integer --networks vgg7 --ops all
python benchmarks/layers.py --device cuda --formats integer
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.ir import MaseGraph
from chop.numerics import FORMATS, frozen_weights
from chop.passes import Pipeline
from chop.passes.graph.transforms import quantize_transform_pass
from chop.passes.graph.utils import get_mase_op

PRECISIONS: dict[str, list[Any]] = {
    "integer": [8, 4],
    "scale_integer": [8],
    "minifloat_ieee": [8, 4, 7],
    "minifloat_denorm": [8, 4, 7],
    "fp8": [4, 3],
    "log": [8, 63],
    "block_fp": [8, 8, None, [1, 16]],
    "block_minifloat": [8, 4, 8, [1, 16]],
    "block_log": [8, 8, [1, 16]],
    "mxint": [8, [32]],
    "mxfp": [4, 3, [32]],
    "binary": [1, False, True],
    "binary_residual": [1, False, True],
    "ternary": [2, True, None, None, None],
}
WEIGHTED = ("linear", "conv2d")
COLUMNS = ("float eval [ms]", "eval ×", "at rest ×", "float train [ms]", "train ×")
LINE = "| {:8} | {:16} | {:15} | {:6} | {:9} | {:16} | {:7} |"


def mlp() -> nn.Module:
    sizes = (16, 64, 32, 32, 5)
    pairs = itertools.pairwise(sizes)
    layers = [layer for i, o in pairs for layer in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def vgg7() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for i, width in enumerate((128, 128, 256, 256, 512, 512)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width)]
        layers += [nn.ReLU(inplace=True), *([nn.MaxPool2d(2)] if i % 2 else [])]
        channels = width
    layers += [nn.Flatten(), nn.Linear(512 * 4 * 4, 1024), nn.ReLU(inplace=True)]
    layers += [nn.Linear(1024, 1024), nn.ReLU(inplace=True), nn.Linear(1024, 10)]
    return nn.Sequential(*layers)


class Block(nn.Module):
    """Attention and a feed-forward part, each with a norm before it."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down, self.act = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
            nn.GELU(),
        )

    def forward(self, input: Tensor) -> Tensor:
        x = self.norm1(input)
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y = input + self.out(attended)
        z: Tensor = y + self.down(self.act(self.up(self.norm2(y))))
        return z


class Network(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    quick: tuple[int, ...]
    repeats: int


NETWORKS = {
    "mlp 256": Network(mlp, (256, 16), (256, 16), 200),
    "mlp 4096": Network(mlp, (4096, 16), (4096, 16), 50),
    "vgg7": Network(vgg7, (32, 3, 32, 32), (4, 3, 32, 32), 5),
    "block": Network(lambda: nn.Sequential(Block(), Block()), (8, 128, 256), (2, 128, 256), 15),
}


def quantized(make: Callable[[], nn.Module], x: Tensor, name: str, ops: str) -> nn.Module:
    """The network with its weighted layers, or all that can be, in a format."""
    graph = MaseGraph(make())
    dummy_in = {"input": x[:2]}
    steps = [("init_metadata", None), ("add_common_metadata", {"dummy_in": dummy_in})]
    graph, _ = Pipeline(steps)(graph)
    keys = FORMATS[name].precision_keys()
    config: dict[str, Any] = {"name": name}
    for operand in ("data_in", "weight", "bias"):
        config |= {
            f"{operand}_{key}": value for key, value in zip(keys, PRECISIONS[name], strict=True)
        }
    there = {get_mase_op(node) for node in graph.nodes}
    weighted = dict.fromkeys((op for op in WEIGHTED if op in there), config)
    chosen = {"default": config} if ops == "all" else weighted
    quantize_transform_pass(graph, {"by": "type", **chosen})
    return graph.model


def evaluate(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    model.eval()

    def run() -> None:
        with torch.no_grad():
            model(x)
            _wait(x)

    return run


def evaluate_at_rest(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    """As every evaluation of ours does: parameters are rounded before the first batch."""
    rest = contextlib.ExitStack()
    rest.enter_context(frozen_weights(model))
    run = evaluate(model, x)

    def rested(_: object = rest) -> None:  # the rest lasts as long as this function does
        run()

    return rested


def train(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def run() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        _wait(x)

    return run


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio(plain: Callable[[], Any], ours: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Milliseconds of the float work, and the median ratio of neighbouring runs."""
    for work in (plain, ours, plain, ours):
        work()
    pairs = [(seconds(plain), seconds(ours)) for _ in range(repeats)]
    floats = statistics.median(pair[0] for pair in pairs)
    return 1e3 * floats, statistics.median(b / a for a, b in pairs)


def measure(network: Network, name: str, ops: str, *, quick: bool, device: str) -> dict[str, str]:
    x = torch.randn(network.quick if quick else network.shape, device=device)
    repeats = max(3, network.repeats // 10) if quick else network.repeats
    row = {}
    for kind, prepare in (("eval", evaluate), ("at rest", evaluate_at_rest), ("train", train)):
        torch.manual_seed(0)
        # traced too, so that only formats differ
        plain = MaseGraph(network.make()).model.to(device)
        ours = quantized(network.make, x.cpu(), name, ops).to(device)
        milliseconds, times = ratio(prepare(plain, x), prepare(ours, x), repeats)
        row |= {f"float {kind} [ms]": f"{milliseconds:.2f}", f"{kind} ×": f"{times:.2f}"}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repeats, small batches")
    parser.add_argument("--formats", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--ops", choices=("weighted", "all"), default="weighted")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    where = options.device if options.device != "cpu" else f"{options.threads} threads"
    print(f"torch {torch.__version__}, {where}, {options.ops} ops quantized")
    print(LINE.format("network", "format", *COLUMNS), LINE.format(*(7 * ["---"])), sep="\n")
    for network in options.networks:
        for name in options.formats:
            chosen = {"quick": options.quick, "device": options.device}
            measured = measure(NETWORKS[network], name, options.ops, **chosen)
            print(LINE.format(network, name, *(measured[c] for c in COLUMNS)), flush=True)


if __name__ == "__main__":
    main()
