"""BitOPs of the quickstart's Pareto front at equal accuracy, by how its numbers are scaled.

    python benchmarks/quickstart.py                # five searches of 400 trials of each kind
    python benchmarks/quickstart.py --seeds 1      # the first of them only

All searches start from the same trained parent and have the quickstart's sampler, samples and
objectives. The tables have the median of the searches, and the front of all their trials. The
fraction widths are half of each width, or calibrated; `scale_integer` instead computes a scale
for each row of a tensor when the network runs. Half of the width may also use 10 and 12 bits,
because 8 do not reach the accuracy of the parent; a column without these shows what they cost.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from statistics import median_low
from typing import Any

import tomlkit
from tabulate import tabulate

QUICKSTART = Path(__file__).parents[1] / "configs" / "examples" / "quickstart.toml"
LOSSES = (0.2, 0.5, 1.0, 2.0, 3.0, 5.0)  # points of accuracy below the parent
FRACTIONS = ("data_in_frac_width", "weight_frac_width", "bias_frac_width")
WIDTHS = ("data_in_width", "weight_width")

Table = dict[str, Any]
Front = list[tuple[float, float]]  # accuracy and BitOPs


def half_of_same(linear: Table) -> Table:
    """Return the choices with half of each width as its fraction."""
    return linear | {key: ["NA"] for key in FRACTIONS}


def half(linear: Table) -> Table:
    """Return the choices with half of each width as its fraction, and wider ones."""
    return half_of_same(linear) | {key: [*linear[key], 10, 12] for key in WIDTHS}


def scale_integer(linear: Table) -> Table:
    """Return the choices with scales that are computed from the data at each call."""
    return {k: v for k, v in linear.items() if k not in FRACTIONS} | {"name": ["scale_integer"]}


KINDS: dict[str, Callable[[Table], Table]] = {
    "half of the width": half,
    "half, to 8 bits": half_of_same,
    "calibrated": dict,
    "scale_integer": scale_integer,
}


def ch(*words: object) -> None:
    """Run a command on one core; what it logs is shown if it fails."""
    command = [sys.executable, "-m", "chop", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)


def train(folder: Path) -> Path:
    """Train the parent in a folder, and return its checkpoint."""
    options = ("max_epochs", "batch_size", "learning_rate", "seed", "task")
    config = tomllib.loads(QUICKSTART.read_text())
    words = [w for key in options for w in (f"--{key.replace('_', '-')}", config[key])]
    where = ("--project-dir", folder, "--project", "parent")
    ch("train", config["model"], config["dataset"], *words, *where)
    return folder / "parent" / "software" / "training_ckpts" / "best.ckpt"


def search(folder: Path, name: str, seed: int, checkpoint: Path) -> tuple[float, Front]:
    """Run one search, and return the accuracy of the parent and the front."""
    config = tomllib.loads(QUICKSTART.read_text())
    del config["search"]["train_parent"]
    seeds = config["search"]["search_space"]["seed"]
    seeds["linear"]["config"] = KINDS[name](seeds["linear"]["config"])
    project = f"{name.replace(' ', '_')}_{seed}"
    file = folder / f"{project}.toml"
    file.write_text(tomlkit.dumps(config))
    where = ("--project-dir", folder, "--project", project, "--seed", seed)
    ch("search", "--config", file, *where, "--load", checkpoint, "--load-type", "pl")
    results = folder / project / "software" / "search_ckpts"
    trials = json.loads((results / "best.json").read_text())
    parent = json.loads((results / "search.json").read_text())["baseline"]["software_metrics"]
    return parent["accuracy"], [tuple(trial["value"]) for trial in trials.values()]


def least(front: Front, accuracy: float) -> float:
    """Return the fewest BitOPs of a design with at least that accuracy; infinite without one."""
    return min((cost for score, cost in front if score >= accuracy), default=math.inf)


def row(lost: float, parent: float, fronts: Mapping[str, list[Front]]) -> Table:
    """Return the BitOPs at one accuracy, the median of the searches of each kind."""
    wanted = parent - lost / 100
    found = {name: median_low(least(f, wanted) for f in some) for name, some in fronts.items()}
    ratio = f"{found['calibrated'] / found['half of the width']:.2f}"
    shown = {name: "–" if cost == math.inf else f"{cost:,.0f}" for name, cost in found.items()}
    return {"points lost, at most": lost, **shown, "calibrated / half": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="searches of each kind")
    seeds = range(parser.parse_args().seeds)
    fronts: dict[str, list[Front]] = {name: [] for name in KINDS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint = train(folder)
        for kind, found in fronts.items():
            for seed in seeds:
                parent, front = search(folder, kind, seed, checkpoint)
                found.append(front)
    print(f"parent: {parent:.4f}; median of {len(seeds)} searches:")
    show(parent, fronts)
    print("the front of all their trials:")
    show(parent, {kind: [list(chain(*found))] for kind, found in fronts.items()})


def show(parent: float, fronts: Mapping[str, list[Front]]) -> None:
    """Print the table of all accuracies."""
    rows = [row(lost, parent, fronts) for lost in LOSSES]
    print(tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
