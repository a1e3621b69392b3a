"""Samples per second of `ch train` and of what people use instead, in one process.

    python benchmarks/train.py                  # floor, DataLoader, Lightning, ours, compiled
    python benchmarks/train.py --device cuda    # eager, a graph captured by hand, ours

Every way trains the same network on the same rows for the same number of steps. Ours writes
metrics, TensorBoard events and checkpoints meanwhile; the floor is a bare loop over tensors.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn

from chop.dataset import TensorSplit, get_dataset_info
from chop.models import get_model
from chop.training.devices import Place
from chop.training.loop import Training
from chop.training.names import Names
from chop.training.options import TrainOptions
from chop.training.scalars import CsvCurves, TensorBoardCurves

ROWS, FEATURES, CLASSES = 800_000, 16, 5
BATCHES = (64, 256, 1024, 4096)
RATE = 1e-3

Way = Callable[[nn.Module, Tensor, Tensor, int, int], None]


def rows(device: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(ROWS, FEATURES), torch.randn(FEATURES, CLASSES)
    return x.to(device), (x @ w).argmax(1).to(device)


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return get_model(name, task="cls", dataset_info=get_dataset_info("jsc-sim"))


def floor(model: nn.Module, x: Tensor, y: Tensor, batch: int, steps: int) -> None:
    """The plainest loop: a permutation, an index per step, Adam as it comes."""
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    order = torch.randperm(len(x), device=x.device)
    for step in range(steps):
        index = order[step * batch : (step + 1) * batch]
        optimizer.zero_grad()
        F.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()


def data_loader(model: nn.Module, x: Tensor, y: Tensor, batch: int, steps: int) -> None:
    """`DataLoader` over a `TensorDataset`, as most tutorials write it."""
    from torch.utils.data import DataLoader, TensorDataset

    optimizer = torch.optim.Adam(model.parameters(), RATE)
    loader = DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True)
    for _, (xs, ys) in zip(range(steps), loader, strict=False):
        optimizer.zero_grad()
        F.cross_entropy(model(xs), ys).backward()
        optimizer.step()


def lightning(model: nn.Module, x: Tensor, y: Tensor, batch: int, steps: int) -> None:
    """A Lightning `Trainer` with the labs' metrics, logger, checkpoints, bar and workers."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
    from lightning.pytorch.loggers import TensorBoardLogger
    from torch.utils.data import DataLoader, Dataset
    from torchmetrics import Accuracy

    class Rows(Dataset):
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return x[index], y[index]

    class Wrapper(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.loss_fn = model, nn.CrossEntropyLoss()
            self.acc_train = Accuracy("multiclass", num_classes=CLASSES)

        def training_step(self, pair: list[Tensor], index: int) -> Tensor:
            logits = self.model(pair[0])
            loss = self.loss_fn(logits, pair[1])
            self.log("train_acc_step", self.acc_train(logits, pair[1]), prog_bar=True)
            self.log("train_loss_step", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> dict[str, object]:
            optimizer = torch.optim.Adam(self.parameters(), RATE)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1)
            return {"optimizer": optimizer, "lr_scheduler": schedule}

    with tempfile.TemporaryDirectory() as folder, silence():
        trainer = pl.Trainer(
            max_epochs=1,
            max_steps=steps,
            accelerator="cpu",
            logger=TensorBoardLogger(folder),
            callbacks=[
                ModelCheckpoint(dirpath=folder, save_last=True),
                LearningRateMonitor("step"),
            ],
            enable_model_summary=False,
        )
        workers = os.cpu_count() or 0  # the default of the labs
        loader = DataLoader(Rows(), batch_size=batch, shuffle=True, num_workers=workers)
        trainer.fit(Wrapper(), loader)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing that is printed meanwhile is seen."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def ours(model: nn.Module, x: Tensor, y: Tensor, batch: int, steps: int) -> None:
    """The loop behind `ch train`, with its files."""
    fit(model, x, y, batch, steps, compiled=False)


def compiled(model: nn.Module, x: Tensor, y: Tensor, batch: int, steps: int) -> None:
    """Ours with `--compile`."""
    fit(model, x, y, batch, steps, compiled=True)


def fit(model: nn.Module, x: Tensor, y: Tensor, batch: int, steps: int, *, compiled: bool) -> None:
    data = SimpleNamespace(
        train_dataset=TensorSplit(x, y), val_dataset=None, batch_size=batch, num_workers=0
    )
    options = TrainOptions(
        max_epochs=1,
        max_steps=steps,
        learning_rate=RATE,
        compile=compiled,
        checkpoint_every=max(1, steps // 2),  # at least one in what is timed
        progress=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        curves = [CsvCurves(Path(folder) / "metrics.csv"), TensorBoardCurves(Path(folder))]
        place = Place(x.device)
        Training(
            model, data, options, names=Names(Path(folder)), visualizers=curves, place=place
        ).fit()
        for each in curves:
            each.finalize("success")


def captured_by_hand(model: nn.Module, x: Tensor, y: Tensor, batch: int, steps: int) -> None:
    """What an expert writes for one network: the step in a CUDA graph, batches copied into it."""
    optimizer = torch.optim.Adam(model.parameters(), RATE, fused=True, capturable=True)
    order = torch.randperm(len(x), device=x.device)
    xs, ys = x[:batch].clone(), y[:batch].clone()

    def step() -> None:
        F.cross_entropy(model(xs), ys).backward()
        optimizer.step()
        optimizer.zero_grad()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for number in range(steps):
        index = order[number * batch : (number + 1) * batch]
        torch.index_select(x, 0, index, out=xs)
        torch.index_select(y, 0, index, out=ys)
        graph.replay()


def seconds(way: Way, name: str, data: tuple[Tensor, Tensor], batch: int, steps: int) -> float:
    """Wall time of `steps` steps, without what a way costs before its first one.

    A way is run for a few steps and for `steps` more; the difference is the cost of those.
    Medians of such differences are compared, as a busy moment can hit either run.
    """
    few = max(8, steps // 20)
    times = []
    for count in (few, few, few + steps):  # the first only warms up
        model = network(name).to(data[0].device)
        began = time.perf_counter()
        way(model, *data, batch, count)
        if data[0].is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times[2] - times[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="jsc-s")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ways", nargs="*")
    parser.add_argument("--batches", nargs="*", type=int, default=BATCHES)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    on_cpu = {"floor": floor, "DataLoader": data_loader, "Lightning": lightning, "ours": ours}
    on_cpu |= {"ours, compiled": compiled}
    on_gpu = {"eager": floor, "captured by hand": captured_by_hand, "ours": ours}
    ways = on_gpu if args.device.startswith("cuda") else on_cpu
    ways = {name: way for name, way in ways.items() if not args.ways or name in args.ways}
    data = rows(args.device)
    table = []
    for batch in args.batches:
        steps = min(args.steps, ROWS // batch - 60)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.repeats):  # in turns, so that a busy minute hits all of them
            for name, way in ways.items():
                times[name].append(seconds(way, args.model, data, batch, steps))
        median = {name: statistics.median(values) for name, values in times.items()}
        first = next(iter(median.values()))
        table += [
            (
                batch,
                name,
                f"{t / steps * 1e6:,.0f}",
                f"{steps * batch / t:,.0f}",
                f"{t / first:.2f}",
            )
            for name, t in median.items()
        ]
    versions = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    print(f"{args.model}, {ROWS:,} rows, {args.device}, medians of {args.repeats}, {versions}\n")
    headers = ("batch", "way", "µs/step", "samples/s", f"time / {next(iter(ways))}")
    print(tabulate(table, headers, "github", disable_numparse=True))


if __name__ == "__main__":
    main()
