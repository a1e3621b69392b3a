"""Tables in Parquet files, read with pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chop.dataset.tabular import LabelledTable, labelled
from chop.dataset.text_tables import label_column
from chop.extras import install_command


def read_parquet(file: Path, label: str | None = None, task: str | None = None) -> LabelledTable:
    """Read a Parquet file of numbers and one column of labels."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(f"Parquet files need pyarrow: {install_command('tables')}") from error

    try:
        table = parquet.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{file} cannot be read as Parquet ({error}); download or write it again"
        ) from error
    label = label_column(file, table.column_names, label)
    if not table.num_rows:
        raise ValueError(f"{file} has no rows; download or write it again")
    features = tuple(name for name in table.column_names if name != label)
    x = np.column_stack([_numbers(file, name, table[name]) for name in features])
    y, classes, task = labelled(_labels(file, label, table[label]), file, task)
    return LabelledTable(x, y, classes, features, task)


def _numbers(file: Path, name: str, column: Any) -> np.ndarray:
    from pyarrow import types

    kind = column.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise ValueError(f"{file}: column {name!r} holds {kind}, not numbers; encode or remove it")
    _check_filled(file, name, column)
    return np.asarray(column.to_numpy())


def _labels(file: Path, name: str, column: Any) -> np.ndarray:
    _check_filled(file, name, column)
    values = np.asarray(column.to_numpy())
    return values.astype(str) if values.dtype == object else values


def _check_filled(file: Path, name: str, column: Any) -> None:
    if column.null_count:
        raise ValueError(
            f"{file}: {column.null_count} values of column {name!r} are missing; "
            f"remove those rows or fill them in"
        )
