"""The user's own data by path: tables (csv, parquet) and arrays (npz, tensors)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.dataset.array_files import read_npz, read_tensors
from chop.dataset.base import MaseDatasetInfo, Split, dataset
from chop.dataset.parquet_tables import read_parquet
from chop.dataset.sources import own_file
from chop.dataset.store import PreparedData, prepared
from chop.dataset.tabular import Cut, Given, LabelledTable, check_classes, check_finite, prepare
from chop.dataset.tensors import TensorSplit
from chop.dataset.text_tables import read_csv
from chop.files import cache_folder

VERSION = 1  # of the preparation; raise it when the result changes
KINDS = {
    "csv": (".csv", ".tsv", ".txt"),
    "parquet": (".parquet", ".pq"),
    "npz": (".npz",),
    "tensors": (".pt", ".pth", ".safetensors"),
}

Read = Callable[[Path], tuple[LabelledTable, Given]]


@dataclass(frozen=True)
class Wishes:
    """What is to be done to a file; data that was prepared otherwise does not serve."""

    cut: Cut
    standardize: bool | None  # None: tables are, pictures are not
    label: str | None = None


def own(make: Callable[..., PreparedData]) -> Callable[..., TensorSplit]:
    """Register `make(**options)`, which prepares a file of the user, as a data set."""
    info = MaseDatasetInfo(name=make.__name__, dataset_source="others")

    @functools.wraps(make)
    def load(split: Split, **options: Any) -> TensorSplit:
        data = make(**options)
        return data.split(split, prepare=None if data.x.is_floating_point() else _as_floats)

    def describe(**options: Any) -> MaseDatasetInfo:
        return _described(info.name, make(**options))

    return dataset(info, describe=describe)(load)


def _described(name: str, data: PreparedData) -> MaseDatasetInfo:
    picture = data.x.ndim == 4
    there = [split for split, rows in data.rows.items() if rows]
    return MaseDatasetInfo(
        name=name,
        dataset_source="others",
        available_splits=tuple(there + ["pred"] * ("test" in there)),
        image_classification=picture,
        physical_data_point_classification=not picture,
        num_classes=len(data.classes),
        class_names=data.classes,
        image_size=tuple(data.x.shape[1:]) if picture else None,
        num_features=None if picture else data.x.shape[1],
        feature_names=data.features,
    )


def _as_floats(x: Tensor) -> Tensor:
    """Bytes of pictures as numbers from 0 to 1."""
    return x.float() / 255


@own
def csv(
    *,
    cache: Path | None = None,
    path: Path | None = None,
    label: str | None = None,
    standardize: bool = True,
    test: float = 0.2,
    validation: float = 0.1,
    split_seed: int = 42,
    renew: bool = False,
) -> PreparedData:
    """Your own table as CSV: columns of numbers, and one of labels."""
    wishes = Wishes(Cut(test, validation, split_seed), standardize, label)
    return _prepared("csv", _undivided(read_csv, label), wishes, path, cache, renew)


@own
def parquet(
    *,
    cache: Path | None = None,
    path: Path | None = None,
    label: str | None = None,
    standardize: bool = True,
    test: float = 0.2,
    validation: float = 0.1,
    split_seed: int = 42,
    renew: bool = False,
) -> PreparedData:
    """Your own table as Parquet: columns of numbers, and one of labels."""
    wishes = Wishes(Cut(test, validation, split_seed), standardize, label)
    return _prepared("parquet", _undivided(read_parquet, label), wishes, path, cache, renew)


@own
def npz(
    *,
    cache: Path | None = None,
    path: Path | None = None,
    standardize: bool | None = None,
    test: float = 0.2,
    validation: float = 0.1,
    split_seed: int = 42,
    renew: bool = False,
) -> PreparedData:
    """Your own arrays as numpy.savez writes them: x and y, for each split or for all."""
    wishes = Wishes(Cut(test, validation, split_seed), standardize)
    return _prepared("npz", read_npz, wishes, path, cache, renew)


@own
def tensors(
    *,
    cache: Path | None = None,
    path: Path | None = None,
    standardize: bool | None = None,
    test: float = 0.2,
    validation: float = 0.1,
    split_seed: int = 42,
    renew: bool = False,
) -> PreparedData:
    """Your own tensors (pt, safetensors): x and y, for each split or for all."""
    wishes = Wishes(Cut(test, validation, split_seed), standardize)
    return _prepared("tensors", read_tensors, wishes, path, cache, renew)


def _undivided(read: Callable[[Path, str | None], LabelledTable], label: str | None) -> Read:
    """A reader of tables, which say nothing about what a row is for."""

    def whole(file: Path) -> tuple[LabelledTable, Given]:
        table = read(file, label)
        return table, {"train": len(table.y)}

    return whole


def _prepared(
    name: str, read: Read, wishes: Wishes, path: Path | None, cache: Path | None, renew: bool
) -> PreparedData:
    """The user's file as tensors, from the cache if it was prepared with the same options."""
    if path is None:
        kinds = " or ".join(KINDS[name])
        raise ValueError(f"data set {name!r} needs your file: give --data-path (path=) a {kinds}")
    file = own_file(path, KINDS[name])

    def build() -> PreparedData:
        table, given = read(file)
        check_finite(file, table.x, table.features)
        check_classes(file, table.y, table.classes)
        order, rows = wishes.cut.order(given)
        if not rows["train"]:
            raise ValueError(f"{file}: no training samples are left of {len(order)}")
        by = rows["train"] if _standardizes(file, table, wishes.standardize) else None
        return prepare(table, order, rows, standardize_by=by)

    folder = (cache or cache_folder()) / name
    return prepared(folder, file, build, version=VERSION, options=asdict(wishes), renew=renew)


def _standardizes(file: Path, table: LabelledTable, wish: bool | None) -> bool:
    """Tables are standardised unless the user says no; pictures never are."""
    is_table = table.x.ndim == 2
    if wish and not is_table:
        raise ValueError(f"{file} holds images, but only tables can be standardised; omit it")
    return is_table if wish is None else wish
