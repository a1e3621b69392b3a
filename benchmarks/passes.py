"""What passes cost, as ratios to one forward pass and to a deepcopy of the model, in CPU time.

python benchmarks/passes.py              # jsc-tiny, vgg7, resnet18, a transformer of 12 layers
python benchmarks/passes.py --quick      # jsc-tiny and vgg7, few repeats
"""

from __future__ import annotations

import argparse
import copy
import gc
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from graph import prepared
from tabulate import tabulate
from torch import nn

from chop.dataset import MaseDatasetInfo
from chop.ir import MaseGraph
from chop.models import get_model
from chop.passes import PASSES

MODELS = {  # what one sample looks like
    "jsc-tiny": (16,),
    "vgg7": (3, 32, 32),
    "resnet18": (3, 224, 224),
    "deit_tiny_patch16_224": (3, 224, 224),
}
WIDTHS = {f"{what}_width": 8 for what in ("data_in", "weight", "bias")}
FRACTIONS = {f"{what}_frac_width": 4 for what in ("data_in", "weight", "bias")}
INTEGER = {"name": "integer", **WIDTHS, **FRACTIONS}
Work = Callable[[MaseGraph], Any]  # on a clone of its own, which is made before the clock starts


def built(name: str) -> nn.Module:
    shape = MODELS[name]
    size = {"image_size": shape} if len(shape) > 1 else {"num_features": shape[0]}
    info = MaseDatasetInfo(name="numbers", num_classes=1000 if shape[-1] == 224 else 10, **size)
    return get_model(name, dataset_info=info).eval()


def work(folder: Path) -> dict[str, Work]:
    quantize = {"by": "type", "default": {"config": INTEGER}}
    prune = {"weight": {"sparsity": 0.5, "method": "l1-norm"}}
    return {
        "quantize": lambda graph: PASSES["quantize"](graph, quantize),
        "prune": lambda graph: PASSES["prune"](graph, prune),
        "fuse": lambda graph: PASSES["conv_bn_fusion"](graph),
        "cost": lambda graph: PASSES["cost"](graph, {"silent": True}),
        "save": lambda graph: graph.export(folder / "graph"),
        "load": lambda _: MaseGraph.from_checkpoint(folder / "graph"),
        "clone": lambda graph: graph.clone(),
    }


def milliseconds(run: Callable[[], Any]) -> float:
    """CPU time of all threads: on a shared machine the clock on the wall measures the others."""
    gc.collect()
    start = time.process_time()
    run()
    return 1e3 * (time.process_time() - start)


def measure(name: str, repeats: int, folder: Path) -> dict[str, Any]:
    """Medians; every repeat takes all in turn, so that a busy moment falls on all alike."""
    model, inputs = built(name), {"x": torch.randn(1, *MODELS[name])}
    graph = prepared(model, inputs, add_value=False)
    times: dict[str, list[float]] = {}

    def note(what: str, run: Callable[[], Any]) -> None:
        times.setdefault(what, []).append(milliseconds(run))

    for _ in range(repeats + 1):
        with torch.no_grad():
            note("forward", lambda: model(**inputs))
        note("deepcopy", lambda: copy.deepcopy(model))
        for what, run in work(folder).items():
            given = graph.clone()
            note(what, lambda run=run, given=given: run(given))
    # the first of each is left out: it imports and caches
    medians = {what: statistics.median(ms[1:]) for what, ms in times.items()}
    forward, deepcopy = medians.pop("forward"), medians.pop("deepcopy")
    ratios = {what: f"{ms / forward:.1f} / {ms / deepcopy:.1f}" for what, ms in medians.items()}
    row = {"model": name, "nodes": len(graph.nodes)}
    return row | {"forward ms": f"{forward:.2f}", "deepcopy ms": f"{deepcopy:.2f}"} | ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small models, few repeats")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.manual_seed(0)
    logging.getLogger("chop").setLevel(logging.ERROR)
    names = list(MODELS)[: 2 if options.quick else None]
    repeats = min(options.repeats, 3) if options.quick else options.repeats
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, repeats, Path(folder)) for name in names]
    print(f"torch {torch.__version__}, CPU, {torch.get_num_threads()} threads, one sample;")
    print(f"medians of {repeats}; ratios to a forward pass / to a deepcopy of the model")
    print(tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
