"""Loggers of training curves: `metrics.csv`, TensorBoard, and wandb if installed.

Each has Lightning's `log_metrics(metrics, step)`, so Lightning's loggers can be used as well.
"""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from chop.system.files import naming, whole_file, write_whole
from chop.training.tasks import CLASSIFICATION, TASKS, TrainingTask, logged

RESUME = "free some space, then `resume`"


def columns_of(task: TrainingTask) -> tuple[str, ...]:
    """Return the columns of `metrics.csv`."""
    steps = ("train_loss_step", f"train_{logged(task.watched)}_step")
    scores = (f"val_{logged(name)}_epoch" for name in ("loss", *task.metrics))
    return ("epoch", "step", "lr", *steps, *scores, "epoch_seconds", "samples_per_second")


COLUMNS = columns_of(CLASSIFICATION)


class Visualizer(Protocol):
    """A logger of training curves."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None: ...


@dataclass(frozen=True)
class ResumedAt:
    """Where a run resumes: after `step`; `validated` if the score of its epoch is known."""

    step: int
    validated: bool

    def rows_of(self, file: Path) -> list[dict[str, str]]:
        """Return the rows to keep, without those of steps and scores that will be repeated."""
        rows = read_curves(file) if file.exists() else []
        return [row for row in rows if row["step"] and self._keeps(row)]

    def _keeps(self, row: dict[str, str]) -> bool:
        step = int(row["step"])
        if step == self.step and row["val_loss_epoch"]:
            return self.validated
        return step <= self.step


class CsvCurves:
    """Writes a row to `metrics.csv` for each log entry, at once."""

    def __init__(
        self,
        file: Path,
        *,
        resumed_at: ResumedAt | None = None,
        task: TrainingTask = CLASSIFICATION,
    ) -> None:
        self.file, columns = file, columns_of(task)
        kept = resumed_at.rows_of(file) if resumed_at is not None else []
        with (
            whole_file(file, advice=RESUME) as part,
            open(part, "w", newline="", encoding="utf-8") as out,
        ):
            writer = csv.DictWriter(out, columns)
            writer.writeheader()
            writer.writerows(kept)
        self._out = open(file, "a", newline="", encoding="utf-8")  # noqa: SIM115 - closed in finalize
        self._writer = csv.DictWriter(self._out, columns, extrasaction="ignore")

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        with naming(self.file, RESUME):
            self._writer.writerow({**metrics, "step": step})
            self._out.flush()

    def finalize(self, status: str) -> None:
        with naming(self.file, RESUME):
            self._out.close()


def read_curves(file: Path) -> list[dict[str, str]]:
    """Return the complete rows of a `metrics.csv`; refuse a file of another program."""
    try:
        with open(file, newline="", encoding="utf-8") as lines:
            reader = csv.DictReader(lines)
            if tuple(reader.fieldnames or COLUMNS) not in map(columns_of, TASKS):
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
        if name is None:
            raise ValueError("a row has too many cells")
        if cell:
            (int if name in ("epoch", "step") else float)(cell)


class TensorBoardCurves:
    """Writes TensorBoard events to `lightning_logs/version_N`, as in the labs."""

    def __init__(
        self, folder: Path, *, resumed_at: ResumedAt | None = None, rate: str = "lr"
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        logs = folder / "lightning_logs"
        version = next_version(logs)
        if resumed_at is not None and version > 0:
            version -= 1  # continue the curves of the resumed run
        self.folder = logs / f"version_{version}"
        purge = None if resumed_at is None else resumed_at.step + 1
        self._tags = {"lr": rate}  # Lightning's tag contains the name of the optimiser
        self._failure: OSError | None = None  # of the writer thread
        self._hook, threading.excepthook = threading.excepthook, self._note_failure
        try:
            with naming(self.folder, RESUME):
                self._writer = SummaryWriter(str(self.folder), purge_step=purge)
        except OSError:
            threading.excepthook = self._hook
            raise

    def _note_failure(self, failed: threading.ExceptHookArgs) -> None:
        """Keep an error of TensorBoard's thread, instead of printing its traceback."""
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
    """Return the first unused version number in `logs`."""
    used = [p.name.removeprefix("version_") for p in logs.glob("version_*")]
    return max((int(n) + 1 for n in used if n.isdecimal()), default=0)


class WandbCurves:
    """Logs to Weights & Biases, if it is installed."""

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
