"""Batch norms folded into the layers on either side: the same function, but for rounding."""

import copy
import logging
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chop.dataset import get_dataset_info
from chop.ir import MaseGraph
from chop.models import get_model
from chop.passes import (
    PassArgsError,
    Pipeline,
    fold_batch_norm_transform_pass,
    quantize_transform_pass,
    run_pass,
    verify_metadata_analysis_pass,
)
from chop.passes.graph.transforms import metadata_sync

CONVS = {
    (d, transposed): getattr(nn, f"Conv{'Transpose' if transposed else ''}{d}d")
    for d in (1, 2, 3)
    for transposed in (False, True)
}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INTEGER |= {"weight_width": 8, "weight_frac_width": 4}


def lived_in(model):
    """As after training: statistics and affine parameters other than the defaults."""
    for norm in model.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.track_running_stats:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            if norm.affine:
                nn.init.uniform_(norm.weight, -2, 2)
                nn.init.normal_(norm.bias)
    return model.eval()


def prepared(model, x, **options):
    graph = MaseGraph(model)
    (source,) = graph.inputs
    dummy_in = {"dummy_in": {str(source.target): x}, **options}
    steps = ["init_metadata", ("add_common_metadata", dummy_in)]
    return Pipeline([*steps, "add_software_metadata", "add_hardware_metadata"])(graph)[0]


def norms(graph):
    return [m for m in graph.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def assert_folded_alike(model, x, folded, skipped=0, **options):
    """In float64 what remains is rounding; in float32 the difference is below 1e-5."""
    model, x = lived_in(model).double(), x.double()
    expected = model(x)
    graph, info = fold_batch_norm_transform_pass(prepared(model, x), **options)
    assert len(info["folded"]) == folded
    assert len(info["skipped"]) == skipped
    torch.testing.assert_close(graph.model(x), expected, rtol=1e-9, atol=1e-9)
    assert verify_metadata_analysis_pass(graph)[1] == {}
    again = lived_in(model).float()
    graph, _ = fold_batch_norm_transform_pass(prepared(again, x.float()), **options)
    largest = again(x.float()).abs().max()
    assert (graph.model(x.float()) - again(x.float())).abs().max() <= 1e-5 * max(1, largest)
    return graph


@pytest.mark.sampled(3)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("d", NORMS)
def test_every_convolution_without_padding_takes_in_the_norm_before_it(d, groups, bias, affine):
    conv = CONVS[d, False](4, 8, 3, stride=2, groups=groups, bias=bias)
    model = nn.Sequential(NORMS[d](4, affine=affine), conv)
    graph = assert_folded_alike(model, torch.randn(2, 4, *[5] * d), folded=1)
    assert norms(graph) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("d", NORMS)
def test_a_transposed_convolution_does_if_every_output_has_the_same_weights(d, groups):
    conv = CONVS[d, True](4, 6, 1, groups=groups)
    assert_folded_alike(nn.Sequential(NORMS[d](4), conv), torch.randn(2, 4, *[3] * d), folded=1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("d", "transposed"), CONVS)
def test_a_norm_without_a_shift_needs_no_constant(d, transposed):
    norm, conv = NORMS[d](4), CONVS[d, transposed](4, 6, 3, stride=2, padding=1)
    norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 4, *[5] * d)
    model = nn.Sequential(norm, conv).eval()
    graph, info = fold_batch_norm_transform_pass(prepared(model, x))
    assert info["folded"] == ["_0"]
    torch.testing.assert_close(graph.model(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_with_the_data_themselves_is_no_obstacle(mode):
    conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode)
    assert_folded_alike(nn.Sequential(nn.BatchNorm2d(3), conv), torch.randn(2, 3, 5, 5), folded=1)


@pytest.mark.parametrize(("padding", "folded"), [("valid", 1), ("same", 0), (0, 1), (1, 0)])
def test_zeros_around_the_input_are(padding, folded):
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=padding))
    x = torch.randn(2, 3, 5, 5)
    graph = assert_folded_alike(model, x, folded, skipped=1 - folded)
    assert len(norms(graph)) == 1 - folded


def test_a_linear_layer_takes_in_the_norm_before_it():
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 7, bias=False), nn.ReLU())
    graph = assert_folded_alike(model, torch.randn(3, 5), folded=1)
    assert [node.name for node in graph.nodes] == ["input_1", "_1", "_2", "output"]


def test_dropout_identity_and_flatten_may_stand_between():
    layers = [nn.BatchNorm2d(3), nn.Identity(), nn.Dropout(), nn.Flatten(), nn.Linear(3 * 4, 5)]
    assert_folded_alike(nn.Sequential(*layers), torch.randn(2, 3, 2, 2), folded=1)


def test_norms_in_a_row_are_all_folded():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3))
    assert_folded_alike(model, torch.randn(5, 4), folded=3)


@pytest.mark.parametrize(("side", "left"), [("both", 0), ("after", 1), ("before", 1)])
def test_the_side_is_a_choice(side, left):
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU())
    graph = assert_folded_alike(model, torch.randn(5, 4), folded=2 - left, side=side)
    assert len(norms(graph)) == left


def test_the_layer_before_comes_first():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    graph = assert_folded_alike(model, torch.randn(5, 4), folded=1)
    assert torch.equal(graph.modules["2"].weight, model[2].weight.float())


class Residual(nn.Module):
    """The result of the first layer is also added: only the second can take its norm in."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        return x + self.second(self.norm(x))


def test_a_norm_that_one_layer_cannot_take_may_go_into_the_other():
    assert_folded_alike(Residual(), torch.randn(3, 4), folded=1)


class Function(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        norm = self.norm
        tensors = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        return self.fc(F.batch_norm(x, *tensors, training=self.training))


def test_a_batch_norm_as_a_function_is_folded_too():
    graph = assert_folded_alike(Function(), torch.randn(5, 4), folded=1)
    assert set(graph.model.state_dict()) == {"fc.weight", "fc.bias"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "dataset", "shape", "folded"),
    [
        ("jsc-toy", "jsc-sim", (4, 16), 3),
        pytest.param("vgg7", "cifar10", (1, 3, 32, 32), 6, marks=pytest.mark.slow),
        pytest.param("resnet18", "cifar10", (1, 3, 32, 32), 20, marks=pytest.mark.slow),
        pytest.param("mobilenetv2", "cifar10", (1, 3, 32, 32), 52, marks=pytest.mark.slow),
    ],
)
def test_networks_compute_the_same_without_their_norms(name, dataset, shape, folded):
    model = get_model(name, task="cls", dataset_info=get_dataset_info(dataset))
    left = 1 if name == "jsc-toy" else 0  # the one before a relu
    graph = assert_folded_alike(model, torch.randn(shape), folded, skipped=left)
    assert len(norms(graph)) == left


class Twice(nn.Module):
    def __init__(self, users):
        super().__init__()
        self.norm, self.fc, self.users = nn.BatchNorm1d(4), nn.Linear(4, 4), users

    def forward(self, x):
        y = self.norm(x)
        return self.fc(y) + (y if self.users == "norm" else self.fc(x))


def hooked():
    norm = nn.BatchNorm1d(4)
    norm.register_forward_hook(lambda module, args, result: result * 2)
    return nn.Sequential(norm, nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("build", "shape", "reason"),
    [
        (lambda: Twice("norm"), (3, 4), "Batch norm output used by other nodes"),
        (lambda: Twice("layer"), (3, 4), "Linear called again without the batch norm before it"),
        (hooked, (3, 4), "Hooks observe the result between batch norm and linear"),
        (
            lambda: nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)),
            (3, 4),
            "Batchnorm not tracking stats",
        ),
        (
            lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(4, 3)),
            (3, 5, 4),
            "Linear channels are not what the batch norm normalises",
        ),
        (
            lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1)),
            (2, 3, 5, 5),
            "Conv pads with zeros: the shift of the batch norm does not reach every output alike",
        ),
        (
            lambda: nn.Sequential(nn.BatchNorm2d(3), nn.ConvTranspose2d(3, 4, 2, stride=2)),
            (2, 3, 5, 5),
            "Conv is transposed: the shift of the batch norm does not reach every output alike",
        ),
    ],
)
def test_a_norm_that_cannot_be_folded_stays_with_a_warning(build, shape, reason, caplog):
    logging.getLogger("chop").propagate = True
    model, x = lived_in(build()), torch.randn(shape)
    expected = model(x)
    graph, info = fold_batch_norm_transform_pass(prepared(model, x), side="before")
    assert info["folded"] == []
    assert list(info["skipped"].values()) == [f"{reason}. Skipped!"]
    assert reason in caplog.text
    assert torch.equal(graph.model(x), expected)


def test_a_norm_before_a_relu_is_no_norm_before_a_layer():
    model, x = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(3, 4)
    assert_folded_alike(model, x, folded=0, skipped=1)


def test_quantized_layers_are_left():
    x = torch.randn(3, 4)
    graph = prepared(lived_in(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))), x)
    quantize_transform_pass(graph, by="type", linear={"config": INTEGER})
    _, info = fold_batch_norm_transform_pass(graph)
    assert "fuse first, then quantise" in next(iter(info["skipped"].values()))


@pytest.mark.parametrize("side", ["left", None, 1, ["after"]])
def test_another_side_is_refused(side):
    graph = prepared(nn.Sequential(nn.Linear(4, 3)), torch.randn(3, 4))
    with pytest.raises(PassArgsError, match="side"):
        fold_batch_norm_transform_pass(graph, side=side)


def test_metadata_say_what_the_layer_takes_now():
    model = lived_in(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4)))
    x = torch.randn(2, 3, 2, 2)
    expected = model(x)
    graph, _ = fold_batch_norm_transform_pass(prepared(model, x, add_value=True))
    flatten, layer = (node.meta["mase"] for node in list(graph.nodes)[1:3])
    assert torch.equal(flatten["common"]["args"]["data_in_0"]["value"], x)
    assert torch.equal(flatten["common"]["results"]["data_out_0"]["value"], x.flatten(1))
    assert torch.equal(layer["common"]["args"]["data_in_0"]["value"], x.flatten(1))
    assert torch.equal(layer["common"]["args"]["weight"]["value"], graph.modules["2"].weight)
    assert torch.equal(layer["common"]["results"]["data_out_0"]["value"], expected)


def test_the_model_that_the_graph_was_made_from_stays_as_it_was():
    model, x = lived_in(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))), torch.randn(3, 4)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    fold_batch_norm_transform_pass(prepared(model, x))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


LAYERS = {
    "norm": lambda c, _: (nn.BatchNorm2d(c), c),
    "conv": lambda c, n: (nn.Conv2d(c, n, 3, padding=1), n),
    "plain": lambda c, n: (nn.Conv2d(c, n, 1, bias=False), n),
    "relu": lambda c, _: (nn.ReLU(), c),
    "dropout": lambda c, _: (nn.Dropout(), c),
}


@pytest.mark.slow
@given(
    names=st.lists(st.tuples(st.sampled_from(list(LAYERS)), st.integers(1, 4)), max_size=7),
    side=st.sampled_from(["both", "after", "before"]),
)
def test_any_row_of_layers_computes_the_same(names, side):
    layers, channels = [nn.Identity()], 2
    for name, width in names:
        layer, channels = LAYERS[name](channels, width)
        layers.append(layer)
    model, x = lived_in(nn.Sequential(*layers)).double(), torch.randn(2, 2, 4, 4).double()
    graph, info = fold_batch_norm_transform_pass(prepared(model, x), side=side)
    torch.testing.assert_close(graph.model(x), model(x), rtol=1e-9, atol=1e-9)
    assert len(norms(graph)) + len(info["folded"]) == sum(name == "norm" for name, _ in names)
    assert verify_metadata_analysis_pass(graph)[1] == {}


@pytest.mark.parametrize("after", [[nn.ReLU(), nn.Conv2d(4, 2, 3)], [nn.MaxPool2d(2)], []])
def test_a_norm_without_a_layer_beside_it_stays_with_the_reason(after, caplog):
    caplog.set_level(logging.INFO)
    model = lived_in(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), *after))
    graph = prepared(model, torch.randn(2, 3, 8, 8))
    _, info = fold_batch_norm_transform_pass(graph)
    reason = "no linear layer or convolution stands directly before or after it"
    assert info == {"folded": [], "skipped": {"_2": reason}}
    assert f"The batch norm '_2' stays: {reason}" in caplog.text


def test_a_norm_behind_an_activation_is_folded_into_the_next_layer():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)]
    model, x = lived_in(nn.Sequential(*layers)), torch.randn(2, 3, 8, 8)
    graph = prepared(model, x)
    _, info = fold_batch_norm_transform_pass(graph)
    assert info == {"folded": ["_2"], "skipped": {}}
    assert torch.allclose(graph.model(x), model(x), atol=1e-5)


@pytest.mark.parametrize("name", ["fold_batch_norm", "equalize"])
def test_the_layers_are_searched_as_often_for_many_norms_as_for_one(name, monkeypatch):
    searches = []
    for number in (1, 5):
        block = [nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.ReLU()]
        layers = [copy.deepcopy(layer) for layer in block * number]
        graph = prepared(lived_in(nn.Sequential(*layers)), torch.randn(2, 4))
        with monkeypatch.context() as patch:
            counted = mock.Mock(wraps=metadata_sync.calls)
            patch.setattr(metadata_sync, "calls", counted)
            _, info = run_pass(name, graph)
        assert len(info["skipped"]) == number
        searches.append(counted.call_count)
    assert searches[0] == searches[1]
