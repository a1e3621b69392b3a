"""A small task that trains in milliseconds."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from chop.dataset import TensorSplit
from chop.training.devices import Place
from chop.training.loop import Training
from chop.training.names import Names
from chop.training.options import TrainOptions

CPU = Place(torch.device("cpu"))


def rows(size: int, seed: int) -> TensorSplit:
    x = torch.randn(size, 16, generator=torch.Generator().manual_seed(seed))
    weight = torch.randn(16, 5, generator=torch.Generator().manual_seed(99))
    return TensorSplit(x, (x @ weight).argmax(1))


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 5)
    )


def data(size: int = 1000, batch_size: int = 64, **changes) -> SimpleNamespace:
    parts = {"train_dataset": rows(size, 1), "val_dataset": rows(300, 2)}
    return SimpleNamespace(**(parts | {"batch_size": batch_size, "num_workers": 0} | changes))


def options(**changes) -> TrainOptions:
    return TrainOptions(**({"max_epochs": 3, "learning_rate": 1e-2, "progress": False} | changes))


def training(folder=None, *, model=None, of=None, visualizers=(), **changes) -> Training:
    """A run on the CPU that saves into `folder`, ready to start."""
    return Training(
        model if model is not None else network(),
        of or data(),
        options(**changes),
        names=Names(folder) if folder else None,
        visualizers=visualizers,
        place=CPU,
    )


class Recorder:
    """A visualizer that keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics, step):
        self.rows.append((step, dict(metrics)))

    def steps(self, name: str) -> list[int]:
        return [step for step, metrics in self.rows if name in metrics]

    def values(self, name: str) -> list[float]:
        return [metrics[name] for _, metrics in self.rows if name in metrics]


@pytest.fixture(scope="session")
def small():
    """The makers above, for tests that import nothing from here."""
    makers = (rows, network, data, options, training, Recorder)
    return SimpleNamespace(**{maker.__name__: maker for maker in makers}, CPU=CPU)
