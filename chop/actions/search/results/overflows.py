"""Count the activations of a design that wrap around on the test split."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from chop.actions.search.space.base import Parent
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.training.check import float_type
from chop.training.devices import Place
from chop.training.feed import Feed
from chop.training.outputs import Predictor


def count_overflows(model: nn.Module, parent: Parent) -> dict[str, float]:
    """Return how many inputs of layers wrap around on the test split; nothing if none can."""
    wrapping = [layer for layer in model.modules() if _wraps(layer)]
    if not wrapping:
        return {}
    counts: list[Tensor] = []

    def note(layer: Any, args: tuple[Any, ...]) -> None:
        x = args[0]
        kept = dataclasses.replace(layer.formats["data_in"], overflow="saturate")
        counts.append((layer.rounding("data_in", kept)(x) != _rounded(layer, x)).sum())

    handles = [layer.register_forward_pre_hook(note) for layer in wrapping]
    data = parent.data_module
    device = next((t.device for t in model.state_dict().values()), torch.device("cpu"))
    feed = Feed(data.test_dataset, data.batch_size, Place(device), float_type(model))
    predict = Predictor(model.eval())
    try:
        with torch.inference_mode():
            for x, _ in feed.every():
                predict(x)
    finally:
        for handle in handles:
            handle.remove()
    return {"overflows": float(sum(int(count) for count in counts))}


def _rounded(layer: Any, x: Tensor) -> Tensor:
    rounded: Tensor = layer.rounding("data_in", layer.formats["data_in"])(x)
    return rounded


def _wraps(layer: nn.Module) -> bool:
    """Whether the input of a layer is rounded to numbers that wrap around."""
    found = layer.formats.get("data_in") if isinstance(layer, Quantized) else None
    return getattr(found, "overflow", None) == "wrap"
