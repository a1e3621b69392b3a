"""Another shape: the codes stay where they are in the stream."""

from __future__ import annotations

import numpy as np
import torch

from chop.hardware.streaming.component import Stage, StreamComponent, StreamCost, component
from chop.hardware.streaming.stream import FILLER, Places, Stream
from chop.integers import PermuteCodes, ReshapeCodes


@component(ReshapeCodes, PermuteCodes)
class ReshapeComponent(StreamComponent):
    """Nothing but wires; whoever needs another order takes the codes from where they are now."""

    @property
    def output(self) -> Stream:
        places = torch.arange(self.input.size).reshape(1, *self.input.shape)
        moved = self.node.op.run(places).flatten().numpy()
        where = np.empty_like(moved)
        where[moved] = np.arange(len(moved))
        slots: Places = np.where(self.input.slots == FILLER, FILLER, where[self.input.slots])
        return self.input.carrying(self.node.codes, slots)

    def parameters(self) -> dict[str, int]:
        return {}

    def stages(self) -> tuple[Stage, ...]:
        return ()

    def cost(self) -> StreamCost:
        return StreamCost(0)

    def times(self, *inputs: Places) -> Places:
        return inputs[0]
