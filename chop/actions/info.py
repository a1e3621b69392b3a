"""Tables of the names of models and data sets, as in the labs."""

from __future__ import annotations

from collections.abc import Iterable

from chop.registry import UnknownName

KINDS = ("all", "model", "dataset")


def info(kind: str = "all") -> str:
    """Return tables of the registered models, data sets, or both."""
    if kind not in KINDS:
        raise UnknownName("kind", kind, KINDS)
    parts = {"model": _models, "dataset": _datasets}
    wanted = parts.values() if kind == "all" else [parts[kind]]
    return "\n".join(part() for part in wanted)


def _models() -> str:
    from chop.models.base import MODELS

    return _titled("Supported Models", sorted(MODELS), columns=3)


def _datasets() -> str:
    from chop.dataset.base import DATASETS

    return _titled("Supported Datasets", sorted(DATASETS), columns=2)


def _titled(title: str, names: Iterable[str], columns: int) -> str:
    """Return a title and a table of the names, sorted by column."""
    from tabulate import tabulate

    cells = list(names)
    height = -(-len(cells) // columns)
    cells += [""] * (columns * height - len(cells))
    rows = [cells[i::height] for i in range(height)]
    return f"{title}\n{tabulate(rows, tablefmt='pretty', stralign='left')}"
