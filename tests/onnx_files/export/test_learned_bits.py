"""Networks with learned bits per element export exactly, after a few steps of training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.numerics.learned import LearnsBits  # noqa: E402
from chop.passes import freeze_bits_transform_pass, learn_bits_transform_pass  # noqa: E402
from chop.passes.graph.interface.export_onnx import ExportError, onnx_model  # noqa: E402

from .test_exports import executed  # noqa: E402

VECTORS = 10_000


def dense():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5)), (16,)


def convolutions():
    layers = (nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5))
    return nn.Sequential(*layers), (2, 6, 6)


def trained(traced, build, **options):
    """Return a frozen network after a few steps that lower its bits, and vectors."""
    model, shape = build()
    x = 2 * torch.randn(VECTORS, *shape)
    y = torch.randint(5, (256,))
    graph = traced(model, {"input": x[:2]})
    learn_bits_transform_pass(graph, **({"width": 6, "data_in_granularity": "element"} | options))
    layers = [layer for layer in graph.model.modules() if isinstance(layer, LearnsBits)]
    with torch.no_grad():  # as after many more steps
        for layer in layers:
            for bits in layer.width_parameters().values():
                bits += torch.randn_like(bits)
    optimizer = torch.optim.Adam(graph.model.parameters(), lr=0.02)
    graph.model.train()
    for step in range(8):
        batch = x[256 * step : 256 * (step + 1)]
        price = 2e-4 * sum(layer.bit_cost("ebops") for layer in layers)
        loss = nn.functional.cross_entropy(graph.model(batch), y) + price
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    graph.model.eval()
    freeze_bits_transform_pass(graph)
    return graph, x


def assert_codes(found, integers, expected):
    codes = found.double() / integers.codes(integers.outputs[0]).scale.value
    assert torch.equal(codes, expected.double())


@pytest.mark.parametrize("build", [dense, convolutions])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rounding": "floor"},
        {"rounding": "up"},
        {"overflow": "symmetric"},
        {"data_in_granularity": "channel"},
        {"width": 12},
    ],
    ids=str,
)
def test_onnxruntime_gives_the_codes_of_a_trained_network(build, options, traced, run):
    graph, x = trained(traced, build, **options)
    bits = next(m for m in graph.model.modules() if hasattr(m, "data_in_frac_bits"))
    assert len(bits.data_in_frac_bits.unique()) > 1
    assert len(bits.weight_frac_bits.unique()) > 1
    integers = graph.to_integers()
    expected = integers.run(x)
    assert len(expected.unique()) > 20
    for kind in ("qdq", "qcdq"):
        file = onnx_model(graph, kind)
        onnx.checker.check_model(file, full_check=True)
        for optimize in (False, True):
            (found,) = run(file, {"input": x}, optimize=optimize)
            assert_codes(found, integers, expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", [dense, convolutions])
@pytest.mark.parametrize("options", [{}, {"rounding": "floor"}], ids=str)
def test_qonnx_gives_the_codes_of_a_trained_network(build, options, traced, package):
    graph, x = trained(traced, build, **options)
    integers = graph.to_integers()
    (found,) = executed(onnx_model(graph, "qonnx"), {"input": x}, package)
    assert_codes(found, integers, integers.run(x))


def test_weights_with_bits_by_element_are_integers_of_one_power_of_two(traced):
    graph, _ = trained(traced, dense)
    file = onnx_model(graph, "qdq")
    stored = {c.name: onnx.numpy_helper.to_array(c) for c in file.graph.initializer}
    codes, scale = stored["0.weight"], stored["0.weight_scale"]
    assert codes.dtype.name in ("int4", "int8", "int16")
    assert scale.shape == ()
    rounded = graph.model.get_submodule("0").q_parameter("weight").detach()
    assert torch.equal(torch.from_numpy(codes.astype("float32") * scale), rounded)


def test_a_network_without_bits_is_zero(traced, run):
    """All elements of an activation were pruned."""
    graph, x = trained(traced, dense)
    with torch.no_grad():
        graph.model.get_submodule("2").data_in_frac_bits.fill_(-20)
    (found,) = run(onnx_model(graph, "qcdq"), {"input": x[:100]})
    assert torch.equal(found, graph.model(x[:100]))


@pytest.mark.parametrize("kind", ["qdq", "qcdq", "qonnx"])
def test_codes_that_wrap_are_refused_with_the_format_that_holds_them(kind, traced):
    graph, _ = trained(traced, dense, overflow="wrap")
    with pytest.raises(ExportError, match=r"wraps codes of \w+ around.*`format='integer'`"):
        onnx_model(graph, kind)
