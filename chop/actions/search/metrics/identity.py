"""What results hang on besides options and designs: the parent, its data, and the seed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def weights_of(model: nn.Module) -> str:
    """Parents with the same weights and statistics have the same."""
    import torch

    whole = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        whole.update(name.encode())
        whole.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return whole.hexdigest()


def fingerprints_of(data_module: Any) -> dict[str, str | None]:
    """The fingerprint of each split that a search learns from, where its data set has one."""
    splits = {"train": data_module.train_dataset, "validation": data_module.val_dataset}
    return {name: getattr(split, "fingerprint", None) for name, split in splits.items()}


def identity(model: nn.Module, data_module: Any, seed: int) -> str:
    """A mark that nothing of another parent, other data or another seed has."""
    name = getattr(data_module, "name", None)
    return repr((weights_of(model), name, fingerprints_of(data_module), seed))
