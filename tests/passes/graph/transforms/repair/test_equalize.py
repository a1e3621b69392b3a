"""Cross-layer equalisation: the same function, with the same ranges on both sides."""

import logging

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

from chop.dataset import get_dataset_info
from chop.ir import MaseGraph
from chop.ir.graph.tracer import Leaf
from chop.models import get_model
from chop.passes import (
    PassArgsError,
    Pipeline,
    equalize_transform_pass,
    fold_batch_norm_transform_pass,
    profile_statistics_analysis_pass,
    quantize_transform_pass,
    verify_metadata_analysis_pass,
)
from chop.passes.graph.transforms.repair.fold_batch_norm import NO_LAYER

INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INTEGER |= {"weight_width": 8, "weight_frac_width": 4}


def uneven(model):
    """As after folding norms: channels of very different ranges."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            with torch.no_grad():
                scale = torch.rand(len(layer.weight)).mul(6).sub(3).exp()
                layer.weight.mul_(scale.view(-1, *[1] * (layer.weight.ndim - 1)))
                if layer.bias is not None:
                    layer.bias.normal_()
    return model.eval()


def prepared(model, x, **options):
    graph = MaseGraph(model)
    (source,) = graph.inputs
    dummy_in = {"dummy_in": {str(source.target): x}, **options}
    steps = ["init_metadata", ("add_common_metadata", dummy_in)]
    return Pipeline([*steps, "add_software_metadata", "add_hardware_metadata"])(graph)[0]


def outputs(layer):
    """The range of each output channel, by the definition: each channel's own weights."""
    weight, groups = layer.weight.detach().abs(), getattr(layer, "groups", 1)
    if isinstance(layer, nn.modules.conv._ConvTransposeNd):
        parts = weight.chunk(groups)  # [in, out / groups, …]
        return torch.cat([part.transpose(0, 1).flatten(1).amax(1) for part in parts])
    return weight.flatten(1).amax(1)


def inputs(layer, repeats=1):
    weight, groups = layer.weight.detach().abs(), getattr(layer, "groups", 1)
    if isinstance(layer, nn.modules.conv._ConvTransposeNd):
        ranges = weight.flatten(1).amax(1)
    else:
        parts = [part.transpose(0, 1).flatten(1).amax(1) for part in weight.chunk(groups)]
        ranges = torch.cat(parts)
    return ranges.view(-1, repeats).amax(1)


def assert_equalized_alike(model, x, pairs, repeats=1, **options):
    """The function is kept to 1e-5, and each pair has the same ranges."""
    model, wide = uneven(model), x.double()
    expected = model.double()(wide)
    model.float()
    graph, info = equalize_transform_pass(prepared(model, x), **options)
    assert [pair["layers"] for pair in info["pairs"]] == pairs
    tolerance = 1e-5 * max(1, expected.abs().max())
    assert (graph.model(x).double() - expected).abs().max() <= tolerance
    assert verify_metadata_analysis_pass(graph)[1] == {}
    targets = {node.name: str(node.target) for node in graph.nodes}
    for first, second in pairs:
        own = outputs(graph.modules[targets[first]])
        other = inputs(graph.modules[targets[second]], repeats)
        torch.testing.assert_close(own, other, rtol=5e-3, atol=0)
    return graph, info


CONVS = {
    (d, transposed): getattr(nn, f"Conv{'Transpose' if transposed else ''}{d}d")
    for d in (1, 2, 3)
    for transposed in (False, True)
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_every_pair_of_convolutions(d, bias, groups, first, second):
    layers = [
        CONVS[d, first](4, 6, 3, padding=1, groups=groups, bias=bias),
        nn.ReLU(inplace=True),
        CONVS[d, second](6, 4, 2, stride=2, groups=groups),
    ]
    assert_equalized_alike(nn.Sequential(*layers), torch.randn(2, 4, *[5] * d), [["_0", "_2"]])


def test_depthwise_convolutions():
    layers = [nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(6, 4, 1))
    assert_equalized_alike(model, torch.randn(2, 3, 5, 5), [["_0", "_2"], ["_2", "_4"]])


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (4,)])
def test_linear_layers_of_any_rank(shape):
    model = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.1), nn.Linear(6, 5))
    pairs = [["_0", "_2"]] if len(shape) > 1 else []
    assert_equalized_alike(model, torch.randn(shape), pairs)


BETWEEN = {
    "relu": nn.ReLU(),
    "leaky relu": nn.LeakyReLU(0.3),
    "prelu": nn.PReLU(6),
    "identity": nn.Identity(),
    "dropout": nn.Dropout2d(),
    "max pool": nn.MaxPool2d(2, padding=1),
    "average pool": nn.AvgPool2d(3, stride=1, padding=1),
    "adaptive": nn.AdaptiveAvgPool2d(2),
    "nothing": None,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", BETWEEN)
def test_what_may_stand_between(name):
    between = [nn.ReLU()] if BETWEEN[name] is None else [BETWEEN[name]]
    layers = [nn.Conv2d(3, 6, 3), *between, nn.Conv2d(6, 4, 1)]
    layers = [layer for layer in layers if name != "nothing" or not isinstance(layer, nn.ReLU)]
    last = f"_{len(layers) - 1}"
    assert_equalized_alike(nn.Sequential(*layers), torch.randn(2, 3, 6, 6), [["_0", last]])


def test_a_flattened_channel_is_many_inputs_of_a_linear_layer():
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5)]
    model = nn.Sequential(*layers)
    assert_equalized_alike(model, torch.randn(2, 3, 6, 6), [["_0", "_4"]], repeats=4)


class Functions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(16, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = F.dropout(x, 0.5, self.training)
        return self.fc(x.view(x.size(0), -1))


def test_functions_and_a_view_between():
    x = torch.randn(2, 3, 6, 6)
    assert_equalized_alike(Functions(), x, [["conv", "fc"]], repeats=4)


class Block(nn.Module):
    """A residual block: the sum ties the channels of its operands."""

    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b, self.head = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.b(torch.relu(self.a(x))))
        return self.head(x)


def test_residual_connections_are_left_alone():
    model = Block()
    stem = model.stem.weight
    graph, info = assert_equalized_alike(model, torch.randn(2, 4, 5, 5), [["a", "b"]])
    assert info["skipped"] == {
        "stem": "its result is used by several nodes",
        "b": "'add' comes after it: equalize does not carry scales through add",
    }
    assert torch.equal(graph.modules["stem"].weight, stem)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(torch.relu(self.a(torch.relu(self.a(x)))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class OwnReLU(Leaf, nn.ReLU):
    def forward(self, input):
        return super().forward(input) + 1


class AsFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.weight = nn.Linear(4, 4), nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return F.linear(torch.relu(self.a(x)), self.weight)


def hooked():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    model[1].register_forward_hook(lambda module, args, result: None)
    return model


def not_a_number():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    nn.init.constant_(model[2].weight, torch.nan)
    return model


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (Shared, "its weights are used more than once"),
        (Tied, "its weights are used more than once"),
        (AsFunction, "'linear' comes after it: it is a function, not a layer"),
        (hooked, "hooks observe the result of '_1' after it"),
        (not_a_number, "'_2' comes after it: its weights are not finite real numbers"),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU6(), nn.Linear(4, 3)),
            "'_1' comes after it: equalize does not carry scales through relu6",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 3)),
            "'_1' comes after it: equalize does not carry scales through sigmoid",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
            "the batch norm '_1' comes after it; run fold_batch_norm first",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.ReLU()),
            f"the batch norm '_2' comes after it; it cannot be folded: {NO_LAYER}",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), OwnReLU(), nn.Linear(4, 3)),
            "'_1' comes after it: it has a custom forward",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.MaxPool1d(2), nn.Linear(2, 3)),
            "'_1' mixes its channels",
        ),
    ],
)
def test_layers_that_cannot_be_scaled_are_left_with_the_reason(build, reason):
    model, x = build().eval(), torch.randn(2, 4)
    expected = model(x)
    graph, info = equalize_transform_pass(prepared(model, x))
    assert info["pairs"] == []
    assert reason in info["skipped"].values()
    torch.testing.assert_close(graph.model(x), expected, equal_nan=True, rtol=0, atol=0)


def test_a_layer_without_a_partner_is_skipped_with_the_reason(caplog):
    graph = prepared(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4))
    _, info = equalize_transform_pass(graph)
    assert info["skipped"] == {"_0": "no layer comes after it"}
    assert "equalize changes nothing, as the graph has no pair of layers ('_0': no" in caplog.text


def test_a_graph_that_is_quantized_is_refused_in_one_sentence():
    x = torch.randn(2, 4)
    graph = prepared(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)), x)
    quantize_transform_pass(graph, by="name", _2={"config": INTEGER})
    expected = graph.model(x)
    with pytest.raises(PassArgsError, match="needs a float graph, but node '_2' is quantised; "):
        equalize_transform_pass(graph)
    assert torch.equal(graph.model(x), expected)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "options",
    [
        *({"iterations": value} for value in (0, -1, 1.5, "many")),
        *({"tolerance": value} for value in (0, -1e-3, float("nan"), "small")),
        {"itertions": 3},
    ],
)
def test_bad_options_are_refused(options):
    graph = prepared(nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4))
    with pytest.raises(PassArgsError, match=next(iter(options))):
        equalize_transform_pass(graph, options)


def test_a_dead_channel_stays_as_it_is():
    model, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(8, 4)
    uneven(model)
    with torch.no_grad():
        model[0].weight[1] = 0  # gives its bias alone
        model[2].weight[:, 3] = 0  # is never read
    expected = model(x)
    graph, _ = equalize_transform_pass(prepared(model, x))
    first, second = graph.modules["0"], graph.modules["2"]
    assert torch.equal(first.bias[[1, 3]], model[0].bias[[1, 3]])
    assert torch.equal(first.weight[3], model[0].weight[3])
    assert torch.equal(second.weight[:, 1], model[2].weight[:, 1])
    torch.testing.assert_close(graph.model(x), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(first.weight[1], torch.zeros(4))


def test_half_precision_stays_finite():
    model, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(8, 4)
    with torch.no_grad():
        model[0].weight[0] *= 1e-4
        model[0].bias[0] = 3e4
    model = model.half().eval()
    graph, _ = equalize_transform_pass(prepared(model, x.half()))
    assert all(parameter.isfinite().all() for parameter in graph.model.parameters())
    assert graph.model(x.half()).isfinite().all()


def test_a_few_iterations_are_a_warning(caplog):
    logging.getLogger("chop").propagate = True
    layers = [layer for _ in range(6) for layer in (nn.Linear(4, 4), nn.ReLU())]
    model, x = uneven(nn.Sequential(*layers)), torch.randn(2, 4)
    expected = model(x)
    graph, info = equalize_transform_pass(prepared(model, x), iterations=1)
    assert info["iterations"] == 1
    assert "give more iterations or a larger tolerance" in caplog.text
    torch.testing.assert_close(graph.model(x), expected, rtol=1e-4, atol=1e-5)
    again, _ = equalize_transform_pass(prepared(model, x))
    _, info = equalize_transform_pass(again)
    assert info["iterations"] == 1  # nothing is left to do


def test_the_info_has_the_ranges_before_and_after():
    model, x = uneven(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))), torch.randn(2, 4)
    graph, info = equalize_transform_pass(prepared(model, x))
    (pair,) = info["pairs"]
    for state, layers in (("before", model), ("after", graph.modules)):
        for name, ranges in (("_0", outputs), ("_2", inputs)):
            found = ranges(layers[int(name[1])] if state == "before" else layers[name[1]])
            expected = [found.min().item(), found.max().item()]
            assert pair[state][name] == pytest.approx(expected, rel=1e-5)
    assert pair["after"]["_0"] == pytest.approx(pair["after"]["_2"], rel=5e-3)


def test_metadata_follow():
    model = uneven(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)))
    x = torch.randn(2, 3, 4, 4)
    graph = prepared(model, x, add_value=True)
    options = {"activation_statistics": {"range_min_max": {}}, "num_samples": 2}
    options |= {"by": "type", "target_activation_nodes": ["relu", "linear", "conv2d"]}
    profile_statistics_analysis_pass(graph, input_generator=[{"input": x}], **options)
    graph, _ = equalize_transform_pass(graph)
    meta = {node.name: node.meta["mase"] for node in graph.nodes}
    hidden = graph.modules["0"](x)
    recorded = meta["_1"]["common"]["args"]["data_in_0"]["value"]
    torch.testing.assert_close(recorded, hidden, rtol=1e-5, atol=1e-6)
    recorded = meta["_3"]["common"]["args"]["data_in_0"]["value"]
    torch.testing.assert_close(recorded, hidden.relu().flatten(1), rtol=1e-5, atol=1e-6)
    assert torch.equal(meta["_0"]["common"]["args"]["weight"]["value"], graph.modules["0"].weight)
    assert meta["_1"]["software"]["args"]["data_in_0"] == {"stat": {}}
    assert meta["_3"]["software"]["args"]["data_in_0"] == {"stat": {}}
    assert meta["_0"]["software"]["args"]["data_in_0"]["stat"] != {}


def test_masks_stay_and_the_model_too():
    class Mask(nn.Module):
        def forward(self, weight):
            return weight * torch.eye(4)

        def right_inverse(self, weight):
            return weight

    model, x = uneven(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))), torch.randn(2, 4)
    parametrize.register_parametrization(model[0], "weight", Mask())
    expected, before = model(x), model[0].weight.clone()
    graph, info = equalize_transform_pass(prepared(model, x))
    assert len(info["pairs"]) == 1
    torch.testing.assert_close(graph.model(x), expected, rtol=1e-5, atol=1e-5)
    assert (graph.modules["0"].weight * (1 - torch.eye(4)) == 0).all()
    assert torch.equal(model[0].weight, before)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "dataset", "shape", "pairs"),
    [
        ("jsc-s", "jsc-sim", (4, 16), 2),
        pytest.param("vgg7", "cifar10", (1, 3, 32, 32), 8, marks=pytest.mark.slow),
        pytest.param("resnet18", "cifar10", (1, 3, 32, 32), 8, marks=pytest.mark.slow),
        pytest.param("mobilenetv2", "cifar10", (1, 3, 32, 32), 0, marks=pytest.mark.slow),
    ],
)
def test_networks_compute_the_same_after_their_norms_are_folded(name, dataset, shape, pairs):
    model = get_model(name, task="cls", dataset_info=get_dataset_info(dataset)).eval()
    x = torch.randn(shape)
    graph, _ = fold_batch_norm_transform_pass(prepared(model, x))
    for layer in graph.modules.values():
        uneven(layer) if isinstance(layer, nn.Linear) else None
    expected = graph.model.double()(x.double())
    graph.model.float()
    graph, info = equalize_transform_pass(graph)
    assert len(info["pairs"]) >= pairs
    difference = (graph.model(x).double() - expected).abs().max()
    assert difference <= 1e-5 * max(1, expected.abs().max())


@pytest.mark.slow
@given(
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    ops=st.tuples(*5 * [st.sampled_from(["relu", "leaky relu", "max pool", "average pool"])]),
    tolerance=st.sampled_from([1e-2, 1e-4]),
)
def test_any_row_of_layers_computes_the_same(widths, ops, tolerance):
    layers, channels = [], 3
    for width, op in zip(widths, ops, strict=False):
        layers += [nn.Conv2d(channels, width, 3, padding=1), BETWEEN[op]]
        channels = width
    model, x = uneven(nn.Sequential(*layers, nn.Flatten())), torch.randn(2, 3, 16, 16)
    expected = model.double()(x.double())
    model.float()
    graph, info = equalize_transform_pass(prepared(model, x), tolerance=tolerance, iterations=1000)
    assert len(info["pairs"]) == min(len(widths), 5) - 1
    difference = (graph.model(x).double() - expected).abs().max()
    assert difference <= 1e-5 * max(1, expected.abs().max())
