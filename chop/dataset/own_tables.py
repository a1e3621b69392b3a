"""The user's data, read from a path: tables (csv, parquet) and arrays (npz, tensors)."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from chop.dataset.array_files import read_npz, read_tensors
from chop.dataset.base import TASK_NAMES, MaseDatasetInfo, Split, dataset
from chop.dataset.images import Normalize
from chop.dataset.nested import Inputs, map_tensors, tensors_of
from chop.dataset.parquet_tables import read_parquet
from chop.dataset.sources import own_file
from chop.dataset.store import PreparedData, prepared
from chop.dataset.tabular import (
    Cut,
    LabelledTable,
    SplitLengths,
    check_classes,
    check_finite,
    is_table,
    prepare,
)
from chop.dataset.tensors import TensorSplit
from chop.dataset.text_tables import read_csv
from chop.options import PositiveFloat
from chop.system.files import cache_folder

logger = logging.getLogger(__name__)

VERSION = 4  # of the preparation; raise it when the result changes
PIXELS, BYTE = ("mean", "std", "scale"), 255.0
OF_BYTES = (
    "images as bytes reach the model as numbers from 0 to 1; for a network that was trained on "
    "others, set mean and std, or scale = 255, in dataset_args"
)
KINDS = {
    "csv": (".csv", ".tsv", ".txt"),
    "parquet": (".parquet", ".pq"),
    "npz": (".npz",),
    "tensors": (".pt", ".pth", ".safetensors"),
}

Read = Callable[[Path, str | None], tuple[LabelledTable, SplitLengths]]  # file, task
Numbers = float | list[float]
LabelTask = Literal["cls", "reg", "dense", "classification", "regression"]


@dataclass(frozen=True)
class Preparation:
    """How a file is prepared; cached data that was prepared differently is not reused."""

    cut: Cut
    standardize: bool | None  # None: standardise tables, but not images
    label: str | None = None
    task: str | None = None  # None: it follows from the labels


def own(name: str, doc: str, make: Callable[..., PreparedData]) -> Callable[..., TensorSplit]:
    """Register `make(**options)`, which prepares a user's file, as the data set `name`."""

    @functools.wraps(make)
    def load(split: Split, **options: Any) -> TensorSplit:
        data = make(**options)
        return data.split(split, prepare=_prepare_of(name, data, options))

    def describe(**options: Any) -> MaseDatasetInfo:
        data = make(**options)
        if _prepare_of(name, data, options) is _as_floats:
            _log_once(f"{options['path']}: {OF_BYTES}")
        for note in data.notes:
            _log_once(note)
        return _described(name, data)

    load.__name__, load.__qualname__, load.__doc__ = name, name, doc
    info = MaseDatasetInfo(name=name, dataset_source="others")
    return dataset(info, describe=describe)(load)


@functools.cache
def _log_once(note: str) -> None:
    """Log how a file was read, once for each process."""
    logger.info("%s", note)


def _described(name: str, data: PreparedData) -> MaseDatasetInfo:
    splits = [split for split, rows in data.rows.items() if rows]
    is_regression, y = data.task == "reg", data.y
    return MaseDatasetInfo(
        name=name,
        dataset_source="others",
        available_splits=tuple(splits + ["pred"] * ("test" in splits)),
        task=data.task,
        num_classes=None if is_regression else len(data.classes),
        num_targets=math.prod(y.shape[1:]) if is_regression else None,
        class_names=data.classes,
        feature_names=data.features,
        **_shapes(data),
    )


def _shapes(data: PreparedData) -> dict[str, Any]:
    """Return the facts about the inputs."""
    if isinstance(data.x, dict):
        return {"input_shapes": {name: tuple(x.shape[1:]) for name, x in data.x.items()}}
    classifies, shape = data.task == "cls", tuple(data.x.shape[1:])
    if data.x.ndim == 4:
        return {"image_size": shape, "image_classification": classifies}
    return {"num_features": shape[0], "physical_data_point_classification": classifies}


def _prepare_of(
    name: str, data: PreparedData, options: Mapping[str, Any]
) -> Callable[[Inputs], Inputs] | None:
    """Return what brings bytes of images into the numbers that a model takes."""
    given = {key: options[key] for key in PIXELS if options.get(key) is not None}
    has_bytes = any(x.dtype == torch.uint8 for x in tensors_of(data.x))
    if not given:
        return _as_floats if has_bytes else None
    if not has_bytes or isinstance(data.x, dict):
        what = "several inputs" if isinstance(data.x, dict) else "no images as bytes"
        raise ValueError(
            f"{name}: {', '.join(given)} are for one array of images as bytes, and the file has "
            f"{what}; omit them, and scale the array itself"
        )
    channels = data.x.shape[1]
    mean, std = (
        _by_channel(key, given.get(key, default), channels)
        for key, default in (("mean", 0.0), ("std", 1.0))
    )
    if min(std) <= 0:
        raise ValueError(f"std must be positive, not {given['std']}")
    return Normalize(mean, std, peak=BYTE / given.get("scale", 1.0))


def _by_channel(key: str, value: Any, channels: int) -> tuple[float, ...]:
    """Return a number for each channel."""
    numbers = tuple(map(float, value)) if isinstance(value, list | tuple) else (float(value),)
    if len(numbers) not in (1, channels):
        raise ValueError(
            f"{key} has {len(numbers)} numbers, but images have {channels} channels; give one "
            f"number, or one for each channel"
        )
    return numbers * channels if len(numbers) == 1 else numbers


def _as_floats(x: Inputs) -> Inputs:
    """Return the bytes of images as numbers from 0 to 1."""
    return map_tensors(lambda t: t.float() / 255 if t.dtype == torch.uint8 else t, x)


def _own_table(
    name: str, doc: str, read: Callable[[Path, str | None, str | None], LabelledTable]
) -> Callable[..., TensorSplit]:
    def make(
        *,
        cache: Path | None = None,
        path: Path | None = None,
        label: str | None = None,
        task: LabelTask | None = None,
        standardize: bool = True,
        test: float = 0.2,
        validation: float = 0.1,
        split_seed: int = 42,
        renew: bool = False,
    ) -> PreparedData:
        cut, kind = Cut(test, validation, split_seed), _short(task)
        preparation = Preparation(cut, standardize, label, kind)
        return _prepared(name, _undivided(read, label), preparation, path, cache, renew)

    return own(name, doc, make)


def _own_arrays(name: str, doc: str, read: Read) -> Callable[..., TensorSplit]:
    def make(
        *,
        cache: Path | None = None,
        path: Path | None = None,
        task: LabelTask | None = None,
        standardize: bool | None = None,
        mean: Numbers | None = None,
        std: Numbers | None = None,
        scale: PositiveFloat | None = None,
        test: float = 0.2,
        validation: float = 0.1,
        split_seed: int = 42,
        renew: bool = False,
    ) -> PreparedData:  # `mean`, `std` and `scale` are applied to batches, not stored
        cut, kind = Cut(test, validation, split_seed), _short(task)
        preparation = Preparation(cut, standardize, task=kind)
        return _prepared(name, read, preparation, path, cache, renew)

    return own(name, doc, make)


_TABLE = "Your own {} file: columns of numbers and one column of labels."
_ARRAYS = "Your own {}: x or named inputs, and y, once or for each split."
csv = _own_table("csv", _TABLE.format("CSV"), read_csv)
parquet = _own_table("parquet", _TABLE.format("Parquet"), read_parquet)
npz = _own_arrays("npz", _ARRAYS.format("arrays from numpy.savez"), read_npz)
tensors = _own_arrays("tensors", _ARRAYS.format("tensors (pt, safetensors)"), read_tensors)


def _short(task: str | None) -> str | None:
    return None if task is None else TASK_NAMES.get(task, task)


def _undivided(
    read: Callable[[Path, str | None, str | None], LabelledTable], label: str | None
) -> Read:
    """Return a reader for tables without splits: all of their rows are training samples."""

    def whole(file: Path, task: str | None) -> tuple[LabelledTable, SplitLengths]:
        table = read(file, label, task)
        return table, {"train": len(table.y)}

    return whole


def _prepared(
    name: str,
    read: Read,
    preparation: Preparation,
    path: Path | None,
    cache: Path | None,
    renew: bool,
) -> PreparedData:
    """Return the user's file as tensors, from the cache if it was prepared with these options."""
    if path is None:
        kinds = " or ".join(KINDS[name])
        raise ValueError(f"data set {name!r} needs your file: set `path` to a {kinds} file")
    file = own_file(path, KINDS[name])

    def build() -> PreparedData:
        table, lengths = read(file, preparation.task)
        for name, x in (table.more or {"": table.x}).items():
            check_finite(file, x, table.features, name)
        if table.task == "cls":
            check_classes(file, table.y, table.classes)
        order, rows = preparation.cut.order(lengths)
        if not rows["train"]:
            raise ValueError(
                f"{file}: none of its {len(order)} samples is left for training; "
                f"lower test or validation"
            )
        by = None
        if _standardizes(file, table, preparation.standardize):
            by, table = rows["train"], replace(table, notes=(*table.notes, _scaling_note(file)))
        return prepare(table, order, rows, standardize_by=by)

    folder = (cache or cache_folder()) / name
    return prepared(folder, file, build, version=VERSION, options=asdict(preparation), renew=renew)


def _scaling_note(file: Path) -> str:
    return (
        f"{file}: the features are standardised with the mean and standard deviation of the "
        f"training samples (change this with `standardize`)"
    )


def _standardizes(file: Path, table: LabelledTable, wanted: bool | None) -> bool:
    """Whether to standardise: tables unless the user declines, other inputs never."""
    inputs, named = table.more or {"x": table.x}, bool(table.more)
    has_table = any(is_table(x, named=named) for x in inputs.values())
    if wanted and not has_table:
        held = f"the inputs {', '.join(inputs)} and no table of floats" if named else "images"
        raise ValueError(
            f"{file} holds {held}, but only tables can be standardised; omit standardize"
        )
    return has_table if wanted is None else wanted
