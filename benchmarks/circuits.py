"""Circuits of whole networks: the time from `ch emit` to the verdict, and the mismatches.

    python benchmarks/circuits.py                         # six networks, 10,000 vectors each
    python benchmarks/circuits.py --networks jsc-s --samples 1000

Weights are random, and inputs are normal numbers and boundary vectors. All formats are fixed point
of 8 bits, rounded to even numbers, with saturation; the LeNet is a streaming circuit, and the last
network is made by `configs/examples/jsc_sim_logicnets.toml`. Nothing is taken from a cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from streaming import lenet
from tabulate import tabulate
from torch import nn

from chop.dataset import get_dataset_info
from chop.hardware.emit import EmitOptions, emit_circuit
from chop.hardware.simulation import check_circuit
from chop.integers import IntegerGraph
from chop.ir import MaseGraph
from chop.models import get_model
from chop.passes import Pipeline

TABLES = Path(__file__).parents[1] / "configs" / "examples" / "jsc_sim_logicnets.toml"
OPERANDS = ("data_in", "weight", "bias")
FORMAT = {"name": "integer", **{f"{operand}_width": 8 for operand in OPERANDS}}
FORMAT |= {f"{operand}_frac_width": 5 for operand in OPERANDS}
STREAMING = EmitOptions(backend="streaming", max_parallelism=64)


def jets(name: str) -> nn.Module:
    """Return one of the labs' networks, with random weights and norms."""
    model = get_model(name, task="cls", dataset_info=get_dataset_info("jsc-sim"))
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            nn.init.normal_(layer.running_mean, 0, 0.3)
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, 0, 0.3)
    return model


def perceptron(*sizes: int) -> nn.Module:
    """Return linear layers with a ReLU between them."""
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def integers(model: nn.Module, shape: tuple[int, ...], passes: list[Any]) -> IntegerGraph:
    """Return the network in integers."""
    graph = MaseGraph(model.eval())
    dummy = {str(node.target): torch.zeros(2, *shape) for node in graph.inputs}
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": dummy}), *passes]
    return Pipeline(steps)(graph)[0].to_integers()


def fixed_point() -> list[Any]:
    return [("quantize", {"by": "type", "default": {"config": FORMAT}})]


def truth_tables() -> list[Any]:
    passes = [dict(table) for table in tomllib.loads(TABLES.read_text())["passes"]]
    return [(table.pop("name"), table) for table in passes if table["name"] != "verify_integers"]


Network = tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[], list[Any]], EmitOptions]
JETS = ((16,), fixed_point, EmitOptions())
NETWORKS: dict[str, Network] = {
    "jsc-tiny": (lambda: jets("jsc-tiny"), *JETS),
    "jsc-toy": (lambda: jets("jsc-toy"), *JETS),
    "jsc-s": (lambda: jets("jsc-s"), *JETS),
    "16-64-32-32-5": (lambda: perceptron(16, 64, 32, 32, 5), *JETS),
    "LeNet, streaming": (lenet, (1, 28, 28), fixed_point, STREAMING),
    "jsc-toy, LogicNets": (lambda: jets("jsc-toy"), (16,), truth_tables, EmitOptions()),
}


def measure(name: str, samples: int, folder: Path) -> dict[str, Any]:
    """Return a row of the table."""
    make, shape, passes, options = NETWORKS[name]
    torch.manual_seed(0)
    graph = integers(make(), shape, passes())
    x = 2 * torch.randn(samples, *shape)
    began, work = time.perf_counter(), [cpu()]
    circuit = emit_circuit(graph, options, progress=False)
    work.append(cpu())
    check = check_circuit(graph, circuit, [x], folder=folder)
    seconds = time.perf_counter() - began
    work.append(cpu())
    run = check.simulation
    return {
        "network": name,
        "emit, CPU s": work[1] - work[0],
        "all, CPU s": work[2] - work[0],
        "all, s": seconds,
        "latency": run.latency,
        "cycles/sample": round(run.interval),
        "vectors": check.samples + check.boundary_vectors,
        "mismatches": check.mismatches,
        "warnings": len(run.warnings),
    }


def cpu() -> float:
    """Return the CPU time of this process and of all that it has waited for."""
    return sum(os.times()[:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--samples", type=int, default=10_000)
    options = parser.parse_args()
    rows = []
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["MASE_CACHE"] = folder
            rows.append(measure(name, options.samples, Path(folder) / "sim"))
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".1f", intfmt=","))


if __name__ == "__main__":
    main()
