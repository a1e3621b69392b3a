"""A dataset: what it is about, and a function that loads one split of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch.utils.data import Dataset

from chop.registry import Registry

Split = Literal["train", "validation", "test", "pred"]
Load = Callable[[Path, Split], "Dataset[object]"]


@dataclass(frozen=True)
class DatasetInfo:
    name: str
    task: str
    num_features: int
    num_classes: int


@dataclass(frozen=True)
class DatasetSpec:
    info: DatasetInfo
    load: Load


DATASETS: Registry[DatasetSpec] = Registry("dataset", package="chop.dataset")


def dataset(info: DatasetInfo) -> Callable[[Load], Load]:
    """Register `load(cache, split) -> Dataset` under the name in `info`."""

    def add(load: Load) -> Load:
        DATASETS.register(info.name)(DatasetSpec(info, load))
        return load

    return add
