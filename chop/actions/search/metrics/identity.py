"""What results depend on besides options and designs: the parent, its data, and the seed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def weights_of(model: nn.Module) -> str:
    """Return a digest of the weights and statistics of a model."""
    import torch

    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def fingerprints_of(data_module: Any) -> dict[str, str | None]:
    """Return the fingerprints of the training and validation splits, None if unknown."""
    splits = {"train": data_module.train_dataset, "validation": data_module.val_dataset}
    return {name: getattr(split, "fingerprint", None) for name, split in splits.items()}


def identity(model: nn.Module, data_module: Any, seed: int) -> str:
    """Return a text that identifies a parent, its data and a seed."""
    name = getattr(data_module, "name", None)
    return repr((weights_of(model), name, fingerprints_of(data_module), seed))
