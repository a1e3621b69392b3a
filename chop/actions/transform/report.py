"""The report of a transform: tables in the log, and transform.json."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.system.files import read_json, write_whole

if TYPE_CHECKING:
    from chop.training.scores import Score

logger = logging.getLogger(__name__)

FILE = "transform.json"


@dataclass
class Result:
    """The result of a transform so far."""

    graph: Any  # a MaseGraph, or the model in the module style
    rows: list[dict[str, Any]] = field(default_factory=list)  # one per pass
    files: list[Path] = field(default_factory=list)  # written by passes
    failed: dict[str, Any] | None = None  # the pass that failed, and its error
    before: Score | None = None
    after: Score | None = None

    def scores(self) -> list[dict[str, Any]]:
        """Return the metrics before and after, with their difference; empty without --test."""
        if self.before is None or self.after is None:
            return []
        before, after = self.before.with_loss, self.after.with_loss
        metrics = {name: (before[name], after[name]) for name in before}
        return [
            {"Metric": metric, "Before": before, "After": after, "Difference": after - before}
            for metric, (before, after) in metrics.items()
        ]


def show(result: Result) -> None:
    """Log tables of the passes and, if there are any, of the scores."""
    from tabulate import tabulate

    shown = [row | {"Seconds": f"{row['Seconds']:.3f}"} for row in result.rows]
    table = tabulate(shown, headers="keys", tablefmt="orgtbl", disable_numparse=True)
    logger.info("Passes:")
    logger.info("\n%s", table)
    scores = result.scores()
    if scores:
        logger.info("Before and after:")
        logger.info("\n%s", tabulate(scores, headers="keys", tablefmt="orgtbl", floatfmt=".6g"))


def write(result: Result, folder: Path | None) -> None:
    """Write `transform.json`: the passes so far, their files, the failure, and the scores."""
    if folder is None:
        return
    inside = [file for file in result.files if file.is_relative_to(folder)]
    content = {
        "passes": result.rows,
        "files": [file.relative_to(folder).as_posix() for file in inside],
        "scores": result.scores(),
    }
    if result.failed is not None:
        content["failed"] = result.failed
    write_whole(folder / FILE, json.dumps(content, indent=2) + "\n")


def remove_stale(folder: Path | None) -> None:
    """Remove the files that the last run in `folder` has listed; saved graphs are replaced."""
    if folder is None or not (folder / FILE).is_file():
        return
    for name in _listed(folder / FILE):
        file = folder / name
        if file.is_file() and file.resolve().is_relative_to(folder.resolve()):
            file.unlink()
            with contextlib.suppress(OSError):  # it is not empty
                file.parent.rmdir()
    (folder / FILE).unlink()


def _listed(file: Path) -> list[str]:
    files = None
    with contextlib.suppress(ValueError):  # a file of another program
        files = read_json(file, advice="it will be overwritten").get("files")
    return [name for name in files if isinstance(name, str)] if isinstance(files, list) else []
