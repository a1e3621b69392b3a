"""Fronts of networks with convolutions and batch norms, whose bits are learned by channel."""

import pytest
import torch
from torch import nn

from chop.dataset import TensorSplit
from chop.ir import MaseGraph
from chop.passes import Pipeline, freeze_bits_transform_pass, learn_bits_transform_pass
from chop.training.learned import FrontOptions, train_front


def pictures(size, seed):
    x = torch.randn(size, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    return TensorSplit(x, (x[:, 0, :3].mean((1, 2)) > x[:, 0, 3:].mean((1, 2))).long())


class Residual(nn.Module):
    """Two convolutions with batch norms and a shortcut, as ResNets have."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.relu = nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.ReLU()
        self.flatten, self.last = nn.Flatten(), nn.Linear(4 * 36, 2)

    def forward(self, x):
        x = self.relu(self.norm(self.first(x)))
        return self.last(self.flatten(self.relu(x + self.second(x))))


def learning():
    torch.manual_seed(0)
    graph = MaseGraph(Residual())
    dummy_in = {"x": torch.randn(2, 1, 6, 6)}
    graph, _ = Pipeline(["init_metadata", ("add_common_metadata", {"dummy_in": dummy_in})])(graph)
    how = {"width": 6, "granularity": "channel", "data_in_granularity": "channel"}
    made, _ = learn_bits_transform_pass(graph, how)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ramp", "population"])
def test_a_network_with_convolutions_becomes_cheaper_and_is_frozen_to_equal_outputs(way):
    usual = {"members": 2, "steps": 150, "batch_size": 64, "checkpoints": 10}
    options = FrontOptions(way=way, cost="ebops", price=[1e-6, 1e-4], learning_rate=1e-2, **usual)
    data = pictures(1500, 1), pictures(500, 2)
    front = train_front(learning(), data, options)
    assert front.designs[-1].metrics["accuracy"] > 0.9
    start = sum(
        float(layer.bit_cost("ebops", exact=True))
        for layer in learning().model.modules()
        if hasattr(layer, "bit_cost")
    )
    assert front.designs[0].cost < 0.8 * start
    for design in front.designs:
        graph = front.network(design)
        graph.model.eval()
        expected = graph.model(data[1].x)
        frozen, _ = freeze_bits_transform_pass(graph)
        assert torch.equal(frozen.model(data[1].x), expected)
        correct = (expected.argmax(1) == data[1].y).float().mean().item()
        assert correct == pytest.approx(design.metrics["accuracy"], abs=1e-6)
