"""What the integer interpreter costs, as a ratio to the float forward of the same network.

python benchmarks/integers.py                        # jsc-s and vgg7, batch 256, on the CPU
python benchmarks/integers.py --device cuda
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from chop.dataset import get_dataset_info
from chop.ir import MaseGraph
from chop.models import get_model
from chop.passes import Pipeline

NETWORKS = {"jsc-s": ("jsc", (16,), 300), "vgg7": ("cifar10", (3, 32, 32), 3)}
CONFIG = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5, "weight_width": 8}
CONFIG |= {"weight_frac_width": 6, "bias_width": 8, "bias_frac_width": 6}
LINE = "| {:8} | {:12} | {:16} | {:12} | {:9} | {:12} |"


def seconds(run: Callable[[], Any], device: torch.device) -> float:
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(name: str, batch: int, device: torch.device) -> list[str]:
    """Return a row: the fastest of alternating runs of the float network and its two forms."""
    dataset, shape, repeats = NETWORKS[name]
    model = get_model(name, dataset_info=get_dataset_info(dataset), pretrained=False)
    model = model.eval().to(device)
    x = torch.randn(batch, *shape, device=device)
    graph = MaseGraph(model).clone()
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": {"x": x[:2]}})]
    quantise = {"by": "type", "default": {"config": CONFIG}}
    graph, _ = Pipeline([*steps, ("quantize", quantise)])(graph)
    integers = graph.to_integers()
    runs = {
        "float": lambda: model(x),
        "simulation": lambda: graph.model(x),
        "integers": lambda: integers.run(x),
    }
    best = dict.fromkeys(runs, float("inf"))
    with torch.no_grad():
        for _ in range(repeats):
            for key, run in runs.items():
                best[key] = min(best[key], seconds(run, device))
    times = [f"{1e3 * best[key]:.2f}" for key in runs]
    ratio = f"{best['integers'] / best['float']:.1f}"
    return [name, *times, ratio, f"{max(integers.accumulator_widths.values())} bits"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=[*NETWORKS], choices=[*NETWORKS])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    titles = ("float [ms]", "simulation [ms]", "codes [ms]", "codes ×", "accumulators")
    print(LINE.format("network", *titles))
    print(LINE.format(*["---"] * 6))
    for name in args.networks:
        torch.manual_seed(0)
        print(LINE.format(*measure(name, args.batch, torch.device(args.device))), flush=True)


if __name__ == "__main__":
    main()
