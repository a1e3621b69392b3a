"""Published networks in 8 bits: accuracy and time in onnxruntime, ours and by its own quantiser.

python benchmarks/published_networks.py DATA                 # the folder of the networks
python benchmarks/published_networks.py DATA --networks resnet20 --tested 2000
python benchmarks/published_networks.py DATA --networks resnet20 --compare 500

Both ways see the same samples for calibration and train nothing. Times are medians for a batch of
one and one thread, in turns, as a share of the float network's; accuracies are of the tested
samples in onnxruntime, as it is deployed. `--compare` counts the samples of which onnxruntime gives
other outputs, or another class, than the simulation, with scales that fit the data most closely and
with powers of two.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from tabulate import tabulate
from torch import Tensor

from chop.ir import MaseGraph
from chop.onnx.fusion import fusion_report
from chop.onnx.runtime import Runtime
from chop.passes import Pipeline, run_pass

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from onnx_runtime import medians
from oracles.published import MLPERF, Published, resnet20, static_steps


def float_file(published: Published, folder: Path) -> Path:
    """Return the float network as a file: as published, or as we export it."""
    if published.file is not None:
        return published.file
    graph, _ = Pipeline(static_steps(published, "x")[:4])(MaseGraph(published.model))
    file = folder / "float.onnx"
    run_pass("export_onnx", graph, {"save_path": file, "format": "onnx", "silent": True})
    return file


def ours(
    published: Published, folder: Path, *, power_of_two: bool = True
) -> tuple[MaseGraph, Path]:
    """Return the network in 8 bits, and its file."""
    graph = MaseGraph(published.model)
    (name,) = (str(node.target) for node in graph.nodes if node.op == "placeholder")
    *steps, last = static_steps(published, name)
    graph, _ = Pipeline([*steps, (last, {"power_of_two": power_of_two})])(graph)
    file = folder / "ours.onnx"
    run_pass("export_onnx", graph, {"save_path": file, "format": "qdq", "silent": True})
    return graph, file


def theirs(source: Path, published: Published, folder: Path) -> Path:
    """Return what onnxruntime's static quantisation makes of a file, with a scale per channel."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    (name,) = Runtime(source).inputs

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        batches = iter([{name: batch.numpy()} for batch in published.samples.split(1)])

        def get_next(self) -> Any:
            return next(self.batches, None)

    prepared, file = folder / "prepared.onnx", folder / "theirs.onnx"
    quant_pre_process(str(source), str(prepared))
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(str(prepared), str(file), Samples(), per_channel=True, **types)
    return file


def outputs(runtime: Runtime, x: Tensor) -> np.ndarray[Any, Any]:
    (name,) = runtime.inputs
    found = [next(iter(runtime.run({name: b.numpy()}).values())) for b in x.split(500)]
    return np.concatenate(found)


def score(runtime: Runtime, published: Published, count: int) -> str:
    """Return the accuracy in per cent, or nothing for a network without labels."""
    if published.labels is None:
        return "–"
    found = outputs(runtime, published.tested[-count:])
    return f"{100 * (found.argmax(1) == published.labels[-count:].numpy()).mean():.2f}"


def of_name(network: str, data: Path, folder: Path) -> Published:
    return resnet20(data) if network == "resnet20" else MLPERF[network](data, folder)


def differences(network: str, data: Path, count: int, folder: Path) -> list[dict[str, object]]:
    """Return how many samples onnxruntime computes otherwise than the simulation."""
    published, rows = of_name(network, data, folder), []
    x = published.tested[:count]
    for scales, power_of_two in (("float", False), ("powers of two", True)):
        graph, file = ours(published, folder, power_of_two=power_of_two)
        with torch.inference_mode():
            wanted = torch.cat([graph.model(batch) for batch in x.split(500)]).numpy()
        for session, optimize in (("not optimised", False), ("optimised", True)):
            found = outputs(Runtime(file, optimize=optimize), x)
            # sums that are not rounded may be added in another order
            near = np.isclose(found, wanted, rtol=0, atol=2**-16 * np.abs(wanted).max())
            rows.append(
                {
                    "network": network,
                    "scales": scales,
                    "session": session,
                    "samples": len(x),
                    "outputs differ": int((~near).any(1).sum()),
                    "classes differ": int((found.argmax(1) != wanted.argmax(1)).sum()),
                }
            )
    return rows


def row(network: str, data: Path, tested: int, folder: Path) -> dict[str, object]:
    published = of_name(network, data, folder)
    source = float_file(published, folder)
    files = {"float": source, "ours": ours(published, folder)[1]}
    files["onnxruntime's"] = theirs(source, published, folder)
    runtimes = {way: Runtime(file, threads=1) for way, file in files.items()}
    sample = published.tested[:1].numpy()
    works = {
        way: lambda r=runtime: r.run({next(iter(r.inputs)): sample})
        for way, runtime in runtimes.items()
    }
    times = medians(works, 25, 40)
    layers = fusion_report(files["ours"]).layers
    return {
        "network": network,
        **{f"{way}, %": score(runtime, published, tested) for way, runtime in runtimes.items()},
        **{f"time {way}": f"{times[way] / times['float']:.2f}" for way in list(files)[1:]},
        "integer kernels": f"{sum(layer.integer for layer in layers)} of {len(layers)}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    names = ["resnet20", *MLPERF]
    parser.add_argument("--networks", nargs="+", choices=names, default=names)
    parser.add_argument("--tested", type=int, default=9500, help="at most so many samples")
    parser.add_argument("--compare", type=int, metavar="SAMPLES", help="with the simulation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("chop").setLevel(logging.WARNING)  # no tables of calibration
    logging.getLogger("chop").addHandler(logging.NullHandler())
    onnxruntime.set_default_logger_severity(3)
    rows = []
    for network in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            if options.compare:
                rows += differences(network, options.data, options.compare, Path(folder))
            else:
                rows.append(row(network, options.data, options.tested, Path(folder)))
    print(tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
