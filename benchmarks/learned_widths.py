"""A front of learned bit widths beside networks of uniform widths, by hypervolume.

    python benchmarks/learned_widths.py --steps 5000 --batch 1024 \
        --fronts mase_output/jsc_learned/software/search_ckpts/search.json
    python benchmarks/learned_widths.py --widths 3 4 --steps 200            # quick

Trains networks whose linear layers all have the same width, one for each of `--widths` and
`--hidden`, on jsc-sim (simulated jets, not CERN data): together with as many samples as `--steps`
steps of one network of the front see, or each with so many (`--each`). Accuracies are those of the
test split, LUTs those of the estimate by formula. `--fronts` are the search.json of searches.

The hypervolume is the area between the front and the point of `--reference`, accuracy over the
logarithm of the LUTs: what a front gains over all costs up to the reference.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tabulate import tabulate
from torch import nn

from chop.dataset.jsc_sim import jsc_sim
from chop.hardware.estimate import estimate
from chop.ir import MaseGraph
from chop.methods.population import train_population
from chop.passes import Pipeline, quantize_transform_pass
from chop.training.options import TrainOptions


class Point(NamedTuple):
    lut: float
    accuracy: float
    name: str = ""


def uniform_network(hidden: Sequence[int], width: int) -> MaseGraph:
    """Return a network whose inputs, weights and activations all have `width` bits."""
    sizes = [16, *hidden, 5]
    layers = [layer for i, o in itertools.pairwise(sizes) for layer in (nn.Linear(i, o), nn.ReLU())]
    graph = MaseGraph(nn.Sequential(*layers[:-1]))
    dummy_in = {"input": torch.randn(2, 16)}
    graph, _ = Pipeline(["init_metadata", ("add_common_metadata", {"dummy_in": dummy_in})])(graph)
    config: dict[str, Any] = {"name": "integer"}
    for operand, bits, fraction in (
        ("data_in", width, max(0, width - 3)),  # from -4 to 4
        ("weight", width, width - 1),
        ("bias", 2 * width, 2 * width - 3),
    ):
        config |= {f"{operand}_width": bits, f"{operand}_frac_width": fraction}
    made, _ = quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
    return made


def uniform_points(args: argparse.Namespace) -> list[Point]:
    """Train all uniform networks, and return what they reach."""
    torch.manual_seed(args.seed)
    shapes = [tuple(map(int, text.split("-"))) for text in args.hidden]
    choices = list(itertools.product(shapes, args.widths))
    graphs = [uniform_network(*choice) for choice in choices]
    steps = args.steps if args.each else max(1, args.steps // len(graphs))
    options = TrainOptions(
        max_epochs=10_000, max_steps=steps, learning_rate=args.rate, seed=args.seed
    )
    data = (jsc_sim("train"), jsc_sim("validation"))
    start = time.process_time()
    for shape in shapes:  # networks of one shape are trained at once
        models = [
            g.model for g, (hidden, _) in zip(graphs, choices, strict=True) if hidden == shape
        ]
        train_population(models, data, [options] * len(models), batch_size=args.batch, device="cpu")
    print(f"{len(graphs)} networks, {steps} steps each: {time.process_time() - start:.0f} s of CPU")
    test, found = jsc_sim("test"), []
    for (hidden, width), graph in zip(choices, graphs, strict=True):
        graph.model.eval()
        with torch.no_grad():
            right = (graph.model(test.x).argmax(1) == test.y).float().mean().item()
        lut = estimate(graph.to_integers(), fidelity="formula").lut
        found.append(Point(lut, right, f"{'-'.join(map(str, hidden))}, {width} bits"))
    return found


def points_of(file: Path) -> list[Point]:
    """Return the LUTs and the test accuracies of the designs of a search."""
    search = json.loads(file.read_text())
    luts = {str(t["number"]): t["hardware_metrics"]["lut"] for t in search["trials"]}
    tested = search["test"].items()
    return [Point(luts[k], row["test"]["accuracy"], f"trial {k}") for k, row in tested if k in luts]


def front_of(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other dominates, the cheapest first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.lut, -p.accuracy)):
        if not kept or point.accuracy > kept[-1].accuracy:
            kept.append(point)
    return kept


def hypervolume(points: Sequence[Point], reference: Sequence[float]) -> float:
    """Return the area in points of accuracy times decades of LUTs.

    >>> round(hypervolume([Point(100, 0.7), Point(10, 0.6)], (1000, 0.5)), 6)
    30.0
    """
    most, least = reference
    inside = [p for p in front_of(points) if p.lut < most and p.accuracy > least]
    ends = [*(p.lut for p in inside[1:]), most]
    areas = (
        100 * (p.accuracy - least) * math.log10(end / p.lut)
        for p, end in zip(inside, ends, strict=True)
    )
    return sum(areas)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fronts", type=Path, nargs="*", default=[])
    parser.add_argument("--widths", type=int, nargs="*", default=[3, 4, 5, 6, 7, 8])
    parser.add_argument("--hidden", nargs="*", default=["64-32-32", "16-8"])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--each", action="store_true", help="so many steps for each network")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--reference", type=float, nargs=2, default=[10_000, 0.6])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = {"uniform": uniform_points(args)} if args.widths else {}
    found |= {str(file.parents[2].name): points_of(file) for file in args.fronts}
    for name, points in found.items():
        print(f"\n{name}: hypervolume {hypervolume(points, args.reference):.2f}")
        rows = [(f"{p.lut:,.0f}", f"{100 * p.accuracy:.2f} %", p.name) for p in front_of(points)]
        print(tabulate(rows, headers=["LUTs", "test accuracy", "network"]))


if __name__ == "__main__":
    main()
