"""Jet substructure classification as the labs do it: the HDF5 file on CERNBox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chop.dataset.base import Split, dataset
from chop.dataset.download import download, instead
from chop.dataset.jets import FEATURES, jet_info, prepared_jets
from chop.dataset.sources import own_file
from chop.dataset.tabular import BLOCK, LabelledTable
from chop.dataset.tensors import TensorSplit
from chop.registry import nearest

URL = "https://cernbox.cern.ch/index.php/s/jvFd5MoWhGs1l5v/download"
FILE = "processed-pythia82-lhc13-all-pt1-50k-r1_h022_e0175_t220_nonu_truth.z"
TABLE = "t_allpar_new"
CLASSES = "gqwzt"  # gluon, light quark, W, Z, top: the labs' order
COLUMNS = tuple(f"j_{name}" for name in FEATURES)
LABELS = tuple(f"j_{name}" for name in CLASSES)


@dataset(jet_info("jsc", CLASSES, COLUMNS))
def jsc(
    split: Split,
    *,
    cache: Path,
    path: Path | None = None,
    legacy_val: bool = False,
    renew: bool = False,
) -> TensorSplit:
    """About a million jets in five classes (CERNBox), downloaded once or read from `path`.

    `legacy_val` gives the labs' training and validation data: both are all that is not test.
    """
    source = own_file(path, (".z", ".h5", ".hdf5"), name=FILE) if path else cache / "jsc" / FILE
    if not path:
        with instead("jsc-sim, simulated jets, needs no download"):
            download(URL, source)
    data = prepared_jets(cache / "jsc", source, read_cernbox, drop_duplicates=True, renew=renew)
    return data.split(split, legacy_val=legacy_val)


def read_cernbox(file: Path) -> LabelledTable:
    """Features and labels of all jets in the HDF5 file."""
    import h5py  # type: ignore[import-untyped]

    try:
        with h5py.File(file, "r") as h5:
            table = _table(file, h5)
            x, one_hot = _columns(file, table, COLUMNS), _columns(file, table, LABELS)
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"{file} cannot be read as HDF5 ({error}); it is damaged or not an HDF5 file; "
            f"download it again (delete it if it is in the cache), or give the right file"
        ) from error
    unclear = np.flatnonzero(((one_hot != 0).sum(1) != 1) | (one_hot.max(1) != 1))
    if len(unclear):
        raise ValueError(
            f"{file}: {len(unclear)} of {len(x)} jets do not have exactly one class among "
            f"{', '.join(LABELS)}, the first in row {unclear[0]}; download the file again"
        )
    return LabelledTable(x, one_hot.argmax(1).astype(np.int8), tuple(CLASSES), COLUMNS)


def _table(file: Path, h5: Any) -> Any:
    """The table of jets: a dataset of records, or a group that PyTables keeps it in."""
    node = h5.get(TABLE)
    if node is None:
        near = nearest(TABLE, h5)
        there = f"the nearest is {near!r}" if near else f"it has {', '.join(h5) or 'nothing'}"
        raise ValueError(f"{file} has no table {TABLE!r}; {there}; use the file of the labs")
    table = node.get("table") if hasattr(node, "keys") else node
    names = getattr(getattr(table, "dtype", None), "names", None) or ()
    missing = [name for name in (*COLUMNS, *LABELS) if name not in names]
    if missing:
        raise ValueError(
            f"{file}: table {TABLE!r} lacks the columns {', '.join(missing[:6])}"
            f"{', …' if len(missing) > 6 else ''}; it has {', '.join(names[:6]) or 'no columns'}"
            f"{', …' if len(names) > 6 else ''}; use the file of the labs"
        )
    if not len(table):
        raise ValueError(f"{file}: table {TABLE!r} has no rows; download the file again")
    return table


def _columns(file: Path, table: Any, names: tuple[str, ...]) -> np.ndarray:
    """Some columns side by side, read in blocks of rows: the table is far wider than they are."""
    kinds = [table.dtype[name] for name in names]
    if any(kind.kind not in "fiub" or kind.shape for kind in kinds):
        raise ValueError(f"{file}: the columns {', '.join(names)} of {TABLE!r} are not all numbers")
    out = np.empty((len(table), len(names)), np.result_type(*kinds))
    for start in range(0, len(table), BLOCK):
        records = table.fields(names)[start : start + BLOCK]
        for column, name in enumerate(names):
            out[start : start + BLOCK, column] = records[name]
    return out
