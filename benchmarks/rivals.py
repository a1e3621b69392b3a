"""Learned bit widths beside HGQ2 and PQuantML: the same data, shape and number of samples.

    python benchmarks/rivals.py data data.npz
    hgq/bin/python benchmarks/hgq_side.py data.npz --epochs 1000 --circuits 12 > hgq.json
    pquant/bin/python benchmarks/pquant_side.py data.npz --epochs 1000 --circuits 12 > pquant.json
    python benchmarks/rivals.py train ours.json --samples 59_880_000 --circuits 12
    python benchmarks/rivals.py compare ours.json hgq.json pquant.json
    python benchmarks/rivals.py speed --hgq hgq/bin/python --pquant pquant/bin/python

`train` is a ramp of 16-64-32-32-5 with a width for each weight and input; the same columns as the
rivals'. EBOPs are counted as HGQ2 does: bits without signs of inputs times those of weights, and
those of biases. LUTs are alkaid's count of the adders, for all three. The validation split chooses
the designs; accuracies and hypervolumes are those of the test split.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learned_widths import Point, front_of, hypervolume
from tabulate import tabulate
from torch import Tensor, nn

from chop.dataset import get_dataset_info
from chop.dataset.jsc_sim import jsc_sim
from chop.hardware.estimate import estimate
from chop.ir import MaseGraph
from chop.models import get_model
from chop.numerics.fused import set_fused
from chop.passes import Pipeline, freeze_bits_transform_pass, learn_bits_transform_pass
from chop.training.learned import FrontOptions, train_front
from chop.training.learned.archive import spread

SPLITS = {"train": "train", "val": "validation", "test": "test"}


def write_data(args: argparse.Namespace) -> None:
    """Write all splits of jsc-sim (simulated jets, not CERN data) for the rivals."""
    splits = {name: jsc_sim(own) for name, own in SPLITS.items()}
    x = {f"x_{name}": split.x.numpy() for name, split in splits.items()}
    y = {f"y_{name}": split.y.numpy() for name, split in splits.items()}
    np.savez(args.file, **x, **y)


def network(args: argparse.Namespace) -> MaseGraph:
    """Return linear layers with ReLUs between that learn their bits."""
    torch.manual_seed(args.seed)
    sizes = [16, *args.hidden, 5]
    layers = [layer for i, o in itertools.pairwise(sizes) for layer in (nn.Linear(i, o), nn.ReLU())]
    graph = MaseGraph(nn.Sequential(*layers[:-1]))
    dummy_in = {"input": torch.randn(2, 16)}
    graph, _ = Pipeline(["init_metadata", ("add_common_metadata", {"dummy_in": dummy_in})])(graph)
    how = {"width": args.width, "granularity": "element", "overflow": args.overflow}
    made, _ = learn_bits_transform_pass(graph, {**how, "rounding": args.rounding})
    return made


def jsc_table() -> nn.Module:
    """Return 16-20-5 with tables on edges."""
    model: nn.Module = get_model("jsc-table", task="cls", dataset_info=get_dataset_info("jsc-sim"))
    return model


def train(args: argparse.Namespace) -> None:
    """Train a ramp, and write a row for each design: EBOPs, LUTs and accuracies."""
    torch.set_num_threads(args.threads)
    set_fused("on")
    graph = network(args)
    options = FrontOptions(
        way="ramp",
        cost=args.cost,
        price=args.prices,
        steps=args.samples // args.batch_size,
        batch_size=args.batch_size,
        learning_rate=args.rate,
        checkpoints=args.checkpoints,
        freeze_last=args.freeze_last,
        price_starts=args.price_starts,
        seed=args.seed,
    )
    began = time.process_time()
    front = train_front(graph, (jsc_sim("train"), jsc_sim("validation")), options)
    seconds = time.process_time() - began
    chosen = {id(design) for design in spread(front.designs, args.circuits)}
    rows, circuits = [], []
    for design in front.designs:
        made = front.network(design)
        scores = {name: accuracy(made.model, own) for name, own in (*SPLITS.items(),)[1:]}
        rows.append((ebops(made.model), scores["val"], scores["test"]))
        if args.circuits and id(design) in chosen:
            frozen, _ = freeze_bits_transform_pass(made)
            whole = frozen.to_integers()
            luts = {
                name: estimate(whole, fidelity=fidelity).lut
                for name, fidelity in (("lut", "adders"), ("formula", "formula"))
            }
            circuits.append({"ebops": rows[-1][0], **luts, **scores})
    speed = options.steps / seconds if options.steps else 0.0
    found = {"steps_per_cpu_second": speed, "rows": rows, "circuits": circuits}
    args.file.write_text(json.dumps(found))
    print(f"{options.steps:,} steps in {seconds:.0f} s of processor time, scores included")


@torch.no_grad()
def accuracy(model: nn.Module, split: str) -> float:
    data = jsc_sim(split)
    return float((model.eval()(data.x).argmax(1) == data.y).float().mean())


@torch.no_grad()
def ebops(model: nn.Module) -> float:
    """Return the EBOPs as HGQ2 counts them, none for weights that are zero."""
    layers: Any = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    total = 0.0
    for layer in layers:
        x, weight, bias = (_bits(layer, name) for name in ("data_in", "weight", "bias"))
        total += float((x * weight).sum() + bias.sum())
    return total


def _bits(layer: Any, name: str) -> Tensor:
    values = None if name == "data_in" else getattr(layer, name)
    integer, fraction = layer.rounding(name, layer.formats[name]).bits_of(values)
    return (integer.round() + fraction.round()).clamp(min=0)


def compare(args: argparse.Namespace) -> None:
    """Print the fronts of all files and their hypervolumes on the test split."""
    table = []
    for file in args.files:
        found = json.loads(file.read_text().strip().splitlines()[-1])
        rows = chosen_by_validation([Row(*row) for row in found["rows"]])
        volume = hypervolume([Point(cost, test) for cost, _, test in rows], args.ebops)
        luts, formula = (points_of(found["circuits"], name) for name in ("lut", "formula"))
        volumes = [hypervolume(points, args.luts) if points else None for points in (luts, formula)]
        table.append((file.stem, len(rows), volume, *volumes))
        shown = [
            (f"{cost:,.0f}", f"{100 * val:.1f} %", f"{100 * t:.1f} %") for cost, val, t in rows
        ]
        every = max(1, len(shown) // 12)
        print(
            f"\n{file.stem}\n" + tabulate(shown[::every], headers=["EBOPs", "validation", "test"])
        )
        lines = [(f"{p.lut:,.0f}", f"{100 * p.accuracy:.1f} %") for p in luts]
        print(tabulate(lines, headers=["LUTs", "test"]))
    heads = ["hypervolume by", "designs", "EBOPs", "alkaid's LUTs", "LUTs by formula"]
    print("\n" + tabulate(table, headers=heads, floatfmt=".2f"))


def points_of(circuits: list[dict[str, float]], lut: str) -> list[Point]:
    """Return the designs that the validation split chooses, with their test accuracies."""
    rows = [Row(c[lut], c["val"], c["test"]) for c in circuits if lut in c]
    return [Point(row.cost, row.test) for row in chosen_by_validation(rows)]


class Row(tuple[float, float, float]):
    """Cost, accuracy on the validation split and on the test split."""

    def __new__(cls, *numbers: float) -> Row:
        return super().__new__(cls, numbers)

    cost = property(lambda self: self[0])
    val = property(lambda self: self[1])
    test = property(lambda self: self[2])


def chosen_by_validation(rows: list[Row]) -> list[Row]:
    """Return the rows that no other dominates on the validation split, the cheapest first."""
    by_point = {Point(row.cost, row.val): row for row in rows}
    return [by_point[point] for point in front_of([*by_point])]


def steps(args: argparse.Namespace) -> None:
    """Take steps of a ramp, and print how many per second of processor and of wall time."""
    torch.set_num_threads(args.threads)
    set_fused("on")
    marks: list[tuple[float, float]] = []
    options = FrontOptions(
        way="ramp",
        cost=args.cost,
        price=args.prices,
        steps=args.steps,
        batch_size=args.batch_size,
        checkpoints=2,
        num_val_samples=1024,
    )
    data = (jsc_sim("train"), jsc_sim("validation"))
    note = lambda checkpoint: marks.append((time.process_time(), time.perf_counter()))  # noqa: E731
    model = jsc_table() if args.tables else network(args)
    train_front(model, data, options, on_checkpoint=note)
    cpu, wall = (args.steps / 2 / (end - start) for start, end in zip(*marks, strict=True))
    print(json.dumps({"steps_per_cpu_second": cpu, "steps_per_second": wall}))


def speed(args: argparse.Namespace) -> None:
    """Run ours and the rivals in turn on one core; print the median ratios of steps per second."""
    here = Path(__file__).parent
    free = ["--prices", "1e-6", "1e-6"]  # so that none loses its bits, which makes ours faster
    commands = {"ours": [sys.executable, str(here / "rivals.py"), "steps", *free]}
    rivals = [("hgq", args.hgq, 20), ("pquant", args.pquant, 5)]
    if args.tables:  # PQuantML has none
        free += ["--tables", "--hidden", "20", "--batch-size", "1024"]
        commands["ours"] += [*free, "--cost", "lut", "--steps", "200"]
        rivals = [("hgq", args.hgq, 4)]
    for name, python, epochs in rivals:
        if python:
            side = [python, str(here / f"{name}_side.py"), str(args.data), "--epochs", str(epochs)]
            commands[name] = [*side, *free]
    pin = ["taskset", "-c", str(args.core)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(args.repeats):
        for name, command in commands.items():
            made = subprocess.run([*pin, *command], env=env, capture_output=True, check=True)
            found[name].append(json.loads(made.stdout.splitlines()[-1]))
    for name, runs in found.items():
        for key in ("steps_per_cpu_second", "steps_per_second"):
            ratios = [a[key] / b[key] for a, b in zip(found["ours"], runs, strict=True)]
            own = statistics.median(run[key] for run in runs)
            print(f"{name} {key}: {own:.0f}, ours / {name} {statistics.median(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    for action in (write_data, train, compare, steps, speed):
        command = commands.add_parser(action.__name__.removeprefix("write_"))
        command.set_defaults(action=action)
        if action in (write_data, train):
            command.add_argument("file", type=Path)
        if action in (train, steps):
            _add_training(command)
        if action is compare:
            command.add_argument("files", type=Path, nargs="+")
            command.add_argument("--ebops", type=float, nargs=2, default=[100_000, 0.6])
            command.add_argument("--luts", type=float, nargs=2, default=[100_000, 0.6])
        if action is speed:
            command.add_argument("data", type=Path)
            command.add_argument("--tables", action="store_true")
            command.add_argument("--hgq")
            command.add_argument("--pquant")
            command.add_argument("--core", type=int, default=0)
            command.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    args.action(args)


def _add_training(command: argparse.ArgumentParser) -> None:
    command.add_argument("--samples", type=int, default=59_880_000)
    command.add_argument("--steps", type=int, default=2000, help="of `steps`")
    command.add_argument("--batch-size", type=int, default=2048)
    command.add_argument("--hidden", type=int, nargs="*", default=[64, 32, 32])
    command.add_argument("--cost", default="ebops")
    command.add_argument("--tables", action="store_true", help="of `steps`: jsc-table")
    command.add_argument("--prices", type=float, nargs=2, default=[1e-6, 3e-4])
    command.add_argument("--width", type=int, default=8)
    command.add_argument("--overflow", default="saturate")
    command.add_argument("--rounding", default="even")
    command.add_argument("--rate", type=float, default=5e-3)
    command.add_argument("--checkpoints", type=int, default=1000)
    command.add_argument("--freeze-last", type=float, default=0.1)
    command.add_argument("--price-starts", type=float, default=0.0)
    command.add_argument("--circuits", type=int, default=0)
    command.add_argument("--threads", type=int, default=1)
    command.add_argument("--seed", type=int, default=0)


if __name__ == "__main__":
    main()
