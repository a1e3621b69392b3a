"""Repairs of layers with NaN in their parameters name the layer, and change nothing."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import PASSES, PassArgsError, Pipeline

CONFIG = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
CONFIG |= {"weight_width": 4, "weight_frac_width": 4}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("parameter", ["weight", "bias"])
@pytest.mark.parametrize("name", ["gptq", "adaround", "correct_bias"])
def test_a_layer_with_nan_is_named(name, parameter, value):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), torch.randn(8, 4)
    getattr(model[1], parameter).data.view(-1)[0] = value
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": {"input": x}})]
    steps += [("quantize", {"by": "type", "linear": {"config": CONFIG}})]
    graph, _ = Pipeline(steps)(MaseGraph(model))
    before = {key: tensor.clone() for key, tensor in graph.model.state_dict().items()}
    said = f"node '_1' has a {parameter} with NaN or infinite values; train or load it again$"
    with pytest.raises(PassArgsError, match=said):
        PASSES[name](graph, {"input_generator": [{"input": x}], "num_samples": 8})
    after = graph.model.state_dict()
    assert all(torch.equal(t, after[k]) for k, t in before.items() if bool(t.isfinite().all()))
