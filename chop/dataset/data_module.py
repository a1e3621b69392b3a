"""`MaseDataModule`: the splits of one data set, and their data loaders."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from chop.dataset.base import DATASETS, SPLITS, DatasetSpec, MaseDatasetInfo, Split, get_dataset
from chop.dataset.facts import Adaptation, DataFacts
from chop.dataset.images import Normalize
from chop.dataset.tensors import TensorLoader, TensorSplit
from chop.system.memory import memory_for

# the splits that each stage of a run reads
STAGES: dict[str | None, tuple[Split, ...]] = {
    "fit": ("train", "validation"),
    "validate": ("validation",),
    "test": ("test",),
    "predict": ("pred",),
    None: SPLITS,
}


def _loaded(split: Split) -> property:
    return property(lambda module: module._splits.get(split))


class MaseDataModule:
    """Loads the splits of the data set `name` and serves them in batches.

    `custom_path` is the user's file or directory; further keywords are options of the data set,
    e.g. `legacy_val=True` for the labs' train = validation.
    """

    def __init__(
        self,
        name: str,
        batch_size: int = 128,
        num_workers: int = 0,
        max_token_len: int | None = None,
        tokenizer: Any = None,
        load_from_cache_file: bool = True,
        model_name: str | None = None,
        custom_path: str | Path | None = None,
        *,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.name, self.batch_size, self.seed = name, batch_size, seed
        self.num_workers = num_workers if num_workers is not None else os.cpu_count() or 0
        self.max_token_len, self.tokenizer, self.model_name = max_token_len, tokenizer, model_name
        self.options = options | ({"path": Path(custom_path)} if custom_path else {})
        if not load_from_cache_file:
            self.options["renew"] = True
        with self._memory():
            self.dataset_info: MaseDatasetInfo = self.spec.info_for(self.options)
        self._splits: dict[str, Dataset[Any]] = {}
        self._adaptations: list[Adaptation] = []
        self.keeps_scaler = options.get("standardize") is not None

    @property
    def spec(self) -> DatasetSpec:
        """The registered data set, looked up by name so that the module can be pickled."""
        return DATASETS[self.name]

    train_dataset = _loaded("train")
    val_dataset = _loaded("validation")
    test_dataset = _loaded("test")
    pred_dataset = _loaded("pred")

    @property
    def collate_fn(self) -> Any:
        """The function that makes a batch of samples, if the data set defines one."""
        collator = self.dataset_info.data_collator_cls
        return collator(tokenizer=self.tokenizer) if collator else None

    def prepare_data(self) -> None:
        """Download and prepare the data once; later calls reuse the result."""
        first: Any = self.dataset_info.available_splits[0]
        self._load(first)

    def setup(self, stage: str | None = None) -> None:
        """Load the splits that `stage` reads: fit, validate, test, predict, or all."""
        if stage not in STAGES:
            raise ValueError(f"stage must be fit, validate, test or predict, not {stage!r}")
        for split in STAGES[stage]:
            if split in self.dataset_info.available_splits and split not in self._splits:
                self._splits[split] = self._load(split)

    def _load(self, split: Split) -> Dataset[Any]:
        with self._memory():
            data: Dataset[Any] = get_dataset(self.name, split, **self.options)
        self.options.pop("renew", None)  # once is enough
        for adapt in self._adaptations:
            data = adapt(data)
        return data

    def facts(self) -> DataFacts:
        """Return what a network that is trained on these data will assume of others."""
        info = self.dataset_info
        names = (tuple(info.class_names), tuple(info.feature_names))
        split = next(iter(self._splits.values()), None)
        prepare = getattr(split, "prepare", None)
        pixels = prepare if isinstance(prepare, Normalize) else None
        return DataFacts(self.name, *names, getattr(split, "scaler", None), pixels)

    def adapt_to(self, facts: DataFacts, *, strict: bool = True) -> None:
        """Adapt the data to a network that was trained on data with other `facts`.

        Labels, the order of features and, unless it was chosen by `standardize`, the scaler become
        those of the network. Classes that it does not have are refused, or left as they are unless
        `strict`.
        """
        info, rescale = self.dataset_info, not self.keeps_scaler
        adaptation = Adaptation(info, facts, rescale=rescale, strict=strict)
        self.dataset_info = adaptation.described(self.dataset_info)
        self._adaptations.append(adaptation)
        for name, split in self._splits.items():
            self._splits[name] = adaptation(split)

    def _memory(self) -> AbstractContextManager[None]:
        source = self.options.get("path") or self.name
        return memory_for(f"load the data set {source}", "use one with fewer samples")

    def train_dataloader(self) -> Any:
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> Any:
        return self._loader("validation")

    def test_dataloader(self) -> Any:
        return self._loader("test")

    def pred_dataloader(self) -> Any:
        return self._loader("pred")

    def _loader(self, split: str, *, shuffle: bool = False) -> Any:
        if split not in self.dataset_info.available_splits:
            raise RuntimeError(f"data set {self.name!r} has no {split} split")
        if split not in self._splits:
            raise RuntimeError(
                "DataModule is not setup. Please call data_module.prepare_data() and .setup()."
            )
        data = self._splits[split]
        if isinstance(data, TensorSplit):
            return TensorLoader(data, self.batch_size, shuffle=shuffle, seed=self.seed)
        return DataLoader(
            data,
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            collate_fn=self.collate_fn,
            generator=torch.Generator().manual_seed(self.seed),
        )


def facts_of(data_module: Any) -> dict[str, Any] | None:
    """Return the facts about a data module as JSON values; None for other classes."""
    return data_module.facts().plain() if isinstance(data_module, MaseDataModule) else None
