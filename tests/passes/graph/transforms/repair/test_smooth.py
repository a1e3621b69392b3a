"""smooth: outliers of activations move into weights, and the function stays."""

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.passes import (
    PassArgsError,
    Pipeline,
    quantize_transform_pass,
    smooth_transform_pass,
    verify_metadata_analysis_pass,
)


class Attention(nn.Module):
    """A norm that three layers read, and a feed-forward part with an activation between."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, input):
        x = self.norm(input)
        scores = torch.softmax(self.q(x) @ self.k(x).transpose(-2, -1), -1)
        x = input + scores @ self.v(x)
        return x + self.down(torch.relu(self.up(self.norm2(x))))


def conv_net():
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True)),
        *(nn.Conv2d(6, 8, 3, groups=2), nn.LeakyReLU(0.1), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(8 * 4, 5), nn.Dropout(0.5), nn.Linear(5, 4)),
    )


NETS = {"attention": (Attention, (4, 5, 8)), "convolutions": (conv_net, (4, 3, 6, 6))}


@pytest.fixture(params=NETS)
def net(request):
    torch.manual_seed(0)
    build, shape = NETS[request.param]
    model = build().eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model, torch.randn(16, *shape[1:])


def prepared(model, x, **options):
    dummy = {"dummy_in": {"input": x[:2]}, **options}
    names = ["init_metadata", ("add_common_metadata", dummy), "add_software_metadata"]
    return Pipeline(names)(MaseGraph(model))[0]


def smoothed(mg, x, **options):
    given = {"input_generator": [{"input": b} for b in x.split(4)], "num_samples": len(x)}
    return smooth_transform_pass(mg, given | options)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_function_stays(net, alpha):
    model, x = net
    mg, info = smoothed(prepared(model, x), x, alpha=alpha)
    with torch.no_grad():
        wanted = model(x)
        assert (mg.model(x) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert info["smoothed"]
    assert verify_metadata_analysis_pass(mg)[1] == {}


def test_the_users_model_stays(net):
    model, x = net
    before = {key: value.clone() for key, value in model.state_dict().items()}
    smoothed(prepared(model, x), x)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_an_outlier_moves_into_the_weights():
    torch.manual_seed(0)
    model, x = Attention().eval(), torch.randn(64, 5, 8)
    model.norm.weight.data[3] = 60.0
    mg, info = smoothed(prepared(model, x), x)
    found = info["groups"]["norm"]
    assert found["layers"] == ["q", "k", "v"]
    assert found["after"] < 0.7 * found["before"]
    x = model.norm(x).abs().amax((0, 1))
    weights = [layer.weight.detach().abs().amax(0) for layer in (model.q, model.k, model.v)]
    scale = (x / torch.stack(weights).amax(0)).sqrt()
    assert torch.allclose(mg.modules["norm"].weight, model.norm.weight / scale)
    assert torch.allclose(mg.modules["norm"].bias, model.norm.bias / scale)
    assert torch.allclose(mg.modules["k"].weight, model.k.weight * scale)


def test_quantisation_loses_less_with_an_outlier():
    torch.manual_seed(0)
    model, x = Attention().eval(), torch.randn(64, 5, 8)
    model.norm2.weight.data[3] = 60.0
    model.up.weight.data[:, 3] /= 60.0
    config = {"name": "scale_integer", "data_in_width": 5, "weight_width": 8}
    table = {"by": "type", "linear": {"config": config}}
    plain = quantize_transform_pass(prepared(model, x), table)[0]
    better = quantize_transform_pass(smoothed(prepared(model, x), x)[0], table)[0]
    with torch.no_grad():
        errors = [(mg.model(x) - model(x)).square().mean() for mg in (better, plain)]
    assert errors[0] < 0.5 * errors[1]


def test_only_groups_with_a_chosen_layer_change():
    model, x = Attention().eval(), torch.randn(8, 5, 8)
    mg, info = smoothed(prepared(model, x), x, nodes=["down"])
    assert info["smoothed"] == ["down"]
    assert torch.equal(mg.modules["norm"].weight, model.norm.weight)


def test_a_channel_of_zeros_stays():
    model, x = Attention().eval(), torch.randn(8, 5, 8)
    model.norm.weight.data[2] = model.norm.bias.data[2] = 0.0
    model.down.weight.data[:, 1] = 0.0
    mg, _ = smoothed(prepared(model, x), x)
    with torch.no_grad():
        assert torch.allclose(mg.model(x), model(x), atol=1e-5)
    assert torch.equal(mg.modules["q"].weight[:, 2], model.q.weight[:, 2])


def test_recorded_values_follow(net):
    model, x = net
    mg, _ = smoothed(prepared(model, x, add_value=True), x)
    fresh = prepared(mg.model, x, add_value=True)
    for node, other in zip(mg.nodes, fresh.nodes, strict=True):
        for name, tensor in node.meta["mase"].common.results.tensors():
            value = other.meta["mase"].common.results.tensor(name)["value"]
            assert torch.allclose(tensor["value"], value, atol=1e-4)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, input):
        x = self.b(self.a(input).sigmoid())
        return self.c(x) + x + self.b(input)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a", "takes the result of 'input_1', which is not a layer or norm with weights"),
        ("b", "node 'b' has weights that are used more than once"),
        ("c", "takes the channels of 'b', which has weights that are used more than once"),
        ("sigmoid", "is sigmoid; smooth works on linear layers and convolutions"),
        ("d", "unknown node 'd'"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(name, sentence):
    model, x = Shared().eval(), torch.randn(8, 4)
    mg = prepared(model, x)
    with pytest.raises((PassArgsError, KeyError), match=sentence):
        smoothed(mg, x, nodes=[name])


def test_what_it_cannot_do_is_skipped_otherwise(caplog):
    model, x = Shared().eval(), torch.randn(8, 4)
    _, info = smoothed(prepared(model, x), x)
    assert info["smoothed"] == []
    assert set(info["skipped"]) == {"a", "b", "b_1", "c"}
    assert "smooth finds no layer" in caplog.text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"input_generator": None}, "needs an input_generator to run the network on data"),
        ({"input_generator": []}, "yields no batches"),
        ({"input_generator": [{"input": torch.full((2, 5, 8), torch.nan)}]}, "yields NaN"),
        ({"alpha": 1.5}, "less than or equal to 1"),
    ],
)
def test_bad_input_changes_nothing(options, sentence):
    model, x = Attention().eval(), torch.randn(8, 5, 8)
    mg = prepared(model, x)
    with pytest.raises((PassArgsError, TypeError), match=sentence):
        smoothed(mg, x, **options)
    state = mg.model.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_a_quantised_graph_is_refused():
    model, x = Attention().eval(), torch.randn(8, 5, 8)
    config = {"name": "scale_integer", "data_in_width": 5, "weight_width": 8}
    mg = quantize_transform_pass(prepared(model, x), {"by": "name", "q": {"config": config}})[0]
    with pytest.raises(PassArgsError, match="node 'q' is quantised; smooth first"):
        smoothed(mg, x)


@pytest.mark.slow
def test_layers_of_transformers_with_transposed_weights(package):
    conv1d = package("transformers").pytorch_utils.Conv1D
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), conv1d(12, 8), nn.ReLU(), conv1d(4, 12)).eval()
    x = torch.randn(16, 5, 8)
    mg, info = smoothed(prepared(model, x), x)
    assert info["smoothed"] == ["_1", "_3"]
    with torch.no_grad():
        assert torch.allclose(mg.model(x), model(x), atol=1e-6)
