"""Batch norms folded into the layer before them: the same function, but for rounding."""

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize, prune

from chop.dataset import get_dataset_info
from chop.ir import MaseGraph
from chop.ir.graph.tracer import Leaf
from chop.models import get_model
from chop.passes import (
    Pipeline,
    conv_bn_fusion_transform_pass,
    quantize_transform_pass,
    verify_metadata_analysis_pass,
)

CONVS = {
    (d, transposed): getattr(nn, f"Conv{'Transpose' if transposed else ''}{d}d")
    for d in (1, 2, 3)
    for transposed in (False, True)
}
INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INTEGER |= {"weight_width": 8, "weight_frac_width": 4, "bias_width": 8, "bias_frac_width": 2}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def lived_in(model):
    """As after training: statistics and affine parameters that are nobody's default."""
    for norm in model.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            if norm.running_mean is not None:
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.5, 2)
            if norm.affine:
                nn.init.uniform_(norm.weight, -2, 2)
                nn.init.normal_(norm.bias)
    return model.eval()


def ready(model, x, **options):
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": {"x": x}, **options})]
    steps += ["add_software_metadata", "add_hardware_metadata"]
    return Pipeline(steps)(MaseGraph(model))[0]


class Row(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


def num_norms(graph):
    return sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in graph.model.modules())


def assert_fused_alike(model, x, fused, skipped=0):
    """In float64, where what remains is rounding: 1e-9 is a million units in the last place."""
    model, x = lived_in(model).double(), x.double()
    expected = model(x)
    graph = ready(model, x)
    graph, info = conv_bn_fusion_transform_pass(graph)
    assert info["fused"] == fused
    assert len(info["skipped"]) == skipped
    torch.testing.assert_close(graph.model(x), expected, rtol=1e-9, atol=1e-9)
    assert verify_metadata_analysis_pass(graph)[1] == {}
    return graph


@pytest.mark.sampled(13)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("d", "transposed"), CONVS)
def test_every_convolution_takes_its_norm_in(d, transposed, groups, bias, affine):
    conv = CONVS[d, transposed](4, 6, 3, stride=2, padding=1, groups=groups, bias=bias)
    model = Row(conv, NORMS[d](6, affine=affine))
    graph = assert_fused_alike(model, torch.randn(2, 4, *[5] * d), fused=1)
    assert num_norms(graph) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_difference_is_that_of_rounding_sums(dtype):
    """Both ways round each product and sum, the parameters and the norm's steps: fan-in + 8 times,
    each by at most eps of the sum of magnitudes."""
    conv, norm = nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)
    model, x = lived_in(Row(conv, norm)).to(dtype), torch.randn(2, 8, 6, 6).to(dtype)
    wide = copy.deepcopy(model).double()
    first, second = wide.layers
    size = (second.weight / (second.running_var + second.eps).sqrt()).abs().view(-1, 1, 1)
    sums = nn.functional.conv2d(x.double().abs(), first.weight.abs(), first.bias.abs())
    sums = (sums + second.running_mean.abs().view(-1, 1, 1)) * size
    sums = sums + second.bias.abs().view(-1, 1, 1)
    graph, _ = conv_bn_fusion_transform_pass(ready(model, x))
    bound = (8 * 9 + 8) * torch.finfo(dtype).eps * sums
    assert graph.modules["layers.0"].weight.dtype is dtype
    assert ((graph.model(x).double() - wide(x.double())).abs() <= bound).all()


def test_a_linear_layer_takes_its_norm_in():
    assert_fused_alike(Row(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU()), torch.randn(3, 5), 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "dataset", "shape", "fused"),
    [
        ("jsc-toy", "jsc-sim", (4, 16), 3),
        ("vgg7", "cifar10", (1, 3, 32, 32), 6),
        pytest.param("resnet18", "cifar10", (1, 3, 32, 32), 20, marks=pytest.mark.slow),
        pytest.param("mobilenetv2", "cifar10", (1, 3, 32, 32), 52, marks=pytest.mark.slow),
    ],
)
def test_networks_compute_the_same_without_their_norms(name, dataset, shape, fused):
    model = get_model(name, task="cls", dataset_info=get_dataset_info(dataset))
    graph = assert_fused_alike(model, torch.randn(shape), fused)
    assert num_norms(graph) == (1 if name == "jsc-toy" else 0)  # the one before any layer


class Branches(nn.Module):
    """Layers and norms of several branches, called in any order that dependences allow."""

    def __init__(self, order, biases):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 4, 3, padding=1, bias=b) for b in biases)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in biases)
        self.order = order

    def forward(self, x):
        between, done = {}, {}
        for i in self.order:
            if i in between:
                done[i] = self.norms[i](between[i])
            else:
                between[i] = self.convs[i](x)
        return sum(done[i] * (i + 1) for i in sorted(done))


@pytest.mark.slow
@given(data=st.data(), count=st.integers(1, 4))
def test_branches_may_come_in_any_order(data, count):
    order = data.draw(st.permutations([*range(count)] * 2))
    biases = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    assert_fused_alike(Branches(order, biases), torch.randn(2, 3, 4, 4), fused=count)


class Shared(nn.Module):
    def __init__(self, norms, uses):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(norms))
        self.uses = uses

    def forward(self, x):
        for use in self.uses:
            x = self.conv(x)
            x = x if use is None else self.norms[use](x)
        return x


@pytest.mark.parametrize(
    ("norms", "uses", "fused"),
    [(1, (0, 0), 2), (2, (0, 1), 0), (1, (0, None), 0), (2, (0, 0, 1), 0)],
)
def test_a_layer_that_is_called_twice_is_fused_with_one_norm_only(norms, uses, fused):
    x = torch.randn(2, 3, 5, 5)
    assert_fused_alike(Shared(norms, uses), x, fused, skipped=0 if fused else 1)


def test_a_norm_that_is_shared_goes_into_each_layer_before_it():
    norm = nn.BatchNorm1d(4)
    model = Row(nn.Linear(4, 4), norm, nn.ReLU(), nn.Linear(4, 4), norm, nn.Tanh(), norm)
    graph = assert_fused_alike(model, torch.randn(3, 4), fused=2)
    assert num_norms(graph) == 1  # the last one follows no layer


class TwoUsers(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.conv(x)
        return self.bn(y) + y


class ReadsWeights(TwoUsers):
    def forward(self, x):
        return self.bn(self.conv(x)) + self.conv.weight.sum()


class OwnForward(Leaf, nn.Conv2d):
    def forward(self, input):
        return super().forward(input) * 2


def hooked():
    conv = nn.Conv2d(3, 4, 1)
    conv.register_forward_hook(lambda module, args, result: result * 2)
    return Row(conv, nn.BatchNorm2d(4))


def pruned_by_a_hook():
    return Row(prune.l1_unstructured(nn.Conv2d(3, 4, 1), "weight", 0.5), nn.BatchNorm2d(4))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (TwoUsers, "Conv output used by other nodes. Skipped!"),
        (
            lambda: Row(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)),
            "Batchnorm not tracking stats. Skipped!",
        ),
        (ReadsWeights, "Conv weights read elsewhere in the graph. Skipped!"),
        (
            lambda: Row(nn.Linear(8, 8), nn.BatchNorm2d(3)),
            "Linear channels are not what the batch norm normalises. Skipped!",
        ),
        (
            lambda: Row(OwnForward(3, 4, 1), nn.BatchNorm2d(4)),
            "Conv or batch norm with a custom forward. Skipped!",
        ),
        (hooked, "Hooks observe the result between conv and batch norm. Skipped!"),
        (pruned_by_a_hook, "Weights cannot be set. Skipped!"),
    ],
)
def test_what_cannot_be_one_layer_is_left_with_a_warning(build, message, caplog):
    logging.getLogger("chop").propagate = True
    model, x = lived_in(build()), torch.randn(2, 3, 8, 8)
    expected = model(x)
    graph = ready(model, x)
    graph, info = conv_bn_fusion_transform_pass(graph)
    assert info["fused"] == 0
    assert list(info["skipped"].values()) == [message]
    assert message in caplog.text
    assert torch.equal(graph.model(x), expected)


def test_quantized_layers_are_left_as_rounding_would_change():
    x = torch.randn(2, 3, 4, 4)
    graph = ready(lived_in(Row(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))), x)
    quantize_transform_pass(graph, by="type", conv2d={"config": INTEGER})
    expected = graph.model(x)
    _, info = conv_bn_fusion_transform_pass(graph)
    assert "fuse first, then quantise" in next(iter(info["skipped"].values()))
    assert torch.equal(graph.model(x), expected)


def test_fused_layers_can_be_quantized_with_their_new_bias():
    x = torch.randn(2, 3, 4, 4)
    graph = ready(lived_in(Row(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))), x)
    conv_bn_fusion_transform_pass(graph)
    quantize_transform_pass(graph, by="type", conv2d={"config": INTEGER})
    bias = next(iter(graph.nodes)).next.meta["mase"]["common"]["args"]["bias"]
    assert (bias["type"], bias["precision"]) == ("integer", [8, 2])


class Mask(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight):
        return weight * self.mask

    def right_inverse(self, weight):
        return weight


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


def test_masks_of_a_parametrized_weight_stay():
    conv = nn.Conv2d(3, 4, 3)
    mask = (torch.rand_like(conv.weight) > 0.5).float()
    parametrize.register_parametrization(conv, "weight", Mask(mask))
    graph = assert_fused_alike(Row(conv, nn.BatchNorm2d(4)), torch.randn(2, 3, 5, 5), fused=1)
    layer = graph.modules["layers.0"]
    assert torch.equal(layer.parametrizations.weight[0].mask, mask.double())
    assert (layer.weight[mask == 0] == 0).all()


def test_a_parametrization_without_an_inverse_is_left():
    conv = nn.Conv2d(3, 4, 3)
    parametrize.register_parametrization(conv, "weight", Doubled())
    assert_fused_alike(Row(conv, nn.BatchNorm2d(4)), torch.randn(2, 3, 5, 5), 0, skipped=1)


def test_the_model_that_the_graph_was_made_from_stays_as_it_was():
    model, x = lived_in(Row(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))), torch.randn(2, 3, 5, 5)
    before, expected = copy.deepcopy(model.state_dict()), model(x)
    conv_bn_fusion_transform_pass(ready(model, x))
    assert torch.equal(model(x), expected)
    for key, value in before.items():
        assert torch.equal(model.state_dict()[key], value)


def test_frozen_layers_stay_frozen_and_modes_stay():
    model = Row(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)).train()
    model.layers[0].weight.requires_grad_(False)
    graph, _ = conv_bn_fusion_transform_pass(ready(model, torch.randn(2, 3, 5, 5)))
    assert not any(p.requires_grad for p in graph.model.parameters())
    assert all(module.training for module in graph.model.modules())


def test_metadata_says_what_the_fused_layer_takes_and_gives():
    x = torch.randn(2, 3, 5, 5)
    model = lived_in(Row(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)))
    expected = model(x)
    graph = ready(model, x, add_value=True)
    conv_bn_fusion_transform_pass(graph)
    assert [node.name for node in graph.nodes] == ["x", "layers_0", "output"]
    node = list(graph.nodes)[1]
    meta = node.meta["mase"]
    assert meta["common"]["args"]["bias"]["shape"] == [4]
    assert torch.equal(meta["common"]["args"]["weight"]["value"], graph.modules[node.target].weight)
    assert torch.equal(meta["common"]["results"]["data_out_0"]["value"], expected)
    assert meta["software"]["args"]["bias"] == {"stat": {}}
    assert meta["hardware"]["verilog_param"]["BIAS_TENSOR_SIZE_DIM_0"] == 4
    assert graph.nodes_out == graph.nodes_in == [node]


def test_fusing_again_finds_nothing():
    graph = ready(lived_in(Row(nn.Linear(4, 4), nn.BatchNorm1d(4))), torch.randn(3, 4))
    assert [conv_bn_fusion_transform_pass(graph)[1]["fused"] for _ in range(2)] == [1, 0]


def test_a_copy_of_a_fused_graph_is_its_equal():
    x = torch.randn(2, 3, 5, 5)
    model = lived_in(Row(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    graph, _ = conv_bn_fusion_transform_pass(ready(model, x))
    assert torch.equal(graph.clone().model(x), graph.model(x))
    assert set(graph.model.state_dict()) == {"layers.0.weight", "layers.0.bias"}


class Functional(nn.Module):
    """A batch norm as a function, of tensors of its own or of a layer that is never called."""

    def __init__(self, own, training=False, affine=True):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, eps=0.01)
        self.own, self.mode, self.affine = own, training, affine
        if own:
            self.bn = None
            self.register_buffer("mean", torch.randn(6))
            self.register_buffer("var", torch.rand(6) + 0.5)
            self.scale, self.shift = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))

    def forward(self, x):
        bn, owned = self.bn, ("mean", "var", "scale", "shift")
        names = owned if self.own else ("running_mean", "running_var", "weight", "bias")
        tensors = [getattr(self if self.own else bn, name) for name in names]
        training = self.training if self.mode == "own" else self.mode
        given = tensors if self.affine else tensors[:2]
        return F.relu(F.batch_norm(self.conv(x), *given, training=training, eps=0.01))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("training", [False, "own"])
def test_a_batch_norm_as_a_function_is_folded(own, affine, training):
    x = torch.randn(2, 3, 8, 8)
    model = lived_in(Functional(own, training, affine))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    graph = ready(model, x)
    _, info = conv_bn_fusion_transform_pass(graph)
    assert info == {"fused": 1, "skipped": {}}
    torch.testing.assert_close(graph.model(x), model(x), rtol=1e-4, atol=1e-5)
    assert not any("batch_norm" in node.name for node in graph.nodes)
    assert verify_metadata_analysis_pass(graph)[1] == {}
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_what_a_folded_function_read_is_gone():
    model = lived_in(Functional(True))
    graph = ready(model, torch.randn(2, 3, 8, 8))
    conv_bn_fusion_transform_pass(graph)
    assert set(graph.model.state_dict()) == {"conv.weight", "conv.bias"}
    graph = ready(lived_in(Functional(False, "own")), torch.randn(2, 3, 8, 8))
    conv_bn_fusion_transform_pass(graph)
    assert [name for name, _ in graph.model.named_children()] == ["conv"]


def test_a_function_that_normalises_by_the_batch_stays():
    x = torch.randn(2, 3, 8, 8)
    graph = ready(lived_in(Functional(False, training=True)), x)
    _, info = conv_bn_fusion_transform_pass(graph)
    assert info["fused"] == 0
    assert info["skipped"]["conv"].startswith("F.batch_norm uses batch statistics, or")
    assert any("batch_norm" in node.name for node in graph.nodes)
