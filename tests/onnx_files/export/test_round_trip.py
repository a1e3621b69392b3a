"""A quantised file that is exported is read again as the same network."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")

from chop.integers.digest import graph_digest
from chop.ir import MaseGraph
from chop.onnx import save_model
from chop.onnx.reading import read_network
from chop.passes import Pipeline
from chop.passes.graph.interface.export_onnx import onnx_model


def config(width, **others):
    widths = {"data_in_width": width, "data_in_frac_width": width // 2}
    return {"name": "integer", **widths, "weight_width": 8, "weight_frac_width": 6, **others}


def named(*layers):
    return nn.Sequential(OrderedDict((f"layer{i}", layer) for i, layer in enumerate(layers)))


def mlp():
    layers = nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)
    return named(*layers), (16,)


def convolutions():
    first = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3)
    return named(*first, nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)), (1, 8, 8)


def quantised(traced, build, options):
    torch.manual_seed(0)
    model, shape = build()
    x = 2 * torch.randn(500, *shape)
    formats = {"by": "type", "default": {"config": {"name": None}}}
    formats |= {op: {"config": options} for op in ("linear", "conv2d") if op in _ops(model)}
    return traced(model, {"input": x[:2]}, ("quantize", formats)), x


def _ops(model):
    return {type(layer).__name__.lower() for layer in model}


def read_again(graph, kind, folder):
    file = save_model(onnx_model(graph, kind), folder / f"{kind}.onnx")
    network = read_network(file)
    inputs = {each.name: each.example() for each in network.inputs}
    common = ("add_common_metadata", {"dummy_in": inputs, "add_value": False})
    steps = ["init_metadata", common, ("quantize", network.quantize_options)]
    return Pipeline(steps)(MaseGraph(network.model))[0]


@pytest.mark.parametrize("build", [mlp, convolutions])
@pytest.mark.parametrize(
    ("kind", "width"),
    [("qdq", 8), ("qdq", 16), ("qcdq", 8), ("qcdq", 5), ("qcdq", 12), ("qonnx", 8), ("qonnx", 5)],
)
def test_an_exported_file_is_read_as_the_same_integer_graph(build, kind, width, traced, tmp_path):
    graph, x = quantised(traced, build, config(width))
    again = read_again(graph, kind, tmp_path)
    first, second = graph.to_integers(), again.to_integers()
    assert torch.equal(first.run(x), second.run(x))
    assert [n.name for n in graph.nodes] == [n.name for n in again.nodes]
    assert graph_digest(first) == graph_digest(second)


def affine(width, **others):
    return {
        "name": "affine",
        "data_in_width": width,
        "data_in_scale": 0.3,
        "weight_width": 8,
    } | others


OTHERS = {
    "floor of 8": ("qdq", config(8, data_in_rounding="floor")),
    "floor of 5": ("qcdq", config(5, data_in_rounding="floor")),
    "up of 12": ("qcdq", config(12, data_in_rounding="up")),
    "integers up": ("qdq", config(8, data_in_rounding="up", data_in_frac_width=0)),
    "three bits": ("qcdq", affine(3, data_in_zero_point=-1)),
    "twelve bits": ("qcdq", affine(12, data_in_zero_point=-226, data_in_scale=0.0015704)),
}


@pytest.mark.parametrize("build", [mlp, convolutions])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("qcdq", config(5, overflow="symmetric")),
        ("qcdq", config(6, weight_width=5)),  # the file stores these weights as bytes
        ("qdq", config(8, data_in_signed=False)),
        ("qdq", config(8, bias_width=8, bias_frac_width=12)),
        ("qonnx", config(8, data_in_rounding="floor")),
        ("qonnx", config(8, data_in_rounding="up", data_in_signed=False)),
        *OTHERS.values(),
    ],
    ids=["symmetric", "weights of 5 bits", "unsigned", "fine bias", "floor", "up", *OTHERS],
)
def test_an_exported_file_computes_the_same_after_it_was_read(
    build, kind, options, traced, tmp_path
):
    graph, x = quantised(traced, build, options)
    again = read_again(graph, kind, tmp_path)
    assert torch.equal(graph.to_integers()(x), again.to_integers()(x))


def pointwise():
    layers = nn.Conv2d(2, 4, 3, padding=1, padding_mode="replicate"), nn.SiLU(), nn.Softplus()
    return named(*layers, nn.Flatten(), nn.Linear(64, 3)), (2, 4, 4)


@pytest.mark.parametrize(("kind", "width"), [("qdq", 8), ("qcdq", 6)])
def test_functions_that_onnx_has_in_parts_are_read_as_layers(kind, width, traced, tmp_path):
    torch.manual_seed(0)
    model, shape = pointwise()
    x = 2 * torch.randn(500, *shape)
    table = {"by": "type"} | {op: {"config": config(width)} for op in ("conv2d", "linear")}
    table |= {op: {"config": config(width)} for op in ("silu", "softplus")}
    graph = traced(model, {"input": x[:2]}, ("quantize", table))
    again = read_again(graph, kind, tmp_path)
    layers = [*again.model.modules()]
    assert all(any(isinstance(e, kind) for e in layers) for kind in (nn.SiLU, nn.Softplus))
    assert torch.equal(graph.to_integers()(x), again.to_integers()(x))


def test_float_networks_are_read_with_their_names(traced, tmp_path):
    model, shape = convolutions()
    x = torch.randn(10, *shape)
    graph = traced(model, {"input": x})
    network = read_network(save_model(onnx_model(graph), tmp_path / "float.onnx"))
    assert [n.name for n in network.model.graph.nodes] == [n.name for n in graph.nodes]
    torch.testing.assert_close(network.model(x), model(x))  # sums in another order
