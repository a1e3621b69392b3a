"""The report of a finished run: `summary.json` and `curves.svg`."""

from __future__ import annotations

import json
import math
import platform
from pathlib import Path
from typing import Any

import torch

from chop.charts import Chart, page
from chop.dataset.base import MaseDatasetInfo
from chop.system.files import write_whole
from chop.training.loop import Fitted
from chop.training.scalars import COLUMNS, read_curves
from chop.training.tasks import CLASSIFICATION, logged
from chop.version import __version__


def write_summary(
    file: Path,
    *,
    fitted: Fitted,
    config: dict[str, Any],
    info: MaseDatasetInfo,
    fingerprints: dict[str, str | None],
    parameters: int,
) -> Path:
    """Write the options, data, metrics and versions of a run."""
    validation, is_classification = fitted.validation, fitted.task is CLASSIFICATION
    content = {
        "dataset": {"name": info.name, "simulated": info.simulated, "fingerprints": fingerprints},
        "metrics": {
            "val_loss_epoch": validation.loss if validation else None,
            **_scores(fitted),
            "best_val_loss": fitted.progress.best_loss if validation else None,
            **({"best_val_acc": fitted.progress.best_accuracy} if is_classification else {}),
            "best_epoch": fitted.progress.best_epoch + 1,  # from 1, as in the log
            "seconds": fitted.seconds,
            "samples_per_second": fitted.samples_per_second,
        },
        "progress": {"epoch": fitted.progress.epoch, "step": fitted.progress.step},
        "parameters": parameters,
        "seed": config.get("seed"),
        "config": config,
        "versions": {
            "mase": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "device": device_name(fitted.place.device),
        "precision": fitted.precision,
    }
    text = json.dumps(_finite(content), indent=2, default=str, allow_nan=False)
    return write_whole(file, text + "\n")


def _scores(fitted: Fitted) -> dict[str, float | None]:
    """Return the metrics of the last epoch, None without a validation split."""
    known = fitted.validation.metrics if fitted.validation else {}
    return {f"val_{logged(name)}_epoch": known.get(name) for name in fitted.task.metrics}


def _finite(value: Any) -> Any:
    """Replace numbers that JSON cannot express by None."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type


# what the panels of a picture show; the loss of a regression is its mean squared error
PANELS = {
    "loss": "loss",
    "acc": "accuracy",
    "r2": "R²",
    "mae": "mean absolute error",
    "mean_iou": "mean IoU",
    "pixel_acc": "pixel accuracy",
}


def draw_curves(curves: Path, picture: Path, title: str) -> Path:
    """Draw the loss and the metrics over the steps of a run, from its file `curves`."""
    rows = read_curves(curves)
    columns = rows[0] if rows else COLUMNS
    panels = []
    for kind, label in PANELS.items():
        series = {
            name: [(float(r["step"]), float(r[name])) for r in rows if r.get(name)]
            for name in (f"train_{kind}_step", f"val_{kind}_epoch")
            if name in columns
        }
        if series:
            panels.append(Chart(f"{title}: {label}", "optimiser steps", label, series))
    return write_whole(picture, page(panels))
