"""Which samples a runner looks at: the first ones of a split, or one seeded batch."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from chop.actions.search.metrics.base import RunnerContext
from chop.dataset.tensors import TensorSplit
from chop.training.check import float_type
from chop.training.devices import Place
from chop.training.feed import SCORED_BYTES, Feed

Loader = Literal["train_dataloader", "val_dataloader", "test_dataloader", "pred_dataloader"]
Batch = tuple[Tensor, Tensor]
DATASETS = {loader: f"{loader.removesuffix('_dataloader')}_dataset" for loader in get_args(Loader)}


def split_of(context: RunnerContext, loader: str, runner: str) -> Any:
    """The data set behind a loader of the data module."""
    found = getattr(context.data_module, DATASETS[loader], None)
    if found is None:
        there = [name for name, attribute in DATASETS.items() if _has(context, attribute)]
        kept = "which a search keeps for the end"
        why = kept if loader == "test_dataloader" else "which this data set lacks"
        raise ValueError(
            f"{runner} reads {loader}, {why}; set data_loader to one of "
            f"{', '.join(there) or 'those of a data module that is set up'}"
        )
    return found


def any_split(context: RunnerContext, runner: str) -> Any:
    """A split that is there, for a runner that only needs something to run on."""
    loaders = [loader for loader, attribute in DATASETS.items() if _has(context, attribute)]
    preferred = "val_dataloader"
    chosen = preferred if preferred in loaders else next(iter(loaders), preferred)
    return split_of(context, chosen, runner)


def _has(context: RunnerContext, attribute: str) -> bool:
    return getattr(context.data_module, attribute, None) is not None


def first_of(split: Any, number: int) -> Any:
    """The first `number` samples of a split, in their order."""
    if number >= len(split):
        return split
    if isinstance(split, TensorSplit):
        return TensorSplit(split.x[:number], split.y[:number], prepare=split.prepare)
    return torch.utils.data.Subset(split, range(number))


def resident(context: RunnerContext, split: Any, batch_size: int | None = None) -> list[Batch]:
    """All of `split` on the device, as the model takes it, in batches that suit the scoring."""
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
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    size = batch_size or max(module.batch_size, SCORED_BYTES * len(x) // max(1, x.nbytes))
    return list(zip(torch.split(x, size), torch.split(y, size), strict=True))


def seeded_batch(context: RunnerContext, split: Any, size: int) -> Batch:
    """Samples drawn from `split` by the seed of the search, on the device."""
    generator = torch.Generator().manual_seed(context.seed)
    chosen = torch.randperm(len(split), generator=generator)[:size].sort().values.tolist()
    if isinstance(split, TensorSplit):
        split = TensorSplit(split.x[chosen], split.y[chosen], prepare=split.prepare)
    else:
        split = torch.utils.data.Subset(split, chosen)
    [batch] = resident(context, split, batch_size=size)
    return batch
