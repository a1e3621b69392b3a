"""Curves while they are drawn: a plain `metrics.csv`, TensorBoard, and wandb where it is installed.

Each has Lightning's `log_metrics(metrics, step)`, so a logger of Lightning can be used as well.
"""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from chop.files import naming, whole_file, write_whole

RESUME = "free some space, then `resume`"
COLUMNS = (
    "epoch",
    "step",
    "lr",
    "train_loss_step",
    "train_acc_step",
    "val_loss_epoch",
    "val_acc_epoch",
    "epoch_seconds",
    "samples_per_second",
)


class Visualizer(Protocol):
    """What receives the curves."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None: ...


@dataclass(frozen=True)
class ResumedAt:
    """Where a run goes on: after `step`, and whether the score of its epoch is known already."""

    step: int
    validated: bool

    def rows_of(self, file: Path) -> list[dict[str, str]]:
        """The rows that stay; those of lost steps and of a lost score come again."""
        rows = read_curves(file) if file.exists() else []
        return [row for row in rows if row["step"] and self._keeps(row)]

    def _keeps(self, row: dict[str, str]) -> bool:
        step = int(row["step"])
        if step == self.step and row["val_loss_epoch"]:
            return self.validated
        return step <= self.step


class CsvCurves:
    """`metrics.csv`: a row whenever something is logged, on disk at once."""

    def __init__(self, file: Path, *, resumed_at: ResumedAt | None = None) -> None:
        self.file = file
        kept = resumed_at.rows_of(file) if resumed_at is not None else []
        with (
            whole_file(file, advice=RESUME) as part,
            open(part, "w", newline="", encoding="utf-8") as out,
        ):
            writer = csv.DictWriter(out, COLUMNS)
            writer.writeheader()
            writer.writerows(kept)
        self._out = open(file, "a", newline="", encoding="utf-8")  # noqa: SIM115 - closed in finalize
        self._writer = csv.DictWriter(self._out, COLUMNS, extrasaction="ignore")

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        with naming(self.file, RESUME):
            self._writer.writerow({**metrics, "step": step})
            self._out.flush()

    def finalize(self, status: str) -> None:
        with naming(self.file, RESUME):
            self._out.close()


def read_curves(file: Path) -> list[dict[str, str]]:
    """The complete rows of a `metrics.csv`; one that is not ours is refused."""
    try:
        with open(file, newline="", encoding="utf-8") as lines:
            reader = csv.DictReader(lines)
            if tuple(reader.fieldnames or COLUMNS) != COLUMNS:
                raise ValueError(f"its columns are not {', '.join(COLUMNS)}")
            rows = [row for row in reader if None not in row.values()]
        for row in rows:
            _check_numbers(row)
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{file} does not hold the metrics of a run ({error}); move it away, then `resume`"
        ) from error
    return rows


def _check_numbers(row: Mapping[str, Any]) -> None:
    for name, cell in row.items():
        if name not in COLUMNS:
            raise ValueError("a row has too many cells")
        if cell:
            (int if name in ("epoch", "step") else float)(cell)


class TensorBoardCurves:
    """TensorBoard events under `lightning_logs/version_N`, where the labs look for them."""

    def __init__(
        self, folder: Path, *, resumed_at: ResumedAt | None = None, rate: str = "lr"
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        logs = folder / "lightning_logs"
        version = next_version(logs)
        if resumed_at is not None and version > 0:
            version -= 1  # go on in the curves of the run that was interrupted
        self.folder = logs / f"version_{version}"
        purge = None if resumed_at is None else resumed_at.step + 1
        self._tags = {"lr": rate}  # Lightning's name of it has the optimiser in it
        self._failure: OSError | None = None  # of the thread that writes
        self._hook, threading.excepthook = threading.excepthook, self._note_failure
        try:
            with naming(self.folder, RESUME):
                self._writer = SummaryWriter(str(self.folder), purge_step=purge)
        except OSError:
            threading.excepthook = self._hook
            raise

    def _note_failure(self, failed: threading.ExceptHookArgs) -> None:
        """Keep an error of TensorBoard's thread, which would be printed there as a traceback."""
        from_tensorboard = type(failed.thread).__module__.startswith("tensorboard.")
        if from_tensorboard and isinstance(failed.exc_value, OSError):
            self._failure = failed.exc_value
        else:
            self._hook(failed)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        with naming(self.folder, RESUME):
            for name, value in metrics.items():
                if name != "step":
                    self._writer.add_scalar(self._tags.get(name, name), value, step)

    def log_hyperparams(self, values: Mapping[str, Any]) -> None:
        lines = [f"{k}: {json.dumps(v, default=str)}\n" for k, v in values.items()]
        write_whole(self.folder / "hparams.yaml", "".join(lines), advice=RESUME)

    def finalize(self, status: str) -> None:
        with naming(self.folder, RESUME):
            try:
                self._writer.close()
            finally:
                threading.excepthook = self._hook
            if self._failure is not None:
                raise self._failure


def next_version(logs: Path) -> int:
    """The first number that no run has used in `logs`."""
    used = [p.name.removeprefix("version_") for p in logs.glob("version_*")]
    return max((int(n) + 1 for n in used if n.isdecimal()), default=0)


class WandbCurves:
    """Weights & Biases, if the user has it."""

    def __init__(self, folder: Path, project: str) -> None:
        try:
            import wandb
        except ImportError:
            raise ValueError(
                "`report_to='wandb'` needs the package wandb: pip install wandb, "
                "or use `report_to='tensorboard'`"
            ) from None
        self._run = wandb.init(project=project, dir=str(folder))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def log_hyperparams(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values))

    def finalize(self, status: str) -> None:
        self._run.finish()
