"""Jet substructure classification as OpenML publishes it (data set 42468)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chop.dataset.base import Split
from chop.dataset.download import download, instead
from chop.dataset.jets import FEATURES, jet_info, prepared_jets
from chop.dataset.parquet_tables import read_parquet
from chop.dataset.sources import DataSource, downloaded, own_file
from chop.dataset.tabular import LabelledTable
from chop.dataset.tensors import TensorSplit
from chop.dataset.text_tables import read_arff, read_csv
from chop.system.files import read_json

ABOUT = "https://www.openml.org/api/v1/json/data/42468"
FILE = "hls4ml_lhc_jets_hlf.arff"
CLASSES = "gqtwz"  # gluon, light quark, top, W, Z: not the order of `jsc`
READERS = {".arff": read_arff, ".csv": read_csv, ".parquet": read_parquet, ".pq": read_parquet}


@downloaded(jet_info("jsc-openml", CLASSES), "jsc_openml")
def jsc_openml(split: Split, source: DataSource) -> TensorSplit:
    """830,000 jets in five classes (OpenML 42468), downloaded once or read from `path`.

    The order of the classes differs from `jsc`. With `legacy_val`, training and validation both
    use all samples that are not test samples, as in the labs.
    """
    folder, path = source.cache / "jsc-openml", source.path
    file = own_file(path, tuple(READERS), name=FILE) if path else _downloaded(folder)
    data = prepared_jets(folder, file, read_openml, renew=source.renew)
    return data.split(split, legacy_val=source.legacy_val)


def _downloaded(folder: Path) -> Path:
    """Download the ARFF file from the address that OpenML gives, with its checksum."""
    target = folder / FILE
    if target.exists():
        return target
    with instead("jsc-sim, simulated jets, needs no download"):
        about = download(ABOUT, folder / "about.json")
    try:
        facts = read_json(about, advice="try again later")["data_set_description"]
        url, md5 = facts["url"], facts["md5_checksum"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{ABOUT} does not give the address of the data; try again later, or download "
            f"the ARFF file of OpenML's data set 42468 and save it as {target}"
        ) from error
    finally:
        about.unlink()
    return download(url, target, checksum=f"md5:{md5}")


def read_openml(file: Path) -> LabelledTable:
    """Read the features and classes of all jets; the columns may be in any order."""
    read = READERS.get(file.suffix.lower())
    if read is None:
        raise ValueError(f"{file} is not a supported file; use one of {', '.join(READERS)}")
    table = read(file, "class", "cls")
    missing = [name for name in FEATURES if name not in table.features]
    if missing:
        raise ValueError(
            f"{file} lacks the columns {', '.join(missing[:6])}; it has "
            f"{', '.join(table.features[:6])}; download OpenML's data set 42468"
        )
    odd = [name for name in table.classes if name not in CLASSES]
    if odd:
        raise ValueError(f"{file}: {odd[0]!r} is not a jet class; use {', '.join(CLASSES)}")
    codes = np.array([CLASSES.index(name) for name in table.classes])[table.y]
    columns = [table.features.index(name) for name in FEATURES]
    return LabelledTable(table.x[:, columns], codes, tuple(CLASSES), FEATURES)
