"""Fronts of tables on edges on simulated jets: accuracy at given numbers of LUTs, over seeds.

    python benchmarks/learned_front.py --seeds 0 1 2 --save fronts.json
    python benchmarks/learned_front.py --genuine ../shared/data --teacher --map --save genuine.json

Trains a ramp of `jsc-table` for each seed, by `train_front`. The validation split chooses the
designs; the accuracy of the best design within each limit is that of the test split. With
`--split shuffled` the rows are split at random with a fixed seed, 72 % training, 8 % validation and
20 % test, instead of as `jsc-sim` splits them: a float network 64-32-32 has 69.8 % on the test
split of `jsc-sim`, and 70.7 % on this one.

`--genuine` names a folder with 1,000 genuine jets and a network that was trained on genuine jets
(not part of this project). They are only scored, never trained on. With `--teacher`, networks learn
the outputs of that network for simulated jets, a share of `--distill` of the loss; without
`--genuine`, the outputs of a float network that is trained first. With `--map`,
each feature of the simulated jets is first mapped to the quantiles that the genuine training split
has.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor, nn

from chop.dataset import TensorSplit
from chop.dataset.jsc_sim import FILE, jsc_sim
from chop.methods.edge_tables.models import TableNetwork
from chop.training.learned import FrontOptions, LearnedFront, train_front

Splits = dict[str, TensorSplit]
LIMITS = (30, 65, 115, 250, 400, 500, 860, 1200, 1800)


def shuffled_splits() -> Splits:
    """Return the rows in an order of a fixed seed, standardised by all but the test rows."""
    with np.load(FILE) as file:
        x, y = file["X"].astype("float64"), file["y"]
    order = np.random.default_rng(7).permutation(len(y))
    x, y = x[order], y[order]
    cut = int(0.8 * len(y))
    x = (x - x[:cut].mean(0)) / x[:cut].std(0)
    ends = {"train": (0, int(0.72 * len(y))), "validation": (int(0.72 * len(y)), cut)}
    ends["test"] = (cut, len(y))
    return {name: _split(x[slice(*ends[name])], y[slice(*ends[name])]) for name in ends}


def _split(x: np.ndarray, y: np.ndarray) -> TensorSplit:
    return TensorSplit(torch.from_numpy(x.astype("float32")), torch.from_numpy(y.astype("int64")))


class Genuine:
    """Genuine jets for scores, and the units of the network that was trained on such jets."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "jsc-openml-1k.npz") as file:
            self.mean, self.scale = file["scaler_mean"], file["scaler_scale"]
            self.quantiles = file["train_quantile_thresholds_std"]
            self.split = _split(file["X_std"], file["y"])
            assert "".join(file["classes"]) == "gqtwz", "the order of our classes"
        self.teacher = keras_network(folder / "checkpoints/jsc-hls4ml-tutorial-keras-3layer.h5")

    def simulated(self, *, mapped: bool) -> Splits:
        """Return the splits of jsc-sim in the units of genuine jets."""
        with np.load(FILE) as file:
            x, y = (file["X"] - self.mean) / self.scale, file["y"]
        x = self._mapped(x) if mapped else x
        order = np.random.default_rng(7).permutation(len(y))
        cut = int(0.9 * len(y))
        parts = {"train": order[:cut], "validation": order[cut:]}
        return {k: _split(x[rows], y[rows]) for k, rows in parts.items()} | {"test": self.split}

    def _mapped(self, x: np.ndarray) -> np.ndarray:
        """Move each feature so that it has the quantiles of the genuine training split."""
        count = self.quantiles.shape[1]
        shares = np.arange(1, count + 1) / (count + 1)
        columns = []
        for column, genuine in zip(x.T, self.quantiles, strict=True):
            own = np.quantile(column, shares)
            moved = np.interp(column, own, genuine)
            below, above = column < own[0], column > own[-1]
            moved[below] = column[below] + genuine[0] - own[0]
            moved[above] = column[above] + genuine[-1] - own[-1]
            columns.append(moved)
        return np.stack(columns, 1)


def keras_network(file: Path) -> nn.Module:
    """Return linear layers and ReLUs with the weights of a Keras file, without its softmax."""
    import h5py

    found: list[tuple[np.ndarray, np.ndarray]] = []
    with h5py.File(file) as h5:
        root = h5.get("model_weights", h5)
        for name in root.attrs["layer_names"]:
            group = root[name]
            arrays = [np.asarray(group[each]) for each in group.attrs["weight_names"]]
            if arrays:
                found.append((arrays[0], arrays[1]))
    layers: list[nn.Module] = []
    for weight, bias in found:
        linear = nn.Linear(*weight.shape)
        linear.weight.data, linear.bias.data = torch.tensor(weight.T), torch.tensor(bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def float_teacher(split: TensorSplit, steps: int = 2500) -> nn.Module:
    """Return a float network 96-96-64 with batch norm, trained on the training split."""
    torch.manual_seed(0)
    sizes = (16, 96, 96, 64)
    blocks = [(nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU()) for i, o in itertools.pairwise(sizes)]
    network = nn.Sequential(*itertools.chain(*blocks), nn.Linear(sizes[-1], 5))
    optimiser = torch.optim.AdamW(network.parameters(), 4e-3, weight_decay=2e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    x = split.x
    assert isinstance(x, Tensor)
    for _ in range(steps):
        rows = torch.randint(len(x), (1024,))
        loss = nn.functional.cross_entropy(network(x[rows]), split.y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return network.eval()


@torch.no_grad()
def accuracy(network: nn.Module, split: TensorSplit) -> float:
    x = split.x
    assert isinstance(x, Tensor)
    return float((network.eval()(x).argmax(1) == split.y).float().mean())


def trained(seed: int, splits: Splits, teacher: nn.Module | None, args: Any) -> LearnedFront:
    """Return the front of one seed."""
    torch.manual_seed(seed)
    network = TableNetwork(16, *args.hidden, 5)
    options = FrontOptions(
        way=args.way,
        members=args.members,
        ramps=args.ramps,
        fresh=args.ramps > 1,
        price=args.price,
        steps=args.steps,
        batch_size=args.batch,
        learning_rate=args.rate,
        checkpoints=args.checkpoints,
        freeze_last=0.05,
        retrain=args.retrain,
        max_designs=args.designs,
        distill=args.distill if teacher is not None else 0.0,
        temperature=args.temperature,
        seed=seed,
    )
    data = (splits["train"], splits["validation"])
    return train_front(network, data, options, teacher=teacher, on_checkpoint=args.note)


def best_within(rows: list[dict[str, float]], limit: float) -> dict[str, float] | None:
    """Return the best design of the validation split that costs at most `limit`."""
    inside = [row for row in rows if row["cost"] <= limit]
    return max(inside, key=lambda row: row["validation"]) if inside else None


def table(runs: list[list[dict[str, float]]], samples: int) -> str:
    """Return accuracies within limits: of each run, their mean, and its 95 % interval."""
    lines = []
    for limit in LIMITS:
        best = [best_within(rows, limit) for rows in runs]
        known = [each for each in best if each is not None]
        if len(known) < len(runs):
            continue
        tests = [each["test"] for each in known]
        mean = statistics.mean(tests)
        interval = 1.96 * math.sqrt(mean * (1 - mean) / samples)
        each = ", ".join(f"{100 * b['test']:.2f} at {b['cost']:.0f}" for b in known)
        lines.append((limit, f"{100 * mean:.2f}", f"{100 * interval:.1f}", each))
    return tabulate(
        lines, headers=["LUTs at most", "mean", "±", "each seed"], disable_numparse=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--split", choices=["jsc-sim", "shuffled"], default="shuffled")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--hidden", type=int, nargs="*", default=[20])
    parser.add_argument("--way", choices=["ramp", "population"], default="ramp")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--ramps", type=int, default=3)
    parser.add_argument("--price", type=float, nargs=2, default=[1e-5, 3e-3])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rate", type=float, default=1e-2)
    parser.add_argument("--checkpoints", type=int, default=200)
    parser.add_argument("--designs", type=int, default=24)
    parser.add_argument("--retrain", type=int, default=1000)
    parser.add_argument("--genuine", type=Path)
    parser.add_argument("--teacher", action="store_true")
    parser.add_argument("--map", action="store_true")
    parser.add_argument("--distill", type=float, default=0.9)
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    teacher = None
    if args.genuine is not None:
        genuine = Genuine(args.genuine)
        splits, teacher = genuine.simulated(mapped=args.map), genuine.teacher
        print(f"the teacher has {100 * accuracy(teacher, splits['test']):.1f} % on genuine jets")
        teacher = teacher if args.teacher else None
    elif args.split == "shuffled":
        splits = shuffled_splits()
    else:
        splits = {"train": jsc_sim("train"), "validation": jsc_sim("validation")}
        splits["test"] = jsc_sim("test")
    if args.teacher and teacher is None:
        teacher = float_teacher(splits["train"])
        print(f"the teacher has {100 * accuracy(teacher, splits['test']):.2f} %", flush=True)
    args.note = lambda checkpoint: print(checkpoint, flush=True)
    runs = []
    for seed in args.seeds:
        start, wall = time.process_time(), time.perf_counter()
        front = trained(seed, splits, teacher, args)
        rows = [
            {
                "cost": design.cost,
                "validation": design.metrics["accuracy"],
                "test": accuracy(front.network(design), splits["test"]),
            }
            for design in front.designs
        ]
        runs.append(rows)
        spent = f"{time.process_time() - start:.0f} s of CPU, {time.perf_counter() - wall:.0f} s"
        print(f"seed {seed}: {len(rows)} designs, {spent}; {front.report.warnings}", flush=True)
        for row in rows:
            print(" ".join(f"{k} {v:.4f}" for k, v in row.items()))
    print(table(runs, len(splits["test"])))
    if args.save is not None:
        args.save.write_text(json.dumps({"seeds": args.seeds, "runs": runs}))


if __name__ == "__main__":
    main()
