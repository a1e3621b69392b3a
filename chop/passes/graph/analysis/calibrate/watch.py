"""Runs batches and counts the values of activations."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.operands import NAMED_OPERANDS
from chop.numerics.histograms import Histogram
from chop.passes.base import PassArgsError
from chop.passes.graph.describe.batches import numbered, taken
from chop.passes.graph.describe.interpreter import GraphRunner

MAX_SAMPLES = 512  # that are kept for the error of the output
MAX_BYTES = 256 << 20  # of all activations of the samples that are kept

Place = tuple[str, str]  # "args" or "results", and the name in it
Targets = dict[fx.Node, dict[Place, None]]


class HistogramWatch(GraphRunner):
    """Passes the chosen operands of each batch to their histograms."""

    keep_random_state = False

    def __init__(self, graph: MaseGraph, targets: Targets, bins: int, per_channel: bool) -> None:
        super().__init__(graph.model)
        self.targets, self.bins, self.per_channel = targets, bins, per_channel
        self.histograms: dict[fx.Node, dict[Place, Histogram]] = {node: {} for node in targets}
        self.bytes_of_run = 0
        # the histogram of each tensor of this run; one node's result is the next one's argument
        self._counted: dict[int, tuple[weakref.ref[Tensor], int, Histogram]] = {}

    def run_unchanged(self, inputs: Any) -> Any:
        self.bytes_of_run = 0
        self._counted.clear()
        return super().run_unchanged(inputs)

    def run_node(self, n: fx.Node) -> Any:
        if n in self.targets:
            # arguments go first, before an in-place op changes them
            self._count(n, "args", taken(n, *self.fetch_args_kwargs_from_env(n)))
        result = super().run_node(n)
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.bytes_of_run += sum(tensor.nbytes for tensor in tensors)
        if n in self.targets:
            self._count(n, "results", numbered("data_out", result))
        return result

    def _count(self, n: fx.Node, part: str, tensors: dict[str, Tensor]) -> None:
        for name, x in tensors.items():
            place = (part, name)
            if place not in self.targets[n] or not x.is_floating_point():
                continue
            known = self.histograms[n].get(place)
            if known is not None and name in NAMED_OPERANDS:
                continue  # a weight, the same in every batch
            axis = _channel_axis(mase(n).common.mase_op, x) if self.per_channel else None
            same = self._same(x, axis)
            if same is not None and (known is None or known is same):
                self.histograms[n][place] = same
                continue
            if known is None:
                channels = 1 if axis is None else x.shape[axis]
                known = self.histograms[n][place] = Histogram.empty(self.bins, channels, axis)
            try:
                known.add(x)
            except ValueError as error:
                raise PassArgsError(
                    f"pass 'calibrate': {name} of node {n.name!r} cannot be calibrated: {error}; "
                    f"check the data and the weights"
                ) from None
            if not x.is_inference():  # these do not tell whether they are changed
                self._counted[id(x)] = weakref.ref(x), x._version, known

    def _same(self, x: Tensor, axis: int | None) -> Histogram | None:
        """Return the histogram that has counted this very tensor in this run."""
        reference, version, histogram = self._counted.get(id(x), (lambda: None, 0, None))
        unchanged = reference() is x and version == x._version
        return histogram if histogram is not None and unchanged and histogram.axis == axis else None


def _channel_axis(op: str, x: Tensor) -> int | None:
    """Return the dimension of the channels of an activation; None for one without."""
    if x.ndim < 2:
        return None
    is_image = x.ndim >= 4 or (x.ndim == 3 and ("conv" in op or "batch_norm" in op))
    return 1 if is_image else x.ndim - 1


class KeptInputs:
    """The first inputs of the data: at most `most`, and as many as memory allows."""

    def __init__(self, most: int = MAX_SAMPLES) -> None:
        self._most = min(most, MAX_SAMPLES)
        self._batches: list[tuple[list[Any], int]] = []
        self._samples = 0

    def add(self, inputs: list[Any], size: int, bytes_of_run: int) -> None:
        """Keep the first samples of a batch, with that many bytes of activations."""
        fitting = max(MAX_BYTES * size // max(bytes_of_run, 1), 1)
        number = min(self._most, fitting) - self._samples
        if number > 0:
            self._batches.append((inputs, min(number, size)))
            self._samples += min(number, size)
            if size > number:
                self._batches[-1] = (_cut(inputs, size, number), number)

    def joined(self) -> list[Any]:
        """Return one batch of all inputs that were kept."""
        leaves, shape = zip(*(tree_flatten(inputs) for inputs, _ in self._batches), strict=True)
        sizes = [size for _, size in self._batches]
        joined = [_joined(parts, sizes) for parts in zip(*leaves, strict=True)]
        return list(tree_unflatten(joined, shape[0]))


def _cut(inputs: list[Any], size: int, number: int) -> list[Any]:
    leaves, shape = tree_flatten(inputs)
    cut = [x[:number] if _is_batch(x, size) else x for x in leaves]
    return list(tree_unflatten(cut, shape))


def _is_batch(x: Any, size: int) -> bool:
    return isinstance(x, Tensor) and x.ndim > 0 and len(x) == size


def _joined(parts: tuple[Any, ...], sizes: list[int]) -> Any:
    """Return one tensor of all samples; what is the same in every batch stays as it is."""
    if all(_is_batch(part, size) for part, size in zip(parts, sizes, strict=True)):
        return torch.cat([part.detach() for part in parts])
    return parts[0]
