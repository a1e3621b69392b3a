"""Tables of the names of models and data sets, as in the labs."""

from __future__ import annotations

from collections.abc import Iterable

from chop.registry import UnknownName

KINDS = ("all", "model", "dataset")


def info(kind: str = "all") -> str:
    """Return tables of the registered models, data sets, or both."""
    from chop.dataset.base import DATASETS
    from chop.models.base import MODELS

    if kind not in KINDS:
        raise UnknownName("kind", kind, KINDS)
    tables: dict[str, tuple[str, Iterable[str], int]] = {
        "model": ("Supported Models", MODELS, 3),
        "dataset": ("Supported Datasets", DATASETS, 2),
    }
    return "\n".join(_titled(*table) for name, table in tables.items() if kind in ("all", name))


def _titled(title: str, names: Iterable[str], columns: int) -> str:
    """Return a title and a table of the names, sorted by column."""
    from tabulate import tabulate

    cells = sorted(names)
    height = -(-len(cells) // columns)
    cells += [""] * (columns * height - len(cells))
    rows = [cells[i::height] for i in range(height)]
    return f"{title}\n{tabulate(rows, tablefmt='pretty', stralign='left')}"
