"""Inputs that test a network in integers: extreme codes, and random ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chop.integers.codes import Word
from chop.integers.graph import IntegerGraph
from chop.integers.ops.requantize import QuantizeInput

__all__ = ["boundary_inputs", "input_words", "random_inputs"]

InputWord = tuple[tuple[int, ...], Word]  # the shape of an input, and the format of its codes
ONE_HOT = 32  # places of an input that get an extreme code alone


def input_words(graph: IntegerGraph) -> dict[str, InputWord]:
    """Return the shape and the format of each input; of several formats, the first."""
    found = {
        node.inputs[0]: (node.op.shape, node.op.word)
        for node in reversed(list(graph.nodes.values()))
        if isinstance(node.op, QuantizeInput)
    }
    return {name: found[name] for name in graph.inputs if name in found}


def boundary_inputs(words: Sequence[InputWord]) -> list[Tensor]:
    """Return a batch per input, with extreme codes everywhere, in turns, and at single places."""
    patterns = [_patterns(shape, word) for shape, word in words]
    rows = torch.arange(max((len(pattern) for pattern in patterns), default=0))
    return [
        (pattern[rows % len(pattern)] * word.scale.value).float()
        for pattern, (_, word) in zip(patterns, words, strict=True)
    ]


def random_inputs(words: Sequence[InputWord], count: int, source: torch.Generator) -> list[Tensor]:
    """Return a batch per input, uniform over its range and a little more, on quarters of a step."""
    batch = []
    for shape, word in words:
        spread = (word.highs - word.lows).double() / 8
        low, high = 4 * (word.lows - spread), 4 * (word.highs + spread)
        steps = torch.rand(count, *shape, generator=source, dtype=torch.float64)
        quarters = (low + steps * (high - low)).round() / 4
        batch.append((quarters * word.scale.value).float())
    return batch


def _patterns(shape: tuple[int, ...], word: Word) -> Tensor:
    """Return boundary vectors as codes."""
    count = max(1, torch.Size(shape).numel())
    low, high = (end.double().expand(shape).reshape(-1) for end in (word.lows, word.highs))
    zero = torch.zeros(count, dtype=torch.float64)
    place = torch.arange(count)
    rows = [low, high, zero]
    turns = ((low, high), (high, low), (zero, high), (low, zero))
    rows += [torch.where(place % 2 == 0, even, odd) for even, odd in turns]
    chosen = torch.linspace(0, count - 1, min(count, ONE_HOT)).long()
    for end in (low, high):
        alone = torch.zeros(len(chosen), count, dtype=torch.float64)
        alone[torch.arange(len(chosen)), chosen] = end[chosen]
        rows += [*alone]
    return torch.stack(rows).view(-1, *shape)
