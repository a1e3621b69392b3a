"""Steps of networks per second: a population, against the same networks one at a time.

    OMP_NUM_THREADS=2 python benchmarks/population.py
    python benchmarks/population.py --device cuda --model jsc-s --batch 256 --rows 800000 \\
        --populations 1 16 64 256 1024
    OMP_NUM_THREADS=1 python benchmarks/population.py --search --populations 16 64

A net-step is one optimiser step of one network. One at a time is our own loop (captured, on a GPU),
and a plain eager loop; both train one network, since a second one takes as long again. With
`--search` whole searches of bit widths on jsc-sim are timed, of `--trials` designs that take
`--steps` steps each.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import nn

from chop.actions import search
from chop.dataset import MaseDataModule, TensorSplit, get_dataset_info
from chop.devices import parse_accelerator
from chop.methods.population.population import Population
from chop.models import get_model, get_model_info
from chop.numerics import FORMATS
from chop.passes.graph.transforms.quantize.quantized_modules import LAYERS, variant
from chop.training.devices import Place, threads_for
from chop.training.loop import Training
from chop.training.options import TrainOptions

FEATURES, CLASSES, RATE = 16, 5, 1e-3
Work = Callable[[int], None]  # takes so many steps


def rows(count: int, device: str) -> TensorSplit:
    torch.manual_seed(0)
    x, w = torch.randn(count, FEATURES), torch.randn(FEATURES, CLASSES)
    return TensorSplit(x.to(device), (x @ w).argmax(1).to(device))


def network(name: str, seed: int, quantized: bool) -> nn.Module:
    torch.manual_seed(seed)
    model = get_model(name, task="cls", dataset_info=get_dataset_info("jsc-sim"))
    if not quantized:
        return model
    width = 4 + seed % 5
    config = {"name": "integer"}
    for operand in ("data_in", "weight", "bias"):
        config |= {f"{operand}_width": width, f"{operand}_frac_width": width // 2}
    for path, layer in list(model.named_modules()):
        if type(layer) in LAYERS:
            parent = model.get_submodule(path.rpartition(".")[0])
            new = variant(LAYERS[type(layer)], FORMATS["integer"]).from_float(layer, config)
            setattr(parent, path.rpartition(".")[2], new)
    return model


def options(seed: int) -> TrainOptions:
    return TrainOptions(max_epochs=10**6, learning_rate=RATE, seed=seed, progress=False)


def population(args: argparse.Namespace, split: TensorSplit, size: int) -> Work:
    """So many networks at once, each with an order of its own unless they share one."""
    models = [network(args.model, seed, args.quantized) for seed in range(size)]
    seeds = [0 if args.shared_order else seed for seed in range(size)]
    chosen = [options(seed) for seed in seeds]
    device = torch.device(args.device)
    run = Population(models, (split, None), chosen, seeds, batch_size=args.batch, device=device)
    run.updates.set_rates(epoch=0, step=0)
    left = itertools.chain.from_iterable(whole_batches(run, epoch) for epoch in itertools.count())

    def work(steps: int) -> None:
        with threads_for(run.work, device):
            for _ in itertools.islice(left, steps):
                run.take()

    return work


def whole_batches(run: Population, epoch: int) -> Iterator[int]:
    run.batches.start(epoch, 0)
    yield from range(len(run.train) // run.batch_size)


def one_by_one(args: argparse.Namespace, split: TensorSplit) -> Work:
    """Our own loop, for one network."""
    data = SimpleNamespace(
        train_dataset=split, val_dataset=None, batch_size=args.batch, num_workers=0
    )
    model = network(args.model, 0, args.quantized)
    run = Training(model, data, options(0), place=Place(parse_accelerator(args.device)))
    model.train()
    size = args.batch * sum(p.numel() for p in model.parameters())
    left = itertools.chain.from_iterable(run.run(epoch, 0) for epoch in itertools.count())

    def work(steps: int) -> None:
        with threads_for(size, torch.device(args.device)):
            for outcome in itertools.islice(left, steps):
                if args.device == "cpu":
                    outcome.loss.item()  # as the loop does

    return work


def eager(args: argparse.Namespace, split: TensorSplit) -> Work:
    """What a notebook does."""
    model = network(args.model, 0, args.quantized).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    order = torch.randperm(len(split), device=args.device)

    def work(steps: int) -> None:
        for step in range(steps):
            index = order[step * args.batch : (step + 1) * args.batch]
            optimizer.zero_grad()
            F.cross_entropy(model(split.x[index]), split.y[index]).backward()
            optimizer.step()

    return work


def trials_per_second(args: argparse.Namespace, data: MaseDataModule, population: int) -> float:
    """A whole search; a population of 0 is basic_train."""
    operands = {f"{operand}_frac_width": [3] for operand in ("data_in", "weight", "bias")}
    widths = {f"{operand}_width": [4, 5, 6, 7, 8] for operand in ("data_in", "weight", "bias")}
    budget = {"max_steps": args.steps, "learning_rate": RATE, "num_val_samples": 2000}
    one, many = {"basic_train": budget}, {"population_train": budget | {"population": population}}
    tables = {
        "search_space": {
            "name": "graph/quantize",
            "setup": {"by": "type"},
            "seed": {"linear": {"config": {"name": ["integer"], **widths, **operands}}},
        },
        "strategy": {
            "sw_runner": many if population else one,
            "hw_runner": {"average_bitwidth": {}},
            "setup": {"sampler": "tpe", "n_trials": args.trials, "in_flight": population or 8},
            "metrics": {"accuracy": {}, "average_bitwidth": {}},
        },
    }
    model, info = network(args.model, 0, quantized=False), get_model_info(args.model)
    facts = (model, info, "cls", data.dataset_info, data, tables)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        search(*facts, folder, args.device)
        return args.trials / (time.perf_counter() - began)


def compare_searches(args: argparse.Namespace) -> None:
    logging.disable(logging.WARNING)
    data = MaseDataModule("jsc-sim", batch_size=args.batch)
    data.prepare_data()
    data.setup("fit")
    ways = [0, *args.populations]
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(args.repeats):
        for way, own in zip(ways, found, strict=True):
            own.append(trials_per_second(args, data, way))
    rates = [statistics.median(own) for own in found]
    table = [
        (f"population_train, {way}" if way else "basic_train", f"{r:.1f}", f"{r / rates[0]:.1f}")
        for way, r in zip(ways, rates, strict=True)
    ]
    print(f"{args.model}, {args.trials} trials of {args.steps} steps, batch {args.batch}")
    print()
    print(tabulate(table, ("runner", "trials/s", "× basic_train"), "github", disable_numparse=True))


def seconds_per_step(works: dict[tuple[str, int], Work], args: argparse.Namespace) -> list[float]:
    """Medians; the ways take turns, so that a busy moment hits all of them."""
    steps = min(args.steps, args.rows // args.batch)
    times: list[list[float]] = [[] for _ in works]
    for work in works.values():
        work(min(steps, 10))
    for _ in range(args.repeats):
        for work, own in zip(works.values(), times, strict=True):
            began = time.perf_counter()
            work(steps)
            if args.device != "cpu":
                torch.cuda.synchronize()
            own.append((time.perf_counter() - began) / steps)
    return [statistics.median(own) for own in times]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="jsc-tiny")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--populations", nargs="*", type=int, default=(1, 16, 64, 256))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quantized", action="store_true", help="integers of 4 to 8 bits")
    parser.add_argument("--shared-order", action="store_true")
    parser.add_argument("--search", action="store_true", help="time whole searches")
    parser.add_argument("--trials", type=int, default=64)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.search:
        compare_searches(args)
        return
    split = rows(args.rows, args.device)
    works = {("eager loop", 1): eager(args, split), ("our loop", 1): one_by_one(args, split)}
    works |= {("population", size): population(args, split, size) for size in args.populations}
    times = seconds_per_step(works, args)
    table = [
        (
            name,
            size,
            f"{each * 1e6:,.0f}",
            f"{size / each:,.0f}",
            f"{size * args.batch / each:,.0f}",
            *(f"{single * size / each:.1f}" for single in times[:2]),
        )
        for (name, size), each in zip(works, times, strict=True)
    ]
    threads = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    kind = "integer" if args.quantized else "float"
    print(
        f"{args.model} ({kind}), batch {args.batch}, {args.rows:,} rows, {args.device}, {threads}"
    )
    print()
    headers = ("way", "networks", "µs/step", "net-steps/s", "samples/s", "× eager", "× our loop")
    print(tabulate(table, headers, "github", disable_numparse=True))


if __name__ == "__main__":
    main()
