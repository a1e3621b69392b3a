"""How fast exported networks are in onnxruntime, as ratios to its float32.

python benchmarks/onnx_runtime.py                    # vgg7 and resnet18, batches of 1 and 32
python benchmarks/onnx_runtime.py --networks vgg7 --threads 2

Batch norms are folded, and layers, sums and pools have 8 bits by `quantize_static`. Weights are
random, which does not change the time. All ways take turns, and each number is a median. The last
column has the layers of the file `qdq` that run in float, of all.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from chop.dataset import get_dataset_info
from chop.ir import MaseGraph
from chop.models import get_model
from chop.onnx.fusion import fusion_report
from chop.onnx.runtime import Runtime
from chop.passes import Pipeline, run_pass

SHAPE = (3, 32, 32)
Work = Callable[[], Any]


def float_graph(name: str) -> MaseGraph:
    """Return a network without batch norms, with statistics of one batch."""
    torch.manual_seed(0)
    model = get_model(name, dataset_info=get_dataset_info("cifar10"))
    model.train()(torch.randn(16, *SHAPE))
    about = {"dummy_in": {"x": torch.randn(2, *SHAPE)}, "add_value": False}
    ready = ["init_metadata", ("add_common_metadata", about), "add_software_metadata"]
    graph, _ = Pipeline([*ready, "fold_batch_norm"])(MaseGraph(model.eval()))
    return graph


def quantised(graph: MaseGraph) -> MaseGraph:
    batches = [{"x": torch.randn(64, *SHAPE)}]
    calibrate = ("calibrate", {"input_generator": batches, "silent": True})
    return Pipeline([calibrate, "quantize_static"])(graph.clone())[0]


def ways(name: str, threads: int, folder: Path) -> tuple[dict[str, Callable[[Any], Work]], str]:
    """Return how each implementation runs a batch, and which layers of `qdq` run in float."""
    graph = float_graph(name)
    files = {"onnx": graph, "qdq": quantised(graph), "integer": quantised(graph)}
    made: dict[str, Callable[[Any], Work]] = {}
    for kind, source in files.items():
        file = folder / f"{name}_{kind}.onnx"
        run_pass("export_onnx", source, {"save_path": file, "format": kind, "silent": True})
        made[kind] = in_onnxruntime(Runtime(file, threads=threads))
    model = graph.model.eval()
    compiled = torch.compile(model)
    made["torch"] = lambda x: lambda: model(x)
    made["torch.compile"] = lambda x: lambda: compiled(x)
    report = fusion_report(folder / f"{name}_qdq.onnx", threads=threads)
    return made, f"{len(report.in_float)} of {len(report.layers)}"


def in_onnxruntime(runtime: Runtime) -> Callable[[Any], Work]:
    (name,) = runtime.inputs
    return lambda x: lambda: runtime.run({name: x.numpy()})


def medians(works: dict[str, Work], repeats: int, runs: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(repeats):
        for name, work in works.items():
            work()
            for _ in range(runs):
                start = time.perf_counter()
                work()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["vgg7", "resnet18"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for name in options.networks:
            made, in_float = ways(name, options.threads, Path(folder))
            for batch in options.batches:
                x = torch.randn(batch, *SHAPE)
                found = medians(
                    {way: make(x) for way, make in made.items()}, options.repeats, 10 // batch + 2
                )
                speed = {way: f"{found['onnx'] / t:.2f}" for way, t in found.items()}
                rows.append({"network": name, "batch": batch, **speed, "in float": in_float})
    print(tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
