"""Static quantisation: layers, sums and pools with fixed scales, one for all that is added."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.passes import PassArgsError, Pipeline, run_pass

X = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Residual(nn.Module):
    """Two blocks, the second with a stride and channels of zeros beside its shortcut."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.one, self.two = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.wide = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.relu, self.last = nn.ReLU(), nn.ReLU()
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

    def forward(self, x):
        x = self.relu(self.stem(x))
        x = F.relu(x + self.two(F.relu(self.one(x))))
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
        x = self.last(self.wide(x) + short)
        return self.fc(self.pool(x).flatten(1))


def calibrated(model, x=X):
    graph = MaseGraph(model.eval())
    options = {"dummy_in": {graph.inputs[0].target: x[:2]}, "add_value": False}
    steps = ["init_metadata", ("add_common_metadata", options), "add_software_metadata"]
    steps.append(("calibrate", {"input_generator": [{graph.inputs[0].target: x}], "silent": True}))
    return Pipeline(steps)(graph)[0]


@pytest.fixture(scope="module")
def residual():
    torch.manual_seed(0)
    return calibrated(Residual())


def static(graph, **options):
    return run_pass("quantize_static", graph.clone(), options)


def configs(graph):
    """The config of each quantised node, by name."""
    found = {node.name: node.kwargs["config"] for node in graph.nodes if "config" in node.kwargs}
    modules = {n.name: graph.modules[str(n.target)] for n in graph.nodes if n.op == "call_module"}
    return found | {
        name: layer.config for name, layer in modules.items() if hasattr(layer, "config")
    }


def test_layers_sums_and_pools_are_quantised_and_close_to_the_float_network(residual):
    graph, info = static(residual)
    assert set(info["quantized"]) >= {"stem", "one", "two", "wide", "pool", "fc"}
    wanted, found = residual.model(X), graph.model(X)
    assert (wanted - found).abs().max() < 0.1 * wanted.abs().max()
    assert not torch.equal(wanted, found)


def test_what_a_sum_adds_has_one_scale_and_is_rounded_where_it_is_computed(residual):
    found = configs(static(residual)[0])
    assert "add" not in found
    assert found["two"]["data_out_scale"] == found["relu"]["data_in_scale"]
    assert found["wide"]["data_out_scale"] == found["relu_2"]["data_in_scale"]
    # readers of a shortcut have its format
    assert found["one"]["data_in_scale"] == found["relu"]["data_in_scale"]
    assert found["wide"]["data_in_scale"] == found["relu_2"]["data_in_scale"]
    assert found["one"]["data_in_signed"] is False


@pytest.mark.parametrize("power_of_two", [True, False])
def test_the_integer_graph_has_the_values_of_the_simulation(residual, power_of_two):
    graph, _ = static(residual, power_of_two=power_of_two)
    integers = graph.to_integers()
    with torch.no_grad():
        wanted, found = graph.model(X), integers(X)
    if power_of_two:
        assert torch.equal(found, wanted)
    else:  # a value beside a tie may be rounded to the other side
        assert ((found - wanted).abs() > 1e-5).float().mean() < 0.1


def test_widths_are_those_that_were_asked_for(residual):
    graph, _ = static(residual, weight_width=5, data_in_width=6, power_of_two=False)
    layer = graph.modules["one"]
    assert (layer.formats["weight"].width, layer.formats["data_in"].width) == (5, 6)
    assert layer.formats["weight"].axis == 0


def test_a_sum_of_other_values_rounds_its_operands_itself():
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            y = self.a(x)
            return self.b((y + x) + torch.sigmoid(y))

    torch.manual_seed(0)
    x = torch.randn(32, 6)
    graph, info = static(calibrated(Sums(), x))
    assert {"add", "add_1"} <= set(info["quantized"])
    assert torch.allclose(graph.model(x), calibrated(Sums(), x).model(x), atol=10)
    assert all("data_out_scale" not in config for config in configs(graph).values())


def test_a_layer_that_is_called_twice_keeps_its_result_in_float():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x):
            return self.a(torch.relu(self.a(x)) + torch.relu(x))

    x = torch.randn(32, 6)
    _, info = static(calibrated(Twice(), x))
    assert {"a", "a_1", "relu", "relu_1"} <= set(info["quantized"])


def test_a_graph_that_was_not_calibrated_is_told_to_be(residual):
    graph = residual.clone()
    for node in graph.nodes:
        node.meta["mase"].parameters["software"].clear()
    with pytest.raises(PassArgsError, match="run calibrate"):
        static(graph)


def test_onnxruntime_computes_all_of_it_with_integer_kernels(residual, package, tmp_path):
    package("onnx")
    package("onnxruntime")
    from chop.onnx.fusion import fusion_report
    from chop.onnx.runtime import Runtime

    graph, _ = static(residual)
    file = tmp_path / "net.onnx"
    run_pass("export_onnx", graph, {"save_path": file, "format": "qdq", "silent": True})
    kernels = fusion_report(file).kernels
    assert not {"Conv", "FusedConv", "Add", "Relu", "Gemm", "GlobalAveragePool"} & kernels.keys()
    assert kernels["QLinearConv"] == 4
    assert kernels["QLinearAdd"] == 2
    with torch.no_grad():
        wanted = graph.model(X).numpy()
    for optimize in (True, False):
        (found,) = Runtime(file, optimize=optimize).run({"x": X.numpy()}).values()
        assert (found == wanted).all()


def test_functions_with_weights_are_named_and_stay_in_float(caplog):
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.layer = nn.Parameter(torch.randn(3, 3, 3, 3) / 5), nn.Conv2d(3, 3, 1)

        def forward(self, x):
            return self.layer(F.relu(F.conv2d(x, self.weight, None, 1, 1)))

    _, info = static(calibrated(Functional()))
    assert info["quantized"] == ["layer"]
    assert "'quantize_static': conv2d stay in float" in caplog.text
