"""Repairs of quantised layers run where the model is."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import PASSES, Pipeline

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["gptq", "adaround", "correct_bias"])
def test_a_network_comes_nearer_to_the_float_one(name):
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.Flatten())
    model = nn.Sequential(*layers, nn.Linear(8 * 16, 5)).cuda().eval()
    x = torch.rand(64, 3, 8, 8)
    dummy = {"dummy_in": {"input": x[:2].cuda()}}
    mg = Pipeline(["init_metadata", ("add_common_metadata", dummy)])(MaseGraph(model))[0]
    config = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.01}
    config = {"config": config | {"weight_width": 4, "weight_axis": 0}}
    mg = PASSES["quantize"](mg, {"by": "type", "conv2d": config, "linear": config})[0]

    def error():
        return (mg.model(x.cuda()) - model(x.cuda())).square().mean().item()

    before = error()
    # batches may be on the CPU
    PASSES[name](mg, {"input_generator": [{"input": x}], "num_samples": 64})
    assert error() < before
    assert all(p.is_cuda for p in mg.model.parameters())
