"""`torch.jit.trace` of a quantised model passes its own check, and gives the model's bits."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import Pipeline

from .test_layers_by_format import EXAMPLES, config_of

pytestmark = [
    # torch's own: of tracing as such, and of sizes that a trace takes as they are
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.relu(self.norm(self.conv(x)))
        return self.head(torch.add(x, x).mean((2, 3)))


def quantised(name, precision):
    """The network as a graph whose layers and functions are in that format."""
    torch.manual_seed(1)
    config = config_of(name, precision)
    default = {"by": "type", "default": {"config": config}}
    dummy = {"dummy_in": {"x": torch.randn(4, 2, 6, 6)}}
    steps = ["init_metadata", ("add_common_metadata", dummy), ("quantize", default)]
    return Pipeline(steps)(MaseGraph(Net().eval()))[0].model.eval()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("grad", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_trace_gives_the_same_bits(name, grad):
    model, x = quantised(name, EXAMPLES[name][0]), torch.randn(4, 2, 6, 6)
    with torch.set_grad_enabled(grad), torch.jit.optimized_execution(False):
        model(x)  # after which rounded weights are kept
        traced = torch.jit.trace(model, (x,))
        for other in (x, 3 * torch.randn(4, 2, 6, 6)):
            assert torch.equal(traced(other), model(other))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_trace_of_a_training_layer_rounds_as_well(name):
    torch.manual_seed(1)
    layer = quantised(name, EXAMPLES[name][0]).head.train()
    x = torch.randn(5, 4)
    with torch.jit.optimized_execution(False):
        assert torch.equal(torch.jit.trace(layer, (x,))(x), layer(x))
