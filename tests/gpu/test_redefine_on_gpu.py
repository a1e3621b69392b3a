"""Redefined networks on a GPU: the same weights as on a CPU, and they stay where they are."""

import pytest
import torch
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import Pipeline, redefine_transform_pass
from chop.passes.graph.transforms.redefine import reestimate_batch_norm

pytestmark = pytest.mark.gpu


def redefined(device, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    model, x = model.to(device).eval(), torch.linspace(-1, 1, 32).reshape(8, 4).to(device)
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": {"input": x}})]
    graph, _ = Pipeline(steps)(MaseGraph(model))
    before = model(x)
    graph, _ = redefine_transform_pass(
        graph, _0={"config": {"name": "both", "width": 9}}, **options
    )
    return graph, x, before


@pytest.mark.parametrize("weights", ["fresh", "inherit"])
def test_the_gpu_has_the_weights_of_the_cpu(weights):
    ours, theirs = (redefined(device, weights=weights)[0].model for device in ("cuda", "cpu"))
    assert all(t.is_cuda for t in ours.state_dict().values())
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key].cpu(), value), key


def test_the_random_state_of_the_gpu_goes_on():
    graph, _, _ = redefined("cuda")
    state = torch.cuda.get_rng_state()
    redefine_transform_pass(graph, _0={"config": {"name": "both", "width": 7}})
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_an_heir_on_the_gpu_equals_its_parent():
    graph, x, before = redefined("cuda", weights="inherit")
    torch.testing.assert_close(graph.model(x), before)
    assert reestimate_batch_norm(graph, [x.cpu()]) == 1
