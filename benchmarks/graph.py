"""What a graph costs, as ratios to one plain forward pass of the same model, in CPU time.

python benchmarks/graph.py            # chains of 10 to 5,000 nodes, and three real networks
python benchmarks/graph.py --quick    # small sizes only
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from networks import bert, resnet18, vit_small
from tabulate import tabulate
from torch import Tensor, nn

from chop.ir import MaseGraph
from chop.passes import PASSES, Pipeline

SIZES = (10, 100, 1_000, 5_000)
REPORTS = (
    "report_graph",
    "report_node_type",
    "report_node_shape",
    "report_node_hardware_type",
    "report_node_meta_param",
)
PREPARE = ("init_metadata", "add_common_metadata", "add_software_metadata")


class Chain(nn.Module):
    """Linear layers and activations in turn: `nodes` nodes between input and output."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        layers = (nn.Linear(16, 16) if i % 2 == 0 else nn.ReLU() for i in range(nodes))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


def median_ms(work: Callable[[], Any], repeats: int) -> float:
    """CPU time of all threads: on a shared machine the clock on the wall measures the others."""
    times = []
    for _ in range(repeats):
        gc.collect()
        start = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            work()
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def prepared(model: nn.Module, inputs: dict[str, Tensor], **options: bool) -> MaseGraph:
    args = {"add_common_metadata": {"dummy_in": inputs, **options}}
    return Pipeline(PREPARE)(MaseGraph(model), args)[0]


def measure(model: nn.Module, inputs: dict[str, Tensor], repeats: int) -> dict[str, float]:
    """Milliseconds of a plain forward pass, then everything else as ratios to it."""
    model.eval()
    with torch.no_grad():
        model(**inputs)
        forward = median_ms(lambda: model(**inputs), repeats)
    graph = prepared(model, inputs, add_value=False)
    PASSES["add_hardware_metadata"](graph)
    work: dict[str, Callable[[], Any]] = {
        "trace": lambda: MaseGraph(model),
        "trace + metadata": lambda: prepared(model, inputs, add_value=False),
        "… with values": lambda: prepared(model, inputs),
        "… on meta": lambda: prepared(model, inputs, force_device_meta=True),
        "clone()": graph.clone,
        "verify": lambda: PASSES["verify_metadata"](graph, {"strict": True}),
        **{name: lambda name=name: PASSES[name](graph) for name in REPORTS},
    }
    row = {"nodes": float(len(graph.nodes)), "forward ms": forward}
    return row | {name: median_ms(run, repeats) / forward for name, run in work.items()}


def cases(quick: bool) -> dict[str, tuple[nn.Module, dict[str, Tensor]]]:
    chains = {
        f"chain {n}": (Chain(n), {"x": torch.randn(8, 16)}) for n in SIZES[: 3 if quick else 4]
    }
    if quick:
        return chains
    image = {"x_BCHW": torch.randn(1, 3, 224, 224)}
    ids = torch.randint(30_000, (1, 128))
    ones = torch.ones_like(ids)
    text = {"input_ids": ids, "attention_mask": ones, "token_type_ids": 0 * ones}
    return chains | {
        "ResNet-18": (resnet18(), image),
        "ViT-S": (vit_small(), image),
        "BERT-base": (bert(), text),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    # reports are formatted for a handler that keeps nothing, or they would not be measured
    logger = logging.getLogger("chop")
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    logger.setLevel(logging.INFO)
    rows = {}
    for name, (model, inputs) in cases(quick).items():
        rows[name] = measure(model, inputs, repeats=3 if len(list(model.modules())) > 200 else 7)
    print(f"torch {torch.__version__}, CPU, {torch.get_num_threads()} threads; medians of CPU time")
    print("\nratios to one forward pass:")
    show(rows, ".1f")
    print("\nmicroseconds per node:")
    show({name: per_node(row) for name, row in rows.items()}, ".0f")


def per_node(row: dict[str, float]) -> dict[str, float]:
    """The same work in µs per node: the same number in each row means linear growth."""
    nodes, forward, *ratios = row.values()
    scale = 1e3 * forward / nodes
    return {"nodes": nodes, "forward": scale} | {
        name: ratio * scale for name, ratio in zip(list(row)[2:], ratios, strict=True)
    }


def show(rows: dict[str, dict[str, float]], digits: str) -> None:
    table = [[name, *row.values()] for name, row in rows.items()]
    headers = ["model", *next(iter(rows.values()))]
    formats = ("", ".0f", ".2f" if digits == ".1f" else digits, *[digits] * len(headers))
    print(tabulate(table, headers, tablefmt="github", floatfmt=formats))


if __name__ == "__main__":
    main()
