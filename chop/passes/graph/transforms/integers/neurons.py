"""Where the neurons of a layer of tables read and write."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.passes.graph.transforms.quantize.quantized_modules.neurons import Neurons

TABLE_BITS = 16  # inputs of a table


@dataclass(frozen=True, eq=False)
class NeuronLayout:
    """Where the neurons of a layer find their inputs, and where their results go."""

    places: Tensor  # [rows, inputs]: positions in a sample; -1: padding with zero
    row: Tensor  # [results]
    neuron: Tensor  # [results]
    shape: tuple[int, ...]  # of the results

    @classmethod
    def of(cls, layer: Neurons, shape: tuple[int, ...]) -> NeuronLayout:
        """Return the layout for samples of a shape."""
        count = torch.Size(shape).numel()
        numbered = torch.arange(1, count + 1, dtype=torch.float64).view(1, *shape)
        places = layer.rows(numbered).long() - 1
        results = torch.arange(len(places) * layer.num_neurons)
        order = layer.from_rows(results.view(len(places), -1), numbered)[0]
        row, neuron = order.flatten() // layer.num_neurons, order.flatten() % layer.num_neurons
        return cls(places, row, neuron, tuple(order.shape))
