"""Files in the layouts of the public jet data sets, made of genuine rows where they are at hand.

Loaded with `runpy`, by tests and benchmarks alike: the layout of a file has one home.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

GENUINE = Path(__file__).resolve().parents[3] / "shared" / "data" / "jsc-openml-1k.npz"
FEATURES = [
    *("zlogz", "c1_b0_mmdt", "c1_b1_mmdt", "c1_b2_mmdt", "c2_b1_mmdt", "c2_b2_mmdt"),
    *("d2_b1_mmdt", "d2_b2_mmdt", "d2_a1_b1_mmdt", "d2_a1_b2_mmdt", "m2_b1_mmdt", "m2_b2_mmdt"),
    *("n2_b1_mmdt", "n2_b2_mmdt", "mass_mmdt", "multiplicity"),
]
CLASSES = "gqtwz"  # the order of OpenML, and of `Jets.y`
OTHERS = ("j_pt", "j_eta", "j_undef")  # columns that the public file has besides


@dataclass(frozen=True)
class Jets:
    """Rows as they are before any preprocessing: `x` (N, 16) in raw units, `y` in `CLASSES`."""

    x: np.ndarray
    y: np.ndarray
    genuine: bool


def some_jets(size: int = 1000, *, seed: int = 0) -> Jets:
    """`size` jet-like rows: noise around one centre per class."""
    random = np.random.default_rng(seed)
    y = np.arange(size) % len(CLASSES)
    scale = np.geomspace(0.01, 100, len(FEATURES))
    x = random.standard_normal((size, len(FEATURES))) + y[:, None] * np.linspace(-1, 1, 16)
    return Jets((x * scale + 3 * scale).astype(np.float32), y.astype(np.uint8), False)


def jets() -> Jets:
    """The 1,000 genuine rows if they lie beside the repository, jet-like rows otherwise."""
    if not GENUINE.exists():
        return some_jets()
    with np.load(GENUINE, allow_pickle=False) as file:
        return Jets(file["X"], file["y"], True)


def as_records(jets: Jets, *, dtype: str = "<f4") -> np.ndarray:
    """The rows as the records of the CERNBox table: one-hot labels, and columns nobody asks for."""
    labels = [f"j_{name}" for name in CLASSES]
    names = [*OTHERS, *(f"j_{name}" for name in reversed(FEATURES)), *labels]
    records = np.zeros(len(jets.y), dtype=[(name, dtype) for name in names])
    for column, name in enumerate(FEATURES):
        records[f"j_{name}"] = jets.x[:, column]
    for code, name in enumerate(labels):
        records[name] = jets.y == code
    return records


def write_cernbox(
    file: Path, jets: Jets, *, table: str = "t_allpar_new", dtype: str = "<f4"
) -> Path:
    """An HDF5 file as CERNBox has it; `table="t_allpar_new/table"` is the layout of PyTables."""
    import h5py

    with h5py.File(file, "w") as h5:
        h5.create_dataset(table, data=as_records(jets, dtype=dtype), chunks=True)
    return file


def write_arff(file: Path, jets: Jets, *, columns: Sequence[str] = (*FEATURES, "class")) -> Path:
    """An ARFF file as OpenML has it, with a comment and quoted names, columns in any order."""
    kinds = {"class": "{" + ",".join(CLASSES) + "}"}
    head = ["% jets", "@RELATION 'lhc jets'", ""]
    head += [f"@ATTRIBUTE '{name}' {kinds.get(name, 'REAL')}" for name in columns]
    file.write_text("\n".join([*head, "", "@DATA", *_lines(jets, columns)]) + "\n")
    return file


def write_csv(file: Path, jets: Jets, *, columns: Sequence[str] = (*FEATURES, "class")) -> Path:
    """The same table as CSV with a line of names."""
    file.write_text("\n".join([",".join(columns), *_lines(jets, columns)]) + "\n")
    return file


def write_parquet(file: Path, jets: Jets, *, columns: Sequence[str] = (*FEATURES, "class")) -> Path:
    """The same table as Parquet."""
    import pytest

    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: run `make test-all`")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({name: _column(jets, name) for name in columns}), file)
    return file


def _column(jets: Jets, name: str) -> np.ndarray:
    if name == "class":
        return np.array(list(CLASSES))[jets.y]
    return jets.x[:, FEATURES.index(name)]


def _lines(jets: Jets, columns: Sequence[str]) -> list[str]:
    cells = [_column(jets, name).astype(str) for name in columns]
    return [",".join(row) for row in zip(*cells, strict=True)]
