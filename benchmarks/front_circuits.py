"""Circuits of a front of learned bit widths: estimates, yosys' count, and the simulation of each.

    python benchmarks/front_circuits.py mase_output/jsc_learned --designs 10 --synth --simulate
    python benchmarks/front_circuits.py mase_output/jsc_learned            # estimates only, seconds

Reads the designs that `ch search` with the strategy `gradient` has trained, and prints a row for
each: the LUTs that training counted, both estimates, the LUTs that yosys packs (`--synth`), and the
codes in which the circuit in Verilator differs from the integer graph on the whole test split and
on boundary vectors (`--simulate`). `--designs` takes so many, evenly spread over the logarithm of
their costs. Syntheses and simulators are kept in the folder `--cache`, by the content of the
circuit. Without a project, the search of `configs/examples/jsc_learned.toml` is run first.

Errors are those of an estimate against the packed LUTs. A mismatch ends with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tabulate import tabulate
from torch import Tensor

from chop.checkpoints import load_graph
from chop.dataset import MaseDataModule
from chop.hardware.emit import EmitOptions, emit_circuit
from chop.hardware.estimate import CLOCK_PERIOD, estimate
from chop.hardware.simulation import check_circuit
from chop.hardware.synthesis import synthesize_circuit
from chop.system.files import cache_folder

EXAMPLE = Path(__file__).parents[1] / "configs" / "examples" / "jsc_learned.toml"
DESIGNS = Path("software", "search_ckpts", "search.designs")
COUNTED = ("training", "formula", "adders")
Row = dict[str, Any]


def spread(costs: Sequence[float], most: int) -> list[int]:
    """Return the places of up to `most` costs, evenly spread over their logarithms.

    >>> spread([10, 11, 12, 100, 900, 1000], 3)
    [0, 3, 5]
    """
    logs = [math.log(max(1.0, cost)) for cost in costs]
    if most >= len(logs):
        return list(range(len(logs)))
    wanted = [
        min(logs) + (max(logs) - min(logs)) * k / max(1, most - 1) for k in range(max(1, most))
    ]
    left, found = set(range(len(logs))), []
    for log in wanted:
        nearest = min(left, key=lambda i: (abs(logs[i] - log), i))
        left.discard(nearest)
        found.append(nearest)
    return sorted(found)


class Front:
    """The designs of a search in the folder of its project."""

    def __init__(self, project: Path, cache: Path) -> None:
        self.folder, self.cache = project / DESIGNS, cache
        file = self.folder / "front.json"
        if not file.exists():
            raise SystemExit(
                f"{file} does not exist; give the folder of a finished `ch search` with the "
                f"strategy gradient"
            )
        self.designs: list[Row] = json.loads(file.read_text(encoding="utf-8"))["designs"]

    def row(self, number: int, args: argparse.Namespace, test: tuple[Tensor, Tensor] | None) -> Row:
        """Return all that is measured of a design."""
        integers = load_graph(self.folder / f"design_{number}").to_integers()
        row: Row = {"design": number, "training": self.designs[number]["cost"]}
        for fidelity in ("formula", "adders"):
            row[fidelity] = estimate(integers, fidelity=fidelity, clock_period=args.clock).lut  # type: ignore[arg-type]
        if not (args.synth or args.simulate):
            return row
        circuit = emit_circuit(integers, EmitOptions(clock=args.clock), progress=False)
        row["cycles"] = circuit.latency
        if args.synth:
            made = synthesize_circuit(circuit, folder=self.cache / "synth", timeout=args.timeout)
            row |= {"yosys": made.packed_luts, "FF": made.ffs, "depth": made.depth}
        if test is not None:
            x, labels = test
            done = check_circuit(integers, circuit, [x], folder=self.cache / "sim", labels=labels)
            row |= {"accuracy %": 100 * (done.accuracy or 0), "mismatches": done.mismatches}
            row["vectors"] = done.samples + done.boundary_vectors
        return row


def errors(rows: Sequence[Row]) -> list[Row]:
    """Return how far each way to count is from the LUTs that yosys packs."""
    told = []
    for name in COUNTED:
        off = [100 * (row[name] / max(1, row["yosys"]) - 1) for row in rows]
        away = [abs(e) for e in off]
        told.append(
            {
                "against yosys": name,
                "mean %": sum(off) / len(off),
                "lowest %": min(off),
                "highest %": max(off),
                "median error %": median(away),
                "worst error %": max(away),
            }
        )
    return told


def searched(folder: Path) -> Path:
    """Run the search of the example, and return the folder of its project."""
    command = [sys.executable, "-m", "chop", "search", "--config", str(EXAMPLE)]
    subprocess.run([*command, "--project-dir", str(folder)], check=True)
    return folder / "jsc_learned"


def measure(project: Path, args: argparse.Namespace) -> int:
    """Print the tables of a project; return the number of mismatches."""
    front = Front(project, args.cache)
    test = None
    if args.simulate:
        data = MaseDataModule(args.dataset)
        data.setup("test")
        split: Any = data.test_dataset
        test = (split.x, split.y)
    costs = [design["cost"] for design in front.designs]
    rows = []
    for number in spread(costs, args.designs or len(costs)):
        rows.append(front.row(number, args, test))
        shown = {k: f"{v:.6g}" for k, v in rows[-1].items()}
        print(*(f"{k} {v}" for k, v in shown.items()), sep=", ", file=sys.stderr, flush=True)
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=",.1f", intfmt=","))
    told = errors(rows) if args.synth else []
    if told:
        print("\n" + tabulate(told, headers="keys", tablefmt="github", floatfmt="+.1f"))
    if args.json:
        args.json.write_text(json.dumps({"designs": rows, "errors": told}, indent=1) + "\n")
    return sum(row.get("mismatches", 0) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("project", type=Path, nargs="?", help="folder of the search's project")
    parser.add_argument("--designs", type=int, help="how many designs (default: all)")
    parser.add_argument("--synth", action="store_true", help="count LUTs with yosys")
    parser.add_argument("--simulate", action="store_true", help="simulate on the test split")
    parser.add_argument("--dataset", default="jsc-sim", help="data of the simulation")
    parser.add_argument("--clock", type=float, default=CLOCK_PERIOD, help="period in ns")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for a synthesis")
    parser.add_argument("--cache", type=Path, default=cache_folder() / "front_circuits")
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    args = parser.parse_args()
    if args.designs is not None and args.designs < 1:
        parser.error(f"--designs must be at least 1, not {args.designs}")
    logging.getLogger("chop").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        wrong = measure(args.project or searched(Path(folder)), args)
    if wrong:
        raise SystemExit(f"{wrong} codes of the circuits differ from the integer graphs")


if __name__ == "__main__":
    main()
