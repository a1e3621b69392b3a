"""The report names the integer kernels of an ONNX file, and why other layers run in float."""

import numpy as np
import pytest
import torch

pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytest.importorskip("ml_dtypes", reason="comes with onnx")

import ml_dtypes

from chop.integers import IntegerGraph, LinearCodes, QuantizeInput, Scale, Word
from chop.onnx import ModelBuilder, save_model
from chop.onnx.fusion import fusion_report
from chop.onnx.integers import integer_model
from tests.onnx_files.qdq_models import Layer, model_of

CONV, GEMM, MATMUL = Layer("Conv"), Layer("Gemm"), Layer("MatMul")


def only(layer):
    (found,) = fusion_report(model_of(layer)).layers
    return found


@pytest.mark.parametrize(
    ("layer", "kernel"),
    [
        (CONV, "QLinearConv"),
        (CONV.but(bias=None), "QLinearConv"),
        (CONV.but(after="Relu"), "QLinearConv"),
        (CONV.but(weight_zero_point=False), "QLinearConv"),
        (CONV.but(input_dtype=np.int8, result_dtype=np.int8), "QLinearConv"),
        (GEMM, "QGemm"),
        (GEMM.but(rounds_result=False), "QGemm"),
        (GEMM.but(after="Relu", result_dtype=np.int8, result_zero=-128), "QGemm"),
        (MATMUL, "QGemm"),
        (MATMUL.but(bias=None), "QLinearMatMul"),
        (MATMUL.but(bias=None, rounds_result=False), "MatMulIntegerToFloat"),
    ],
)
def test_a_layer_that_meets_the_conditions_is_an_integer_kernel(layer, kernel):
    found = only(layer)
    assert (found.name, found.op, found.kernel) == ("layer", layer.kind, kernel)
    assert found.integer
    assert not found.reason


REASONS = [
    (CONV.but(weight=np.float32), "its weight is float32: store int8 codes"),
    (CONV.but(weight=np.int16), "its weight is int16: only int8 and uint8 are fused"),
    (GEMM.but(weight=ml_dtypes.int4), "its weight is int4: only int8 and uint8 are fused"),
    (GEMM.but(block_size=2), "its weight has a scale for each block"),
    (CONV.but(rounds_input=False), "its input is the input of the model in float"),
    (CONV.but(input_dtype=np.uint16), "its input is uint16: only int8 and uint8 are fused"),
    (MATMUL.but(input_dtype=np.int16), "its input is int16: only int8 and uint8 are fused"),
    (CONV.but(bias=np.int8), "its bias has codes of int8: only int32 is fused"),
    (GEMM.but(weight_zero_point=False), "of its weight has no zero point, which QGemm needs"),
    (MATMUL.but(weight_zero_point=False), "of its weight has no zero point, which QGemm needs"),
    (GEMM.but(attributes={"beta": 0.5}), "its beta is not 1: multiply the bias by it"),
    (CONV.but(rounds_result=False), "its result is an output of the model in float"),
    (CONV.but(read_twice=True), "has several readers (Neg, QuantizeLinear)"),
    (CONV.but(after="Sigmoid"), "Sigmoid reads its result in float: round it"),
    (CONV.but(after="Clip"), "Clip stands between it and QuantizeLinear"),
    (
        CONV.but(after="Relu", result_dtype=np.int8),
        "to int8 with zero point 0: use uint8 with 0 or int8 with -128",
    ),
    (CONV.but(after="Relu", rounds_result=False), "Relu reads its result in float"),
    (CONV.but(after="Relu", result_dtype=np.uint16), "its result is rounded to uint16"),
    (CONV.but(result_dtype=np.int16), "its result is rounded to int16: only int8 and uint8"),
]


@pytest.mark.parametrize(("layer", "reason"), REASONS, ids=[reason for _, reason in REASONS])
def test_a_layer_in_float_has_one_reason(layer, reason):
    found = only(layer)
    assert not found.integer
    assert reason in found.reason
    assert "\n" not in found.reason


def test_a_float_bias_that_onnxruntime_rounds_is_noted():
    layer = GEMM.but(bias=np.float32)
    found = only(layer)
    assert found.kernel == "QGemm"
    assert found.note == "onnxruntime rounds its float bias to int32"
    assert {only(x).note for x in (GEMM, GEMM.but(bias=None))} == {""}
    assert only(layer.but(rounds_result=False)).reason.startswith("its bias is float32")


def test_the_report_of_a_file_counts_kernels_and_names_layers(tmp_path):
    names = [f"layer{i}" for i in (1, 10, 2)]
    layers = [CONV.but(name=name) for name in names]
    layers[1] = layers[1].but(after="Clip")
    report = fusion_report(save_model(model_of(*layers), tmp_path / "model.onnx"))
    assert [layer.name for layer in report.layers] == names
    assert [layer.name for layer in report.in_float] == ["layer10"]
    assert report.num_integer_kernels == report.kernels["QLinearConv"] == 2
    assert report.kernels["FusedConv"] == 1
    assert "Clip stands between" in report.table()


def test_an_mlp_is_fused_as_a_whole():
    layers = [GEMM.but(name=name, after="Relu") for name in ("fc1", "fc2")]
    report = fusion_report(model_of(*layers, GEMM.but(name="fc3", rounds_result=False)))
    assert report.in_float == ()
    assert report.kernels["QGemm"] == 3


def test_layers_without_names_are_found_by_their_weights():
    model = model_of(CONV.but(name="one"), CONV.but(name="two", after="Clip"))
    for node in model.graph.node:
        node.name = ""
    one, two = fusion_report(model).layers
    assert (one.name, one.kernel) == ("one", "QLinearConv")
    assert (two.name, two.integer) == ("two", False)


def test_a_model_of_integer_kernels_has_no_layer_in_float():
    graph = IntegerGraph(inputs=["x"])
    graph.add("codes", QuantizeInput(Word(-8, 7, Scale.power(0), 4, True), (4,)), ["x"], "x")
    weight = torch.eye(4).long()
    graph.add("fc", LinearCodes(weight, None, Scale.power(0), 2), ["codes"], "fc")
    graph.outputs = ["fc"]
    report = fusion_report(integer_model(graph))
    assert [layer.kernel for layer in report.layers] == ["MatMulInteger"]
    assert report.in_float == ()


def test_ops_without_an_integer_kernel_and_products_of_values_are_told_apart():
    b = ModelBuilder("lstm")
    x = b.input("x", np.float32, [3, "batch", 4])
    weights = [b.constant(np.ones((1, 8, n), np.float32)) for n in (4, 2)]
    y = b.add("LSTM", x, *weights, hidden_size=2, result="lstm")
    b.output(b.add("MatMul", x, x), "z", np.float32, [3, "batch", 4])
    b.output(y, "y", np.float32, [3, 1, "batch", 2])
    (found,) = fusion_report(b.model()).layers
    assert found.reason == "onnxruntime has no integer kernel for LSTM"


def test_a_missing_package_is_named_with_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs onnx; install it with: .*onnx"):
        fusion_report(tmp_path / "net.onnx")
