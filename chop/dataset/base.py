"""Data sets: each has a description (`MaseDatasetInfo`) and a function that loads one split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch.utils.data import Dataset

from chop.files import cache_folder
from chop.options import Options, options_of
from chop.registry import Registry, identity, unknown

# full names of tasks -> short ones; a data set has labels for one of the first three
TASK_NAMES = {
    "classification": "cls",
    "regression": "reg",
    "dense": "dense",
    "language_modeling": "lm",
    "translation": "tran",
}
LABELLED = ("cls", "reg", "dense")
IGNORED = -100  # label of pixels that do not count, as in torch's cross entropy
Split = Literal["train", "validation", "test", "pred"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test", "pred")
# options that we pass to the data sets that have them, and what a user sets instead
OFFERED = {
    "cache": "$MASE_CACHE names the directory of prepared data",
    "renew": "use `load_from_cache_file=False` to prepare the data again",
}
Load = Callable[..., "Dataset[Any]"]
Describe = Callable[..., "MaseDatasetInfo"]
L = TypeVar("L", bound=Load)


def _has_split(split: Split) -> property:
    return property(lambda info: split in info.available_splits)


@dataclass(frozen=True, kw_only=True)
class MaseDatasetInfo:
    """Facts about a data set that a model is built from; also readable like a dictionary."""

    name: str
    dataset_source: str = "manual"
    available_splits: tuple[str, ...] = SPLITS
    image_classification: bool = False
    physical_data_point_classification: bool = False
    sequence_classification: bool = False
    causal_LM: bool = False
    seq2seqLM: bool = False
    # cls, reg or dense; None: it follows from the labels
    task: str | None = None
    num_classes: int | None = None
    num_targets: int | None = None  # of a regression
    image_size: tuple[int, ...] | None = None  # channels, height, width
    num_features: int | None = None
    # of one sample of each of several inputs, by name
    input_shapes: Mapping[str, tuple[int, ...]] | None = None
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    simulated: bool = False  # shown in every report
    preprocess_one_split_for_all: bool = True
    data_collator_cls: type | None = None

    def __post_init__(self) -> None:
        if self.task is None:
            return
        short = TASK_NAMES.get(self.task, self.task)
        if short not in LABELLED:
            raise ValueError(f"data set {self.name!r}: {unknown('task', self.task, LABELLED)}")
        object.__setattr__(self, "task", short)

    def __getitem__(self, key: str) -> Any:
        try:
            return getattr(self, key)
        except AttributeError:
            raise KeyError(key) from None

    @property
    def title(self) -> str:
        """The name shown in tables and logs."""
        return f"{self.name} (simulated)" if self.simulated else self.name

    @property
    def num_outputs(self) -> int | None:
        """What a model returns for a sample: the targets of a regression, or the classes."""
        return self.num_targets if self.num_targets is not None else self.num_classes

    @property
    def known_task(self) -> str | None:
        """The task that the description declares or implies; None if only the labels tell."""
        classifies = (
            self.image_classification
            or self.physical_data_point_classification
            or self.sequence_classification
        )
        if self.task is None and self.num_targets is not None:
            return "reg"
        return "cls" if self.task is None and classifies else self.task

    train_split_available = _has_split("train")
    validation_split_available = _has_split("validation")
    test_split_available = _has_split("test")
    pred_split_available = _has_split("pred")


@dataclass(frozen=True)
class DatasetSpec:
    """`load(split, **options)`; its keyword parameters are the options of the data set.

    `path` is the user's file or directory, `cache` the directory for downloaded and prepared
    data, `renew` whether to prepare the data again; a data set that does not need one of these
    omits it from its signature.
    """

    info: MaseDatasetInfo
    load: Load
    describe: Describe | None = None  # for data sets with a shape that depends on the user's file
    is_downloaded: bool = False  # unless the user gives a file

    def accepted(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the checked options of `load`; refuse unknown ones, except those in `OFFERED`."""
        owner, known = f"data set {self.info.name!r}", options_of(self.load)
        values = {
            k: v for k, v in options.items() if v is not None and (k in known or k not in OFFERED)
        }
        if "path" in values and "path" not in known:
            raise ValueError(f"{owner} does not read a file; omit `path`")
        offered = {k: values.pop(k) for k in OFFERED if k in values}
        mine = {k: v for k, v in known.items() if k not in ("split", *OFFERED)}
        return Options(owner, mine).check(values) | offered

    def refuse_offered(self, options: Mapping[str, Any]) -> None:
        """Refuse options that a file cannot set."""
        for name in options:
            if name in OFFERED:
                raise ValueError(
                    f"data set {self.info.name!r} has no option {name!r}; {OFFERED[name]}"
                )

    def info_for(self, options: Mapping[str, Any]) -> MaseDatasetInfo:
        """Return the description of the data set with `options`, without renewing its data."""
        accepted = self.accepted(options)
        accepted.pop("renew", None)
        return self.describe(**accepted) if self.describe else self.info


DATASETS: Registry[DatasetSpec] = Registry("data set", "chop.dataset", for_users=True)


def dataset(
    info: MaseDatasetInfo,
    *aliases: str,
    describe: Describe | None = None,
    is_downloaded: bool = False,
) -> Callable[[L], L]:
    """Register `load(split, *, …) -> Dataset` under the name in `info`."""

    def add(load: L) -> L:
        registered = DATASETS.present(info.name)
        # a notebook cell that is run again defines its data set again
        again = registered is not None and identity(registered.load) == identity(load)
        spec = DatasetSpec(info, load, describe, is_downloaded)
        DATASETS.register(info.name, *aliases, replace=again)(spec)
        return load

    return add


LABELS = {"cls": "classes", "reg": "real numbers", "dense": "a class for each pixel"}


def check_task(task: str, info: MaseDatasetInfo) -> None:
    """Refuse the short name of a task for which the data set does not have labels."""
    known = info.known_task
    if known is not None and task in LABELLED and task != known:
        raise ValueError(
            f"data set {info.name!r} has {LABELS[known]} as labels, which the task {task!r} cannot "
            f"use; use `task={known!r}`"
        )


def add_dataset_info(name: str, **facts: Any) -> Callable[[type], type]:
    """Class decorator that sets `cls.info`, for scripts that define data sets as classes."""

    def add(cls: type) -> type:
        cls.info = MaseDatasetInfo(name=name, **facts)  # type: ignore[attr-defined]
        return cls

    return add


def get_dataset_info(name: str, **options: Any) -> MaseDatasetInfo:
    """Return the description of the data set `name`."""
    return DATASETS[name].info_for(options)


def get_dataset(name: str, split: Split, *, cache: str | Path | None = None, **options: Any) -> Any:
    """Load one split of the data set `name`."""
    spec = DATASETS[name]
    options["cache"] = Path(cache) if cache else cache_folder()
    info = spec.info_for(options)
    if split not in info.available_splits:
        raise ValueError(
            f"data set {name!r} has no split {split!r}; it has {', '.join(info.available_splits)}"
        )
    return spec.load(split, **spec.accepted(options))
