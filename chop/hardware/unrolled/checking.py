"""A check of traced logic against the integer ops that it was traced from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from chop.hardware.unrolled.layers import Layer
from chop.hardware.unrolled.stages import Logic
from chop.integers import IntegerGraph

__all__ = ["expected_codes", "logic_codes", "random_codes"]


def random_codes(graph: IntegerGraph, layer: Layer, count: int) -> dict[str, Tensor]:
    """Return codes for the inputs of a layer: all lowest, all highest, zeros, and random ones."""
    draws = torch.Generator().manual_seed(0)
    codes = {}
    for name in layer.inputs:
        low, high = graph.codes(name).bounds()
        span = (high - low + 1).double()
        random = torch.rand(count, *low.shape[1:], generator=draws, dtype=torch.float64)
        inner = torch.minimum(low + (random * span).long(), high)
        zeros = torch.zeros_like(low).clamp(low, high)
        codes[name] = torch.cat([low, high, zeros, inner])
    return codes


def expected_codes(layer: Layer, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return what the integer ops make of inputs: a row of all outputs for each sample."""
    known = dict(inputs)
    count = max((len(x) for x in inputs.values()), default=1)
    for node in layer.nodes:
        known[node.name] = node.op.run(*(known[i] for i in node.inputs))
    rows = [known[name].expand(count, *known[name].shape[1:]) for name in layer.outputs]
    return torch.cat([row.reshape(count, -1) for row in rows], 1)


def logic_codes(
    layer: Layer, logic: Logic, constants: Mapping[int, int], inputs: Mapping[str, Tensor]
) -> Tensor:
    """Return what the logic makes of inputs, by alkaid's interpreter."""
    count = max((len(x) for x in inputs.values()), default=1)
    varying = logic.shape[1]
    codes = torch.empty(count, varying + len(constants), dtype=torch.int64)
    for place, value in constants.items():
        codes[:, place] = value
    if varying:
        rows = [inputs[name].reshape(count, -1) for name in layer.inputs]
        given = torch.cat(rows, 1).double().numpy()
        places = [i for i in range(codes.shape[1]) if i not in constants]
        results = logic.predict(np.ascontiguousarray(given), n_threads=1)
        codes[:, places] = torch.from_numpy(results).long()
    return codes
