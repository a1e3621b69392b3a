"""Each operator that is read gives what onnxruntime gives, for any batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from onnx import TensorProto, helper  # noqa: E402

from chop.onnx.reading import read_model  # noqa: E402

from .networks import F, array, computed, model, reference, written  # noqa: E402

I64 = np.int64


@dataclass
class Case:
    """One node, or several that belong together."""

    op: str
    shape: list[Any]  # of x, after the batch
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    more: tuple[str, ...] = ()  # inputs between x and the constants
    outputs: int = 1
    kind: type = np.float32
    label: str = ""
    positive: bool = False

    def __str__(self) -> str:
        words = [self.op, self.label, str(self.opset)]
        return "-".join(word for word in words if word)

    def model(self) -> Any:
        names = [f"y{i}" for i in range(self.outputs)]
        inputs = ["x", *self.more, *self.constants]
        inputs = ["" if name.startswith("none") else name for name in inputs]
        node = helper.make_node(self.op, inputs, names, name=f"/{self.op}", **self.attributes)
        kinds = {"x": helper.np_dtype_to_tensor_dtype(np.dtype(self.kind))}
        shapes = {name: ["batch", *self.shape] for name in ("x", *self.more)}
        constants = {k: v for k, v in self.constants.items() if not k.startswith("none")}
        proto = model([node], shapes, names, constants, opset=self.opset, kinds=kinds)
        for output in proto.graph.output:
            output.ClearField("type")
        inferred = onnx.shape_inference.infer_shapes(proto)
        del proto.graph.output[:]
        proto.graph.output.extend(inferred.graph.output)
        for output in proto.graph.output:  # of functions, such as GroupNormalization
            output.type.tensor_type.elem_type = (
                output.type.tensor_type.elem_type or TensorProto.FLOAT
            )
        return proto

    def feeds(self, batch: int) -> dict[str, np.ndarray]:
        found = {}
        for seed, name in enumerate(("x", *self.more)):
            value = array(batch, *self.shape, seed=seed + 1, scale=2)
            value = np.abs(value) + F(0.1) if self.positive else value
            found[name] = value.astype(self.kind)
        return found


NONE = np.zeros(0, F)
ONE = {
    "Neg": 21, "Abs": 21, "Exp": 21, "Erf": 21, "Sin": 21, "Cos": 21, "Tan": 21, "Atan": 21,
    "Sinh": 21, "Cosh": 21, "Asinh": 21, "Floor": 21, "Ceil": 21, "Round": 21, "Sign": 21,
    "Relu": 7, "Sigmoid": 7, "Tanh": 7, "Softplus": 7, "Softsign": 7, "LeakyRelu": 7, "Elu": 7,
    "Selu": 7, "HardSigmoid": 7, "HardSwish": 14, "Mish": 18, "Gelu": 20, "ThresholdedRelu": 10,
    "Celu": 12, "Identity": 7, "IsNaN": 13, "IsInf": 13, "Reciprocal": 13,
}  # fmt: skip
CASES = [Case(op, [5], opset=opset) for op, opset in ONE.items() if op not in ("IsNaN", "IsInf")]
CASES += [Case(op, [5], positive=True) for op in ("Sqrt", "Log")]
CASES += [
    Case("LeakyRelu", [5], attributes={"alpha": 0.3}, label="alpha"),
    Case("Elu", [5], attributes={"alpha": 0.3}, label="alpha"),
    Case("Selu", [5], attributes={"alpha": 1.5, "gamma": 1.1}, label="own"),
    Case("HardSigmoid", [5], attributes={"alpha": 1 / 6, "beta": 0.5}, label="torch"),
    Case("Gelu", [5], attributes={"approximate": "tanh"}, label="tanh"),
    Case("PRelu", [4, 3], {"slope": array(4, 1)}),
    Case("PRelu", [4, 3], {"slope": array(3)}, label="last"),
    Case("Shrink", [5], attributes={"lambd": 0.5, "bias": 0.5}),
    Case("Clip", [5], {"low": F(0.0), "high": F(6.0)}, label="relu6"),
    Case("Clip", [5], {"low": F(-1.0), "high": F(1.0)}, label="hardtanh"),
    Case("Clip", [5], {"low": F(0.0)}, label="low"),
    Case("Clip", [5], {"none": NONE, "high": F(1.0)}, label="high"),
    Case("Clip", [5], attributes={"min": 0.0, "max": 6.0}, opset=7, label="attributes"),
    Case("Clip", [5], attributes={"max": 1.0}, opset=7, label="one attribute"),
    Case("Softmax", [4, 3], attributes={"axis": 1}),
    Case("Softmax", [4, 3], label="default"),
    Case("Softmax", [4, 3], attributes={"axis": 1}, opset=11),
    Case("Softmax", [4, 3], opset=11, label="default"),
    Case("Softmax", [4, 3], attributes={"axis": 2}, opset=11, label="last"),
    Case("LogSoftmax", [4], attributes={"axis": -1}),
    Case("Hardmax", [4]),
    Case("Dropout", [4], outputs=1),
    Case("Dropout", [4], attributes={"ratio": 0.3}, opset=7),
]
for _op in ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mean", "Sum"):
    CASES += [Case(_op, [4, 3], more=("z",), positive=_op == "Pow")]
    CASES += [Case(_op, [4, 3], {"c": np.abs(array(3))}, label="row", positive=_op == "Pow")]
    CASES += [Case(_op, [4, 3], {"c": F(1.5)}, label="number", positive=_op == "Pow")]
CASES += [
    Case("Div", [4], {"c": np.array([3, -2, 2, 5])}, kind=I64, label="whole"),
    Case("Mod", [4], {"c": np.array([3, -2, 2, 5])}, kind=I64, label="whole"),
    Case("Mod", [4], {"c": array(4)}, {"fmod": 1}, label="fmod"),
    Case("CumSum", [4], {"axis": np.array(1)}),
    Case("MatMul", [4, 3], {"w": array(3, 6)}),
    Case("MatMul", [3], {"w": array(3, 6)}, label="flat"),
    Case("MatMul", [3, 3], more=("z",)),
    Case("Gemm", [3], {"w": array(3, 6), "b": array(6)}),
    Case("Gemm", [3], {"w": array(6, 3), "b": array(6)}, {"transB": 1}, label="transB"),
    Case("Gemm", [3], {"w": array(3, 6), "b": array(6)}, {"alpha": 0.5, "beta": 2.0}, label="ab"),
    Case("Gemm", [3], {"w": array(3, 6), "b": array(1, 6)}, opset=7, label="row"),
    Case("Gemm", [3], {"w": array(3, 6), "b": F(0.5)}, label="number"),
    Case("Gemm", [3], {"w": array(3, 6)}, label="no bias"),
    Case("Gemm", [3], {"w": array(3, 6), "b": array(6)}, opset=9),
    Case("Einsum", [4, 3], {"w": array(3, 6)}, {"equation": "bij,jk->bik"}),
]  # fmt: skip
CONV = {"w": array(6, 3, 3, 3, scale=0.2), "b": array(6)}
CASES += [
    Case("Conv", [3, 8, 8], CONV),
    Case("Conv", [3, 8, 8], CONV, {"pads": [1, 1, 1, 1], "strides": [2, 2]}, label="pads"),
    Case("Conv", [3, 8, 8], CONV, {"pads": [0, 1, 2, 0]}, label="uneven"),
    Case("Conv", [3, 8, 7], CONV, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, label="upper"),
    Case("Conv", [3, 8, 7], CONV, {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, label="lower"),
    Case("Conv", [3, 8, 8], CONV, {"auto_pad": "VALID"}, label="valid", opset=7),
    Case("Conv", [3, 8, 8], CONV, {"dilations": [2, 2]}, label="dilated"),
    Case("Conv", [4, 8, 8], {"w": array(8, 2, 3, 3)}, {"group": 2}, label="group"),
    Case("Conv", [3, 8], {"w": array(6, 3, 3), "b": array(6)}, label="1d"),
    Case("Conv", [2, 5, 5, 5], {"w": array(3, 2, 2, 2, 2)}, label="3d"),
    Case("ConvTranspose", [3, 5, 5], {"w": array(3, 4, 3, 3, scale=0.2), "b": array(4)}),
    Case("ConvTranspose", [3, 5, 5], {"w": array(3, 4, 3, 3)},
         {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}, label="strides"),
    Case("ConvTranspose", [3, 5, 5], {"w": array(3, 4, 3, 3)},
         {"strides": [2, 2], "pads": [1, 0, 0, 1]}, label="uneven"),
    Case("ConvTranspose", [3, 5, 5], {"w": array(3, 4, 3, 3)},
         {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, label="upper"),
    Case("ConvTranspose", [3, 5, 5], {"w": array(3, 4, 3, 3)},
         {"strides": [2, 2], "output_shape": [10, 10]}, label="shape"),
    Case("ConvTranspose", [3, 5], {"w": array(3, 4, 3)}, label="1d"),
    Case("MaxPool", [3, 8, 8], attributes={"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("MaxPool", [3, 8, 8], attributes={"kernel_shape": [3, 3], "pads": [0, 0, 1, 1]},
         label="uneven"),
    Case("MaxPool", [3, 7, 7], attributes={"kernel_shape": [2, 2], "strides": [2, 2],
         "ceil_mode": 1}, label="ceil"),
    Case("MaxPool", [3, 7, 7], attributes={"kernel_shape": [3, 3], "strides": [2, 2],
         "auto_pad": "SAME_UPPER"}, label="upper"),
    Case("MaxPool", [3, 9], attributes={"kernel_shape": [3], "dilations": [2]}, label="1d"),
    Case("AveragePool", [3, 8, 8], attributes={"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("AveragePool", [3, 8, 8], attributes={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
         label="pads"),
    Case("AveragePool", [3, 8, 8], attributes={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1],
         "count_include_pad": 1}, label="counted"),
    Case("AveragePool", [3, 8, 8], attributes={"kernel_shape": [3, 3], "strides": [2, 2],
         "auto_pad": "SAME_UPPER"}, label="upper"),
    Case("AveragePool", [3, 8, 8], attributes={"kernel_shape": [2, 2], "pads": [0, 0, 1, 1],
         "count_include_pad": 1}, label="uneven counted"),
    Case("AveragePool", [3, 9], attributes={"kernel_shape": [3]}, label="1d"),
    Case("GlobalAveragePool", [3, 8, 8]), Case("GlobalMaxPool", [3, 8, 8]),
    Case("GlobalAveragePool", [3, 8], label="1d"),
]  # fmt: skip
NORM = {"s": array(3), "b": array(3, seed=2), "m": array(3, seed=3), "v": np.abs(array(3, seed=4))}
CASES += [
    Case("BatchNormalization", [3, 4, 4], NORM, {"epsilon": 1e-3}),
    Case("BatchNormalization", [3, 4, 4], NORM, opset=7),
    Case("BatchNormalization", [3], NORM, label="flat", opset=9),
    Case("BatchNormalization", [3, 4], NORM, label="1d"),
    Case("InstanceNormalization", [3, 4, 4], {"s": array(3), "b": array(3, seed=2)}),
    Case("LayerNormalization", [3, 4], {"s": array(4), "b": array(4, seed=2)}, opset=17),
    Case("LayerNormalization", [3, 4], {"s": array(3, 4)}, {"axis": 1}, opset=17, label="axis"),
    Case("GroupNormalization", [4, 5], {"s": array(4), "b": array(4)}, {"num_groups": 2}),
    Case("RMSNormalization", [3, 4], {"s": array(4)}, opset=23),
    Case("LRN", [5, 4, 4], attributes={"size": 3, "alpha": 0.1}),
]
for _op in ("Sum", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp", "Prod", "LogSum"):
    CASES += [Case(f"Reduce{_op}", [3, 4], {"a": np.array([2])}, {"keepdims": 0}, positive=True)]
    CASES += [Case(f"Reduce{_op}", [3, 4], attributes={"axes": [1, -1]}, opset=11, positive=True)]
CASES += [
    Case("ArgMax", [4], attributes={"axis": 1}),
    Case("ArgMin", [4], attributes={"axis": -1, "keepdims": 0}, opset=11),
    Case("TopK", [6], {"k": np.array([2])}, outputs=2),
    Case("Reshape", [4, 3], {"s": np.array([0, -1])}, label="flat"),
    Case("Reshape", [4, 3], {"s": np.array([-1, 12])}, label="minus one"),
    Case("Reshape", [4, 3], {"s": np.array([-1, 3, 2, 2])}, label="parts"),
    Case("Reshape", [4, 3], {"s": np.array([-1, 3])}, label="rows"),
    Case("Reshape", [4, 3], {"s": np.array([0, 0, 1, -1])}, label="zeros"),
    Case("Flatten", [4, 3]), Case("Flatten", [4, 3], attributes={"axis": 2}, label="axis"),
    Case("Flatten", [4, 3], attributes={"axis": 0}, label="all", opset=9),
    Case("Transpose", [4, 3], attributes={"perm": [0, 2, 1]}),
    Case("Transpose", [4, 3], label="default"),
    Case("Squeeze", [1, 3], {"a": np.array([1])}),
    Case("Squeeze", [1, 3], attributes={"axes": [1]}, opset=11),
    Case("Unsqueeze", [3], {"a": np.array([1, -1])}),
    Case("Unsqueeze", [3], attributes={"axes": [2, 1]}, opset=7),
    Case("Expand", [1, 3], {"s": np.array([1, 4, 1])}),
    Case("Tile", [2, 3], {"r": np.array([1, 2, 3])}),
    Case("Concat", [4, 3], more=("z",), attributes={"axis": 2}),
    Case("Concat", [4, 3], more=("z",), attributes={"axis": -2}, opset=11),
    Case("Slice", [6], {"s": np.array([1]), "e": np.array([2**60]), "a": np.array([1])}),
    Case("Slice", [6], {"s": np.array([-4]), "e": np.array([-1]), "a": np.array([-1]),
         "t": np.array([2])}, label="steps"),
    Case("Slice", [6], {"s": np.array([-1]), "e": np.array([-100]), "a": np.array([1]),
         "t": np.array([-1])}, label="back"),
    Case("Slice", [6], {"s": np.array([4]), "e": np.array([0]), "a": np.array([1]),
         "t": np.array([-2])}, label="back by two"),
    Case("Slice", [6], attributes={"starts": [0, 1], "ends": [100, 3], "axes": [0, 1]}, opset=7),
    Case("Split", [6], {"s": np.array([2, 4])}, {"axis": 1}, outputs=2),
    Case("Split", [7], attributes={"axis": 1, "num_outputs": 3}, outputs=3, opset=18),
    Case("Split", [6], attributes={"axis": 1}, outputs=3, opset=7),
    Case("Gather", [5], {"i": np.array(-1)}, {"axis": 1}, label="one"),
    Case("Gather", [5], {"i": np.array([0, -2])}, {"axis": 1}, label="some"),
    Case("Gather", [5], {"i": np.array([[0, 1], [2, 3]])}, {"axis": 1}, label="square"),
    Case("Pad", [3, 4], {"p": np.array([0, 0, 1, 0, 0, 2])}),
    Case("Pad", [3, 4], {"p": np.array([0, 0, 1, 0, 0, 2]), "v": F(1.5)}, label="value"),
    Case("Pad", [3, 4], {"p": np.array([1, 2]), "v": F(0), "a": np.array([2])}, label="axes"),
    Case("Pad", [3, 4], {"p": np.array([0, 0, 1, 0, 0, 2])}, {"mode": "reflect"}, label="reflect"),
    Case("Pad", [3, 4], {"p": np.array([0, 0, 1, 0, 0, 2])}, {"mode": "edge"}, label="edge"),
    Case("Pad", [3, 4], attributes={"pads": [0, 1, 0, 0, 0, 2], "value": 2.0}, opset=7),
    Case("DepthToSpace", [8, 3, 2], attributes={"blocksize": 2}),
    Case("DepthToSpace", [8, 3, 2], attributes={"blocksize": 2, "mode": "CRD"}, label="crd"),
    Case("SpaceToDepth", [2, 4, 6], attributes={"blocksize": 2}),
    Case("Cast", [3], attributes={"to": TensorProto.DOUBLE}),
    Case("Resize", [2, 4, 4], {"none": NONE, "s": np.array([1, 1, 2, 2], F)}, label="nearest"),
    Case("Resize", [2, 4, 4], {"none": NONE, "s": np.array([1, 1, 1.5, 2], F)},
         {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
          "nearest_mode": "floor"}, label="asymmetric"),
    Case("Resize", [2, 4, 4], {"none": NONE, "s": np.array([1, 1, 2, 2], F)}, {"mode": "linear"},
         label="linear"),
    Case("Resize", [2, 4, 4], {"none": NONE, "s": np.array([1, 1, 2, 2], F)},
         {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, label="corners"),
    Case("Upsample", [2, 4, 4], {"s": np.array([1, 1, 2, 3], F)}, opset=9),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_operator_gives_what_onnxruntime_gives(case, tmp_path):
    file = written(case.model(), tmp_path)
    network = read_model(file)
    for batch in (1, 4):
        feeds = case.feeds(batch)
        for ours, theirs in zip(computed(network, feeds), reference(file, feeds), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
