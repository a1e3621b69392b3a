"""Inputs of a model: one tensor, or several in tuples, lists and dictionaries, at any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Inputs = Any  # a tensor, or a tuple, list or mapping of inputs


def map_tensors(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Return `inputs` with `function` applied to every tensor; other values stay."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {key: map_tensors(function, value) for key, value in inputs.items()}
    if isinstance(inputs, tuple) and hasattr(inputs, "_fields"):
        return type(inputs)(*(map_tensors(function, value) for value in inputs))
    if isinstance(inputs, tuple | list):
        return type(inputs)(map_tensors(function, value) for value in inputs)
    return inputs


def map_named(function: Callable[[str, Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Return `inputs` with `function` applied to each tensor and its path in `named_tensors`."""
    paths = iter([name for name, _ in named_tensors(inputs)])
    return map_tensors(lambda tensor: function(next(paths), tensor), inputs)


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """Return all tensors of `inputs`, in their order."""
    return [value for _, value in named_tensors(inputs)]


def named_tensors(inputs: Inputs, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors with their paths, such as `image` or `pair.0`; one alone has no name."""
    if isinstance(inputs, Tensor):
        yield prefix, inputs
    elif isinstance(inputs, Mapping | tuple | list):
        pairs = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
        for key, value in pairs:
            yield from named_tensors(value, f"{prefix}.{key}" if prefix else str(key))


def num_samples(inputs: Inputs) -> int:
    """Return the number of samples, which is the length of every tensor that has one."""
    if isinstance(inputs, Tensor) and inputs.dim():
        return len(inputs)
    lengths = {name: len(t) for name, t in named_tensors(inputs) if t.dim()}
    if not lengths:
        raise ValueError(
            f"the inputs of a data set are tensors with one row per sample, not "
            f"{type(inputs).__name__} without any; convert them to tensors"
        )
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"all inputs need the same number of samples, but {shown}")
    return next(iter(lengths.values()))


def num_bytes(inputs: Inputs) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.nbytes for tensor in tensors_of(inputs))


def shapes_of(inputs: Inputs) -> str:
    """Return the shapes as text: `(2, 16)`, or `image (2, 3, 8, 8), table (2, 4)`."""
    return ", ".join(f"{name} {tuple(t.shape)}".strip() for name, t in named_tensors(inputs))


def rows_of(inputs: Inputs, index: Any) -> Inputs:
    """Return the samples at `index`: a slice, a list or a tensor of positions."""
    return map_tensors(lambda tensor: tensor[index], inputs)


def copied(inputs: Inputs) -> Inputs:
    """Return a copy of every tensor, for a model that works in place."""
    return inputs.clone() if isinstance(inputs, Tensor) else map_tensors(torch.clone, inputs)


def split_up(inputs: Inputs, size: int) -> Iterator[Inputs]:
    """Yield the samples in batches of `size`."""
    if isinstance(inputs, Tensor):
        yield from torch.split(inputs, size)
        return
    for start in range(0, num_samples(inputs), size):
        yield rows_of(inputs, slice(start, start + size))


def joined(batches: Sequence[Inputs]) -> Inputs:
    """Return the samples of several batches as one."""
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(list(batches))
    if isinstance(first, Mapping):
        return {key: joined([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple | list):
        parts = [joined(part) for part in zip(*batches, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first


def on_device(inputs: Inputs, device: torch.device | str) -> Inputs:
    """Return the inputs on `device`, without waiting for the copies."""
    if isinstance(inputs, Tensor):
        return inputs.to(device, non_blocking=True)
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), inputs)


def pair_of(batch: Any) -> tuple[Inputs, Tensor]:
    """Return the inputs and the labels of a sample or batch of a data set.

    It is a pair, or a dictionary with the labels under `labels` or `label`.
    """
    if isinstance(batch, Mapping):
        key = next((key for key in ("labels", "label") if key in batch), None)
        if key is not None:
            return {k: v for k, v in batch.items() if k != key}, _labels(batch[key])
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], _labels(batch[1])
    what = f"{len(batch)} values" if isinstance(batch, tuple | list) else type(batch).__name__
    raise ValueError(
        f"a sample of the data set must be a pair (inputs, label), not {what}; put several inputs "
        f"into a tuple or a dictionary, as in ((a, b), label)"
    )


def _labels(labels: Any) -> Tensor:
    if isinstance(labels, Tensor):
        return labels
    raise ValueError(
        f"the labels of a batch must be a tensor, not {type(labels).__name__}; give one number or "
        f"tensor per sample"
    )
