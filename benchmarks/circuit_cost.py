"""Searches by the LUTs of circuits, compared with searches by bit operations.

    python benchmarks/circuit_cost.py              # the quickstart by both, three times each
    python benchmarks/circuit_cost.py --repeats 1

Both searches have the quickstart's network, parent, trials and sampler. Its batch norms are in
fixed point too, as a circuit needs; the time is that of the whole search with its files, and the
CPU time, which a busy machine changes less, that of the whole command with its start. The last
table has the CPU time of one evaluation of each metric: in the first 300 trials of a search, in the
next 300, and of designs that were seen before. The mean of the first 300 includes the first trial,
which converts the network to integers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import tomlkit
from quickstart import QUICKSTART, ch, train
from tabulate import tabulate

METRICS = ("bitops", "lut")
NORM = {
    "name": ["integer"],
    **{f"{operand}_width": [8] for operand in ("data_in", "weight", "bias")},
    **{f"{operand}_frac_width": [5] for operand in ("data_in", "weight", "bias")},
}


def tables(metric: str) -> dict[str, Any]:
    """Return the quickstart's file with another objective."""
    config = tomllib.loads(QUICKSTART.read_text())
    del config["search"]["train_parent"]
    config["search"]["search_space"]["seed"]["batch_norm1d"] = {"config": NORM}
    strategy = config["search"]["strategy"]
    strategy["hw_runner"] = {metric: {}}
    strategy["metrics"] = {"accuracy": {}, metric: {}}
    return config


def seconds(folder: Path, metric: str, run: int, checkpoint: Path) -> tuple[float, float]:
    """Return the time of one search, and the CPU time of its command."""
    project = f"{metric}_{run}"
    file = folder / f"{project}.toml"
    file.write_text(tomlkit.dumps(tables(metric)))
    where = ("--project-dir", folder, "--project", project, "--no-progress")
    began = spent()
    ch("search", "--config", file, *where, "--load", checkpoint, "--load-type", "pl")
    record = folder / project / "software" / "search_ckpts" / "search.json"
    return float(json.loads(record.read_text())["seconds"]), spent() - began


def spent() -> float:
    """Return the CPU time of all commands so far."""
    return sum(os.times()[2:4])


def evaluations() -> dict[str, tuple[float, ...]]:
    """Return the microseconds of an evaluation.

    The median and the mean early, the medians late and of known designs.
    """
    from chop.actions.search.metrics.base import Trial
    from chop.actions.search.metrics.circuit import circuit_of
    from chop.actions.search.metrics.costs import costs_of

    space = quickstart_space()
    source = random.Random(0)
    keys = space.choices.parameters
    chosen = [{p.key: source.choice(list(p.choice.values)) for p in keys} for _ in range(600)]
    early, late = chosen[:300], chosen[300:]

    def timed(measure: Callable[[Trial], Any], designs: list[dict[str, Any]]) -> list[float]:
        times = []
        for each in designs:
            config = space.config_of(each)
            candidate = space.candidate(config)
            trial = Trial(0, config, 0, candidate.make_graph, candidate.model)
            began = time.process_time()
            measure(trial)
            times.append(1e6 * (time.process_time() - began))
        return times

    measures: dict[str, Callable[[Trial], Any]] = {
        "bitops": lambda trial: costs_of(trial).bit_ops,
        "lut": lambda trial: circuit_of(trial, "formula", 5.0),
    }
    found = {}
    for name, measure in measures.items():
        first, following, known = (timed(measure, designs) for designs in (early, late, late))
        found[name] = (median(first), mean(first), median(following), median(known))
    return found


def quickstart_space() -> Any:
    """Return the search space of the quickstart, with an untrained network."""
    from chop.actions.search.spec.parent import make_parent
    from chop.actions.search.spec.settings import settings_of
    from chop.actions.search.spec.study_spec import build_spec
    from chop.actions.transform.source import Source
    from chop.dataset import MaseDataModule
    from chop.models import get_model, get_model_info
    from chop.tools.config_load import convert_str_na_to_none

    config = tables("lut")
    data = MaseDataModule(config["dataset"], batch_size=config["batch_size"])
    data.prepare_data()
    data.setup()
    name = config["model"]
    model = get_model(name, task="cls", dataset_info=data.dataset_info, pretrained=False)
    source = Source(model.eval(), get_model_info(name), "", data, "cls", None, "mz")
    search = convert_str_na_to_none(config["search"])
    return build_spec(make_parent(source, "cpu"), search, settings_of(search)).space


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="searches by each metric")
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint = train(folder)
        # in turns, so that both have the same neighbours on the machine
        runs = [{m: seconds(folder, m, run, checkpoint) for m in METRICS} for run in range(repeats)]
    for place, what in enumerate(("s", "CPU s")):
        rows = [{f"{m}, {what}": run[m][place] for m in METRICS} for run in runs]
        ratios = [run["lut"][place] / run["bitops"][place] for run in runs]
        rows = [{**row, "ratio": ratio} for row, ratio in zip(rows, ratios, strict=True)]
        print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".2f"))
        print(f"median ratio: {median(ratios):.2f}\n")
    names = ("first µs", "mean of first µs", "next µs", "known µs")
    times = [{"metric": m, **dict(zip(names, t, strict=True))} for m, t in evaluations().items()]
    print(tabulate(times, headers="keys", tablefmt="github", floatfmt=".0f"))


if __name__ == "__main__":
    main()
