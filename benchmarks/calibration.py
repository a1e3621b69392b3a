"""Loss of accuracy of jsc-s in fixed point, by widths and by how fraction widths are chosen.

    python benchmarks/calibration.py --load best.ckpt

The network is that of the quickstart: ch train jsc-s jsc-sim --task cls --max-epochs 10
--batch-size 512 --learning-rate 1e-2 --seed 0. Its linear layers are quantised, with biases of
8 bits; the loss is that of the test split, in points of accuracy against float.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from chop.checkpoints import load_model
from chop.dataset.jsc_sim import INFO, jsc_sim
from chop.dataset.tensors import TensorSplit
from chop.ir.graph.mase_graph import MaseGraph
from chop.models.physical import JSC_S
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    add_software_metadata_analysis_pass,
    calibrate_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)

METHODS = ("half", "minmax", "percentile", "entropy", "mse", "output")
BIAS_WIDTH = 8


def traced(checkpoint: Path, train: TensorSplit) -> MaseGraph:
    """Return the graph of the trained network, with metadata."""
    graph = MaseGraph(load_model(str(checkpoint), "pl", JSC_S(INFO)).eval())
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": train.x[:8]}, "add_value": False})
    add_software_metadata_analysis_pass(graph)
    return graph


def accuracy(graph: MaseGraph, test: TensorSplit) -> float:
    """Return the accuracy on a split, in percent."""
    with torch.no_grad():
        right = graph.model.eval()(test.x.clone()).argmax(1) == test.y
    return 100 * float(right.float().mean())


def config(weight: int, data_in: int, fraction: str | None) -> dict[str, Any]:
    """Return the options of quantize for linear layers of these widths."""
    widths = {"data_in": data_in, "weight": weight, "bias": BIAS_WIDTH}
    keys = {f"{operand}_width": width for operand, width in widths.items()}
    keys |= {f"{operand}_frac_width": fraction for operand in widths}
    return {"by": "type", "linear": {"config": {"name": "integer", **keys}}}


def rows(
    graph: MaseGraph, train: TensorSplit, test: TensorSplit, widths: list[int], samples: int
) -> Iterator[dict[str, Any]]:
    """Yield the loss of every method at each pair of widths."""
    exact = accuracy(graph, test)
    losses: dict[tuple[int, int], dict[str, float]] = {(w, a): {} for w in widths for a in widths}
    for method in METHODS:
        if method != "half":
            batch = {"x": train.x[:samples]}
            options = {"method": method, "input_generator": [batch], "num_samples": samples}
            calibrate_analysis_pass(graph, {**options, "silent": True})
        for (weight, data_in), found in losses.items():
            rounded = graph.clone()
            fraction = None if method == "half" else "calibrated"
            quantize_transform_pass(rounded, config(weight, data_in, fraction))
            found[method] = exact - accuracy(rounded, test)
    for (weight, data_in), found in losses.items():
        yield {"Widths": f"W{weight}A{data_in}", **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--load", type=Path, required=True, help="checkpoint of ch train")
    parser.add_argument("--widths", type=int, nargs="+", default=[4, 5, 6, 8])
    parser.add_argument("--samples", type=int, default=512)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING)  # without a handler, passes show their tables
    logging.getLogger("chop").setLevel(logging.WARNING)
    train, test = jsc_sim("train"), jsc_sim("test")
    graph = traced(options.load, train)
    print(f"float: {accuracy(graph, test):.2f} %")
    found = rows(graph, train, test, options.widths, options.samples)
    print(tabulate(found, headers="keys", tablefmt="github", floatfmt=".2f"))


if __name__ == "__main__":
    main()
