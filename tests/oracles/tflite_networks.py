"""Float TFLite networks as ONNX models: what the published networks of the tests need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from flatbuffers.number_types import Int32Flags
from flatbuffers.table import Table
from onnx import TensorProto, helper, numpy_helper

OPS = {
    0: "ADD", 1: "AVERAGE_POOL_2D", 3: "CONV_2D", 4: "DEPTHWISE_CONV_2D", 9: "FULLY_CONNECTED",
    22: "RESHAPE", 25: "SOFTMAX",
}  # fmt: skip
# which field of an op's settings is its activation
ACTIVATION = {"ADD": 0, "CONV_2D": 3, "DEPTHWISE_CONV_2D": 4, "FULLY_CONNECTED": 0}
SAME, RELU, INT8 = 0, 1, 9


class Part:
    """A table of the file, and its fields by number."""

    def __init__(self, data: bytearray, place: int) -> None:
        self.table = Table(data, place)

    def _place(self, field: int) -> int:
        offset = int(self.table.Offset(4 + 2 * field))
        return offset + int(self.table.Pos) if offset else 0

    def number(self, field: int) -> int:
        place = self._place(field)
        return int(self.table.Get(Int32Flags, place)) if place else 0

    def byte(self, field: int) -> int:
        place = self._place(field)
        return int(self.table.Bytes[place]) if place else 0

    def part(self, field: int) -> Part:
        return Part(self.table.Bytes, self.table.Indirect(self._place(field)))

    def parts(self, field: int) -> list[Part]:
        start, count = self._vector(field)
        return [Part(self.table.Bytes, self.table.Indirect(start + 4 * i)) for i in range(count)]

    def array(self, field: int, dtype: str) -> Any:
        start, count = self._vector(field)
        return np.frombuffer(bytes(self.table.Bytes), dtype, count, start) if count else None

    def _vector(self, field: int) -> tuple[int, int]:
        if not self._place(field):
            return 0, 0
        offset = self._place(field) - int(self.table.Pos)
        return int(self.table.Vector(offset)), int(self.table.VectorLen(offset))


class Converter:
    """Writes the ops of a file as ONNX nodes; images have their channels first."""

    def __init__(self, file: Path) -> None:
        data = bytearray(file.read_bytes())
        model = Part(data, int.from_bytes(data[:4], "little"))
        self.codes = [max(part.byte(0), part.number(3)) for part in model.parts(1)]
        (self.graph,) = model.parts(2)
        self.tensors, self.buffers = self.graph.parts(0), model.parts(4)
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def shape(self, index: int) -> list[int]:
        found = self.tensors[index].array(0, "<i4")
        return [] if found is None else [int(n) for n in found]

    def value(self, index: int) -> Any:
        """The numbers of a constant, of which a file may hold codes of 8 bits."""
        tensor = self.tensors[index]
        flat = self.buffers[tensor.number(2)].array(0, "<u1")
        if tensor.byte(1) != INT8:
            return flat.view("<f4").reshape(self.shape(index))
        scales, axis = tensor.part(4).array(2, "<f4"), tensor.part(4).number(6)
        codes = flat.view("<i1").reshape(self.shape(index)).astype("<f4")
        return codes * scales.reshape([-1 if d == axis else 1 for d in range(codes.ndim)])

    def constant(self, name: str, value: Any) -> str:
        self.constants[name] = np.ascontiguousarray(value)
        return name

    def add(self, op: str, inputs: list[str], output: str, **settings: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **settings))
        return output

    def model(self) -> onnx.ModelProto:
        (source,), (result,) = self.graph.array(1, "<i4"), self.graph.array(2, "<i4")
        size = ["batch", *self.shape(source)[1:]]
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, size)
        images = len(size) == 4
        first = self.add("Transpose", ["x"], "images", perm=[0, 3, 1, 2]) if images else "x"
        values = {int(source): first}
        for operator in self.graph.parts(3):
            inputs = [int(i) for i in operator.array(1, "<i4")]
            (output,) = (int(i) for i in operator.array(2, "<i4"))
            op = OPS[self.codes[operator.number(0)]]
            values[output] = self._written(op, operator, inputs, f"v{output}", values)
        self.nodes[-1].output[0] = "output"
        size = ["batch", *self.shape(result)[1:]]
        made = helper.make_tensor_value_info("output", TensorProto.FLOAT, size)
        kept = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, "network", [given], [made], kept)
        assert values[int(result)] == f"v{result}"
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    def _written(
        self, op: str, operator: Part, inputs: list[int], name: str, values: dict[int, str]
    ) -> str:
        if op == "RESHAPE":
            return self._reshaped(values[inputs[0]], inputs[0], name)
        if op == "SOFTMAX":
            return self.add("Softmax", [values[inputs[0]]], name, axis=-1)
        settings = operator.part(4)
        has_relu = op in ACTIVATION and settings.byte(ACTIVATION[op]) == RELU
        plain = f"{name}_plain" if has_relu else name
        if op == "ADD":
            self.add("Add", [values[i] for i in inputs], plain)
        elif op == "AVERAGE_POOL_2D":
            kernel = [settings.number(4), settings.number(3)]
            stride = [settings.number(2), settings.number(1)]
            assert settings.byte(0) != SAME or kernel == self.shape(inputs[0])[1:3]
            x = [values[inputs[0]]]
            self.add("AveragePool", x, plain, kernel_shape=kernel, strides=stride)
        elif op == "FULLY_CONNECTED":
            self._weighted("Gemm", inputs, plain, values, self.value(inputs[1]), transB=1)
        else:
            self._convolution(op, settings, inputs, plain, values)
        return self.add("Relu", [plain], name) if has_relu else name

    def _reshaped(self, x: str, source: int, name: str) -> str:
        """Flatten what has one place for each channel, so that their order does not matter."""
        shape = self.shape(source)
        if len(shape) == 4 and shape[1:3] != [1, 1]:  # as of spectrograms without a channel
            raise AssertionError(f"a reshape of {shape}")
        return self.add("Flatten", [x], name)

    def _convolution(
        self, op: str, settings: Part, inputs: list[int], name: str, values: dict[int, str]
    ) -> None:
        weight = self.value(inputs[1])  # [out, height, width, in], depthwise [1, …, channels]
        depthwise = op == "DEPTHWISE_CONV_2D"
        weight = weight.transpose(3, 0, 1, 2) if depthwise else weight.transpose(0, 3, 1, 2)
        stride = [settings.number(2), settings.number(1)]
        padding = "SAME_UPPER" if settings.byte(0) == SAME else "VALID"
        group = weight.shape[0] if depthwise else 1
        self._weighted(
            "Conv", inputs, name, values, weight, strides=stride, auto_pad=padding, group=group
        )

    def _weighted(
        self, op: str, inputs: list[int], name: str, values: dict[int, str], weight: Any,
        **settings: Any,
    ) -> None:  # fmt: skip
        names = [values[inputs[0]], self.constant(f"{name}.weight", weight)]
        names.append(self.constant(f"{name}.bias", self.value(inputs[2])))
        self.add(op, names, name, **settings)


def converted(file: Path, folder: Path) -> Path:
    """Write a float TFLite network as an ONNX file, and return its path."""
    model = Converter(file).model()
    onnx.checker.check_model(model, full_check=True)
    made = folder / f"{file.stem}.onnx"
    onnx.save(model, made)
    return made
