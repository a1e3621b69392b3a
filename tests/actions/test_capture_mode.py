"""Commands capture a model as it is scored: in eval mode, whatever it does while it is trained."""

import pytest
import torch
from torch import nn

from chop.actions.transform.source import Source
from chop.dataset import MaseDataModule


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 2), nn.BatchNorm1d(2).eval()

    def forward(self, x):
        if self.training:
            x = x + torch.randn_like(x)
        return self.norm(self.fc(x.flatten(1)))


@pytest.mark.parametrize("front_end", ["fx", pytest.param("export", marks=pytest.mark.slow)])
def test_noise_of_training_is_not_in_the_graph_and_modes_are_kept(front_end, caplog):
    data = MaseDataModule("toy_tiny", batch_size=4, num_workers=0)
    data.prepare_data()
    data.setup()
    model = Noisy()
    graph = Source(model, None, "noisy", data, "cls", None, "mz", front_end).graph_on("cpu", {})
    assert (graph.model.training, graph.modules["fc"].training) == (True, True)
    assert (model.training, model.norm.training, graph.modules["norm"].training) == (
        True,
        False,
        False,
    )
    x = torch.randn(3, 1, 2, 2)
    assert torch.equal(graph.model.eval()(x), model.eval()(x))
    assert "branches on self.training" not in caplog.text
