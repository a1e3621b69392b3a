"""Output during training: a summary of the model, a progress bar, and tables of metrics."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def model_summary(model: nn.Module, name: str) -> str:
    """Return a table of the top-level layers with their sizes, and the totals."""
    from tabulate import tabulate

    rows = [
        (child, type(module).__name__, f"{sum(p.numel() for p in module.parameters()):,}")
        for child, module in model.named_children()
    ]
    direct = sum(p.numel() for p in model.parameters(recurse=False))
    if direct:
        rows.append(("(direct)", "Parameter", f"{direct:,}"))
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    size = sum(p.nbytes for p in model.parameters())
    table = tabulate(rows, ("Name", "Type", "Params"), "simple", colalign=("left", "left", "right"))
    return (
        f"{name}\n{table}\n\n{trainable:,} trainable parameters, {total - trainable:,} frozen, "
        f"{size / 1e6:.3g} MB"
    )


class Bar:
    """A progress bar over the steps of a run, with throughput and remaining time."""

    def __init__(self, progress: Any, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total, note="", speed=0.0)

    def show(self, step: int, note: str, samples_per_second: float) -> None:
        self._progress.update(self._task, completed=step, note=note, speed=samples_per_second)


class NoBar:
    """Shows nothing, for logs."""

    def show(self, step: int, note: str, samples_per_second: float) -> None:
        pass


@contextmanager
def progress_bar(total: int, *, wanted: bool) -> Iterator[Bar | NoBar]:
    """Yield a progress bar on a terminal, and one that shows nothing elsewhere."""
    if not wanted or not sys.stderr.isatty():
        yield NoBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.percentage:>3.0f}%"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,} steps"),
        TextColumn("{task.fields[speed]:,.0f} samples/s"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, refresh_per_second=4, transient=True) as progress:
        yield Bar(progress, total)


def metric_table(title: str, metrics: dict[str, float]) -> str:
    """Return a table of final metrics with one name and number per line, as in the labs."""
    from tabulate import tabulate

    return tabulate(
        [(k, f"{v:.6g}") for k, v in metrics.items()],
        (f"{title} metric", "Value"),
        "pretty",
        colalign=("left", "right"),
    )
