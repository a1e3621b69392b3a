"""Data sets to train and test on, one file per data set."""

from chop.dataset.base import (
    DATASETS,
    MaseDatasetInfo,
    add_dataset_info,
    dataset,
    get_dataset,
    get_dataset_info,
)
from chop.dataset.data_module import MaseDataModule
from chop.dataset.tensors import TensorSplit

AVAILABLE_DATASETS = DATASETS  # the labs' name

__all__ = [
    "AVAILABLE_DATASETS",
    "DATASETS",
    "MaseDataModule",
    "MaseDatasetInfo",
    "TensorSplit",
    "add_dataset_info",
    "dataset",
    "get_dataset",
    "get_dataset_info",
]
