"""Graphs, metadata and statistics of a model that lives on a GPU."""

import pytest
import torch
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import Pipeline, profile_statistics_analysis_pass, verify_metadata_analysis_pass

pytestmark = pytest.mark.gpu


class Noisy(nn.Module):
    """Uses everything that a look at the model could disturb: batch norm, noise, in-place ops."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(16)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(self.relu(self.bn(x + torch.randn_like(x))))


def prepared(**options):
    x = torch.randn(8, 16, device="cuda")
    steps = ["init_metadata", "add_common_metadata", "add_software_metadata"]
    graph = MaseGraph(Noisy().cuda())
    return Pipeline(steps)(graph, {"add_common_metadata": {"dummy_in": {"x": x}, **options}})[0]


def test_metadata_of_a_model_on_the_gpu_is_complete_and_its_values_stay_there():
    graph = prepared()
    assert verify_metadata_analysis_pass(graph)[1] == {}
    for node in graph.nodes:
        assert node.meta["mase"]["common"]["results"]["data_out_0"]["value"].is_cuda


def test_the_random_state_and_the_statistics_of_the_gpu_are_left_alone():
    torch.cuda.manual_seed(1)
    before = torch.cuda.get_rng_state()
    graph = prepared()
    torch.cuda.set_rng_state(before)
    prepared()
    drawn = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(before)
    torch.randn(8, 16, device="cuda")  # the dummy input is all that may be drawn
    assert torch.equal(torch.cuda.get_rng_state(), drawn)
    assert graph.modules["bn"].num_batches_tracked == 0
    assert graph.modules["bn"].training


def test_on_the_meta_device_nothing_of_the_model_moves():
    graph = prepared(force_device_meta=True)
    assert all(p.is_cuda for p in graph.model.parameters())
    assert next(iter(graph.nodes)).meta["mase"]["common"]["results"]["data_out_0"]["value"].is_meta


def test_a_clone_stays_on_the_gpu_and_computes_the_same():
    graph = prepared()
    x = torch.randn(4, 16, device="cuda")
    torch.cuda.manual_seed(0)
    expected = graph.model.eval()(x)
    torch.cuda.manual_seed(0)
    assert torch.equal(graph.clone().model.eval()(x), expected)


@pytest.mark.parametrize("device", ["cuda", "cpu", None])
def test_statistics_of_the_gpu_equal_those_of_the_cpu(device):
    graph = prepared()
    batches = [{"x": torch.randn(8, 16, device="cuda")} for _ in range(4)]
    stats = {"range_quantile": {"device": device}, "variance_online": {"device": device}}
    args = {
        "by": "type",
        "target_weight_nodes": ["linear"],
        "target_activation_nodes": ["linear"],
        "weight_statistics": stats,
        "activation_statistics": stats,
        "input_generator": batches,
        "num_samples": 32,
    }
    profile_statistics_analysis_pass(graph, args)
    fc = next(node for node in graph.nodes if node.name == "fc")
    weight = graph.modules["fc"].weight.detach().double().cpu()
    args = fc.meta["mase"]["software"]["args"]
    stat = args["weight"]["stat"]
    assert stat["variance_online"]["variance"] == pytest.approx(weight.var(correction=0).item())
    assert stat["range_quantile"]["max"] == pytest.approx(weight.quantile(0.975).item())
    assert args["data_in_0"]["stat"]["range_quantile"]["count"] == 512
