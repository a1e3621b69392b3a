"""Trials per second of a mixed-precision search: rebuilt each time, ours, and Optuna alone.

python benchmarks/search.py              # jsc-s (1,024 samples) and vgg7 (256 images)
python benchmarks/search.py --quick      # jsc-s, few trials
python benchmarks/search.py --scaling    # 100 to 10,000 trials in each storage, 1 and 2 workers
python benchmarks/search.py --memory     # resident memory over 2,000 trials
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import torch
import torch.nn.functional as F
from tabulate import tabulate

from chop.actions.search.results.page.page import write_report
from chop.actions.search.run_study import choose_study, run_study
from chop.actions.search.spec.parent import make_parent
from chop.actions.search.spec.settings import settings_of
from chop.actions.search.spec.study_spec import StudySpec, build_spec
from chop.actions.search.store.location import StudyLocation
from chop.actions.transform.source import Source
from chop.dataset import MaseDataModule
from chop.dataset.tensors import TensorSplit
from chop.ir import MaseGraph
from chop.models import get_model, get_model_info
from chop.passes import PASSES
from chop.tools.get_input import get_dummy_input

WIDTHS = [2, 3, 4, 5, 6, 8]
SEED = {
    "name": ["integer"],
    "data_in_width": WIDTHS,
    "data_in_frac_width": [None],
    "weight_width": WIDTHS,
    "weight_frac_width": [None],
    "bias_width": [8],
    "bias_frac_width": [4],
}


def tables(samples: int, trials: int, sampler: str, op: str) -> dict[str, Any]:
    return {
        "search_space": {
            "name": "graph/quantize/mixed_precision_ptq",
            "setup": {"by": "type"},
            "seed": {"default": {"config": {"name": [None]}}, op: {"config": SEED}},
        },
        "strategy": {
            "sw_runner": {"basic_evaluation": {"num_samples": samples}},
            "hw_runner": {"average_bitwidth": {}},
            "setup": {"n_trials": trials, "sampler": sampler},
            "metrics": {"accuracy": {"scale": 1.0}, "average_bitwidth": {"scale": 0.2}},
        },
    }


class Noise:
    """Images of CIFAR's size; what a network costs does not depend on what they show."""

    name, num_workers = "noise", 0

    def __init__(self, samples: int) -> None:
        self.batch_size = samples
        self.dataset_info = MaseDataModule("cifar10", batch_size=samples).dataset_info
        self.train_dataset = self.val_dataset = TensorSplit(
            torch.randn(samples, 3, 32, 32), torch.randint(10, (samples,))
        )

    def train_dataloader(self) -> list[Any]:
        return [(self.train_dataset.x, self.train_dataset.y)]


def data_for(model: str, samples: int) -> Any:
    if not model.startswith("jsc"):
        return Noise(samples)
    data = MaseDataModule("jsc-sim", batch_size=samples)
    data.prepare_data()
    data.setup()
    return data


def spec_of(model: str, samples: int, trials: int, sampler: str) -> StudySpec:
    data = data_for(model, samples)
    network = get_model(model, task="cls", dataset_info=data.dataset_info, pretrained=False)
    op = "linear" if model.startswith("jsc") else "conv2d"
    table = tables(samples, trials, sampler, op)
    source = Source(network.eval(), get_model_info(model), "", data, "cls", None, "mz")
    parent = make_parent(source, "cpu")
    return build_spec(parent, table, settings_of(table), model_name="benchmark")


def ours(spec: StudySpec, folder: Path) -> None:
    # a sampler remembers its trials, and each run needs a new one
    fresh = build_spec(spec.parent, spec.tables, spec.settings, model_name="benchmark")
    run_study(fresh, choose_study(StudyLocation(folder, progress=False)))


def naive(spec: StudySpec, folder: Path) -> None:
    """What the labs' notebooks do for each design: copy, trace, describe, quantize, evaluate."""
    parent, space = spec.parent, spec.space
    split = parent.data_module.val_dataset
    samples = spec.settings.runners[0][1]["num_samples"]
    x, y = split.x[:samples], split.y[:samples].long()
    dummy_in = get_dummy_input(parent.model_info, parent.data_module, "cls", "cpu")

    def objective(trial: optuna.Trial) -> list[float]:
        config = space.config_of(space.choices.suggest(trial))
        graph = MaseGraph(copy.deepcopy(parent.graph.model))
        graph, _ = PASSES["init_metadata"](graph)
        graph, _ = PASSES["add_common_metadata"](graph, {"dummy_in": dummy_in})
        graph, _ = PASSES["add_software_metadata"](graph)
        for name, options in space.steps(config):
            graph, _ = PASSES[name](graph, options)
        with torch.no_grad():
            logits = graph.model(x)
        F.cross_entropy(logits, y).item()
        accuracy = (logits.argmax(-1) == y).double().mean().item()
        _, bits = PASSES["calculate_avg_bits"](graph)
        return [accuracy, 0.2 * bits["w_avg_bit"]]

    _optuna(spec, folder, objective)


def ceiling(spec: StudySpec, folder: Path) -> None:
    """Optuna with the same sampler, storage and parameters, and nothing to do."""
    choices = spec.space.choices

    def objective(trial: optuna.Trial) -> list[float]:
        choices.suggest(trial)
        return [0.5, 1.0]

    _optuna(spec, folder, objective)


def _optuna(spec: StudySpec, folder: Path, objective: Callable[[optuna.Trial], Any]) -> None:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    settings = spec.settings
    sampler = {"random": "RandomSampler", "tpe": "TPESampler", "nsgaii": "NSGAIISampler"}
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(folder / "optuna.log"))),
        sampler=getattr(optuna.samplers, sampler[settings.sampler])(seed=0),
        directions=["maximize", "minimize"],
    )
    study.optimize(objective, n_trials=settings.n_trials)


def per_second(run: Callable[[StudySpec, Path], None], spec: StudySpec) -> tuple[float, float]:
    """Trials per second of wall time, and CPU milliseconds a trial."""
    with tempfile.TemporaryDirectory() as folder:
        began, cpu = time.perf_counter(), time.process_time()
        run(spec, Path(folder))
        trials = spec.settings.n_trials
        seconds = time.perf_counter() - began
        return trials / seconds, 1e3 * (time.process_time() - cpu) / trials


def compare(cases: list[tuple[str, int, int, int]], samplers: list[str]) -> None:
    rows = []
    for model, samples, trials, few in cases:
        for sampler in samplers:
            speeds = {}
            for name, run in (("naive", naive), ("ours", ours), ("ceiling", ceiling)):
                number = few if name == "naive" else trials
                spec = spec_of(model, samples, number, sampler)
                per_second(run, spec)  # once to warm up
                speeds[name] = per_second(run, spec)
            rows.append(
                {
                    "model": model,
                    "sampler": sampler,
                    **{f"{n} trials/s": f"{s:.1f}" for n, (s, _) in speeds.items()},
                    **{f"{n} CPU ms": f"{ms:.2f}" for n, (_, ms) in speeds.items()},
                    "ours/naive": f"{speeds['naive'][1] / speeds['ours'][1]:.1f}x",
                    "ours/ceiling": f"{speeds['ours'][1] / speeds['ceiling'][1]:.2f}x",
                }
            )
    print(tabulate(rows, headers="keys", tablefmt="github"))


def _cpu_seconds() -> float:
    """Of this process and of those that it has started and that are gone."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who))


def scaling(trials: list[int], urls: list[str]) -> None:
    rows = []
    for number in trials:
        for url in urls:
            for workers in (1, 2):
                spec = spec_of("jsc-s", 1024, number, "random")
                with tempfile.TemporaryDirectory() as folder:
                    storage = None if url == "journal" else url.format(folder=folder)
                    place = StudyLocation(
                        Path(folder), storage, f"s{time.time_ns()}", workers, progress=False
                    )
                    began, cpu = time.perf_counter(), _cpu_seconds()
                    run_study(spec, place)
                    seconds, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
                rows.append(
                    {
                        "trials": f"{number:,}",
                        "storage": url.partition(":")[0],
                        "workers": workers,
                        "trials/s": f"{number / seconds:.1f}",
                        "seconds": f"{seconds:.1f}",
                        "CPU ms": f"{1e3 * cpu / number:.2f}",
                    }
                )
                print(rows[-1], flush=True)
    print(tabulate(rows, headers="keys", tablefmt="github"))


class Scales:
    """Weighs this process after each quarter of a search, as something that is told of trials."""

    def __init__(self, trials: int) -> None:
        self.every, self.sizes = trials // 4, list[float]()

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        if step % self.every == self.every - 1:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.sizes.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)


def memory(trials: int, sampler: str) -> None:
    """Resident memory at every quarter of a search, and at most, with its files and page."""
    spec, scales = spec_of("jsc-s", 1024, trials, sampler), Scales(trials)
    with tempfile.TemporaryDirectory() as folder:
        place = StudyLocation(Path(folder), progress=False)
        run_study(spec, place, visualizer=scales)
        files = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        write_report(Path(folder) / "search.json")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{trials:,} trials, {sampler}: MB after each quarter", end=" ")
    print(", ".join(f"{size:.1f}" for size in scales.sizes), end="; ")
    print(f"at most {files / 976.5625:.1f}, with the page {peak / 976.5625:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--trials", type=int, default=2_000, help="of --memory")
    parser.add_argument("--sampler", default="random", help="of --memory")
    parser.add_argument("--postgresql", help="URL of a database for --scaling")
    parser.add_argument("--most", type=int, default=10_000, help="the most trials of --scaling")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("chop").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if arguments.memory:
        memory(arguments.trials, arguments.sampler)
    elif arguments.scaling:
        urls = ["journal", "sqlite:///{folder}/study.db"]
        urls += [arguments.postgresql] if arguments.postgresql else []
        scaling([n for n in (100, 1_000, 10_000) if n <= arguments.most], urls)
    elif arguments.quick:
        compare([("jsc-s", 1024, 200, 20)], ["random"])
    else:
        compare([("jsc-s", 1024, 500, 50), ("vgg7", 256, 10, 5)], ["random", "nsgaii", "tpe"])


if __name__ == "__main__":
    main()
