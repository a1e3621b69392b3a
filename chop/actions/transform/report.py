"""What a transform leaves behind besides the graph: tables on the screen, and transform.json."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.files import read_json, write_whole

if TYPE_CHECKING:
    from chop.training.evaluate import Score

logger = logging.getLogger(__name__)

FILE = "transform.json"


@dataclass
class Result:
    """What a transform has done so far."""

    graph: Any  # a MaseGraph, or the model in the module style
    rows: list[dict[str, Any]] = field(default_factory=list)  # one for each pass
    files: list[Path] = field(default_factory=list)  # what passes wrote
    failed: dict[str, Any] | None = None  # the pass that could not be run, and why
    before: Score | None = None
    after: Score | None = None

    def scores(self) -> list[dict[str, Any]]:
        """Before, after and the difference; nothing if nobody asked."""
        if self.before is None or self.after is None:
            return []
        return [
            {
                "Metric": metric,
                "Before": getattr(self.before, metric),
                "After": getattr(self.after, metric),
                "Difference": getattr(self.after, metric) - getattr(self.before, metric),
            }
            for metric in ("accuracy", "loss")
        ]


def show(result: Result) -> None:
    """The passes, and the scores if there are any, as tables in the log."""
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
    """`transform.json`: the passes so far, the files that they wrote, what failed, the scores."""
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
    """Remove the files that the last run in `folder` says it wrote; saved graphs are replaced."""
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
    try:
        files = read_json(file, advice="it will be overwritten").get("files")
    except ValueError:  # another program's
        return []
    return [name for name in files if isinstance(name, str)] if isinstance(files, list) else []
