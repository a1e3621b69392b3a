"""The samples that a runner uses: the first ones of a split, or one seeded batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from chop.actions.search.metrics.base import RunnerContext
from chop.dataset.nested import Inputs, joined, num_bytes, split_up
from chop.dataset.tensors import TensorSplit
from chop.training.check import float_type
from chop.training.devices import Place
from chop.training.feed import SCORED_BYTES, Feed
from chop.training.tasks import TrainingTask

Loader = Literal["train_dataloader", "val_dataloader", "test_dataloader", "pred_dataloader"]
Batch = tuple[Inputs, Tensor]
DATASETS = {loader: f"{loader.removesuffix('_dataloader')}_dataset" for loader in get_args(Loader)}


def split_of(context: RunnerContext, loader: str, runner: str) -> Any:
    """Return the data set behind a loader of the data module."""
    split = getattr(context.data_module, DATASETS[loader], None)
    if split is None:
        reserved = "which a search keeps for the end"
        why = reserved if loader == "test_dataloader" else "which this data set lacks"
        raise ValueError(
            f"{runner} reads {loader}, {why}; set data_loader to one of "
            f"{', '.join(_splits(context)) or 'those of a data module that is set up'}"
        )
    return split


def any_split(context: RunnerContext, runner: str) -> Any:
    """Return a split for a runner that can use any: validation if it exists."""
    loaders, usual = list(_splits(context)), "val_dataloader"
    return split_of(context, usual if usual in loaders else next(iter(loaders), usual), runner)


def _splits(context: RunnerContext) -> dict[str, Any]:
    splits = {name: getattr(context.data_module, key, None) for name, key in DATASETS.items()}
    return {name: split for name, split in splits.items() if split is not None}


def check_labels(split: Any, task: TrainingTask) -> None:
    """Refuse labels of another task, if they are in memory; others are checked when they are read.

    A sample may be slow to load, and is read once.
    """
    if isinstance(split, TensorSplit):
        task.check_labels(split.y[:1])


def first_of(split: Any, number: int) -> Any:
    """Return the first `number` samples of a split, in their order."""
    return split if number >= len(split) else _subset(split, range(number))


def _subset(split: Any, indices: Sequence[int]) -> Any:
    if not isinstance(split, TensorSplit):
        return torch.utils.data.Subset(split, indices)
    rows = slice(len(indices)) if isinstance(indices, range) else indices  # a view, not a copy
    return split.rows(rows)


def on_device(context: RunnerContext, split: Any, batch_size: int | None = None) -> list[Batch]:
    """Return all of `split` on the device in the model's type, in batches that suit scoring."""
    module = context.data_module
    feed = Feed(
        split,
        batch_size or module.batch_size,
        Place(context.device),
        float_type(context.model),
        num_workers=getattr(module, "num_workers", 0),
        collate=getattr(module, "collate_fn", None),
    )
    batches = list(feed.every())
    x, y = map(joined, zip(*batches, strict=True))
    size = batch_size or max(module.batch_size, SCORED_BYTES * len(y) // max(1, num_bytes(x)))
    return list(zip(split_up(x, size), torch.split(y, size), strict=True))


def seeded_batch(context: RunnerContext, split: Any, size: int) -> Batch:
    """Return samples of `split`, drawn with the seed of the search, on the device."""
    generator = torch.Generator().manual_seed(context.seed)
    chosen = torch.randperm(len(split), generator=generator)[:size].sort().values.tolist()
    [batch] = on_device(context, _subset(split, chosen), batch_size=size)
    return batch
