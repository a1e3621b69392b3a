"""qonnx and hls4ml read our QONNX files, and agree with the integer graph."""

import itertools
import shutil

import pytest
import torch
from torch import nn

from chop.passes.graph.interface.export_onnx import onnx_model

CONFIG = {
    "name": "integer",
    "data_in_width": 8,
    "data_in_frac_width": 4,
    "weight_width": 6,
    "weight_frac_width": 5,
}


def jsc_s():
    widths = (16, 64, 32, 32, 32, 5)
    pairs = itertools.pairwise(widths)
    layers = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def small_conv():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 5)),
    )


@pytest.fixture
def wrapped(package, monkeypatch):
    """Return a file as qonnx's model, for a batch."""
    onnx = package("onnx")
    package("qonnx")
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.util.cleanup import cleanup_model

    def wrap(file, batch):
        # qonnx wraps single nodes in models of the newest version, which runtimes need not know
        monkeypatch.setattr(onnx, "IR_VERSION", file.ir_version)
        model = ModelWrapper(file)
        sizes = [d.dim_value for d in file.graph.input[0].type.tensor_type.shape.dim]
        model.set_tensor_shape("input", [batch, *sizes[1:]])
        return cleanup_model(model)

    return wrap


def quantised(traced, build, x, **options):
    formats = {"by": "type", "linear": {"config": CONFIG | options}}
    if x.dim() == 4:
        formats["conv2d"] = formats["linear"]
    return traced(build(), {"input": x[:2]}, ("quantize", formats))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("build", "shape"), [(jsc_s, (16,)), (small_conv, (3, 8, 8))], ids=["jsc-s", "conv"]
)
@pytest.mark.parametrize(
    "options",
    [{}, {"rounding": "floor"}, {"overflow": "symmetric"}, {"rounding": "up", "signed": False}],
    ids=str,
)
def test_the_executor_of_qonnx_gives_the_codes_of_the_integer_graph(
    build, shape, options, traced, wrapped
):
    from qonnx.core.onnx_exec import execute_onnx

    x = 2 * torch.randn(10_000, *shape)
    x[::2] = torch.round(32 * x[::2]) / 32  # half of them are ties
    keys = {f"data_in_{key}": value for key, value in options.items()}
    graph = quantised(traced, build, x, **keys)
    integers = graph.to_integers()
    model = wrapped(onnx_model(graph, "qonnx"), len(x))
    (name,) = (value.name for value in model.graph.output)
    (source,) = (value.name for value in model.graph.input)
    found = torch.from_numpy(execute_onnx(model, {source: x.numpy()})[name])
    codes = found.double() / integers.codes(integers.outputs[0]).scale.value
    expected = integers.run(x).double()
    assert torch.equal(codes, expected)
    assert len(expected.unique()) > 50


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_hls4ml_reads_jsc_s_and_its_cpp_model_agrees(traced, wrapped, package, tmp_path):
    hls4ml = package("hls4ml")
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    # hls4ml cuts the input to its default precision first: these have at most 10 fraction bits
    x = torch.round(2048 * torch.randn(1000, 16)) / 1024
    graph = quantised(traced, jsc_s, x)
    model = wrapped(onnx_model(graph, "qonnx"), 1)
    config = hls4ml.utils.config.config_from_onnx_model(
        model, granularity="name", backend="Vitis", default_precision="fixed<24,12>"
    )
    circuit = hls4ml.converters.convert_from_onnx_model(
        model, hls_config=config, output_dir=str(tmp_path), backend="Vitis", io_type="io_parallel"
    )
    circuit.compile()
    found = torch.from_numpy(circuit.predict(x.numpy()))
    assert torch.equal(found, graph.to_integers()(x).float())
