"""ONNX files: cut, flipped, of other programs, and with odd nodes, shapes and weights."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")

from .commands import OPTIONS, TRAINING  # noqa: E402
from .corpus import CLASSES, FEATURES  # noqa: E402
from .harness import Sandbox, inputs  # noqa: E402
from .mutations import NUMBERS, TEXTS, damaged, foreign  # noqa: E402

FILE = "network.onnx"
DATA = ("npz", "--data-path=data.npz", *OPTIONS)
COMMANDS = (
    ("test", FILE, *DATA, *TRAINING),
    ("train", FILE, *DATA, *TRAINING),
    ("transform", FILE, *DATA, "--config=quantize.toml"),
    ("emit", FILE, *DATA),
)
QUANTIZE = """\
[passes.quantize]
by = "type"
linear.config = { name = "integer", data_in_width = 8, data_in_frac_width = 4, \
weight_width = 8, weight_frac_width = 4, bias_width = 8, bias_frac_width = 4 }
"""


def network() -> Any:
    """Return a network of many kinds of nodes, rounded at its input."""
    node, random = onnx.helper.make_node, np.random.default_rng(0)
    tensors = {
        "scale": np.float32(0.25), "point": np.int8(0), "shape": np.array([-1, 1, 4, 4]),
        "kernel": random.standard_normal((3, 1, 3, 3), np.float32), "flat": np.array([0, -1]),
        "weight": random.integers(-9, 9, (12, CLASSES)).astype(np.int8),
        "bias": random.standard_normal(CLASSES, np.float32),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "scale", "point"], ["q"], name="q"),
        node("DequantizeLinear", ["q", "scale", "point"], ["d"], name="d"),
        node("Reshape", ["d", "shape"], ["image"], name="image"),
        node("Conv", ["image", "kernel"], ["c"], name="conv", auto_pad="SAME_UPPER"),
        node("Clip", ["c", "", "six"], ["r"], name="clip"),
        node("MaxPool", ["r"], ["m"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", ["m", "flat"], ["f"], name="flat"),
        node("DequantizeLinear", ["weight", "scale"], ["w"], name="w"),
        node("MatMul", ["f", "w"], ["p"], name="fc"),
        node("Add", ["p", "bias"], ["y"], name="add"),
    ]
    nodes.insert(0, node("Constant", [], ["six"], value_float=6.0))
    make = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "network",
        [make("x", onnx.TensorProto.FLOAT, ["batch", FEATURES])],
        [make("y", onnx.TensorProto.FLOAT, ["batch", CLASSES])],
        [onnx.numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    imports = [onnx.helper.make_opsetid("", 21)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def odd_number(random: Random) -> int:
    """Return a number that an attribute may not have."""
    return random.choice([int(n) for n in NUMBERS if abs(n) < 1 << 62])


def odd_text(random: Random) -> str:
    """Return text that protobuf can hold."""
    return random.choice(TEXTS).encode(errors="replace").decode()


def change_node(random: Random, proto: Any) -> None:
    """Give a node other inputs, attributes or another operator."""
    node = random.choice(proto.graph.node)
    names = [name for each in proto.graph.node for name in each.output] + ["x", "weight", ""]
    way = random.randrange(5)
    if way == 0:
        node.op_type = random.choice([n.op_type for n in proto.graph.node] + ["LSTM", "If", "Gelu"])
    elif way == 1 and node.input:
        node.input[random.randrange(len(node.input))] = random.choice(names)
    elif way == 2:
        node.attribute.append(
            onnx.helper.make_attribute(
                random.choice(("axis", "perm", "pads", "group", "strides", "transB", "auto_pad")),
                random.choice(([odd_number(random)] * 2, odd_number(random), odd_text(random))),
            )
        )
    elif way == 3:
        node.name = odd_text(random)
    else:
        del proto.graph.node[random.randrange(len(proto.graph.node))]


def change_tensor(random: Random, proto: Any) -> None:
    """Give a weight other sizes, numbers, another type, or a file that it lies in."""
    tensor = random.choice(proto.graph.initializer)
    way = random.randrange(4)
    if way == 0:
        tensor.dims.append(odd_number(random))
    elif way == 1:
        tensor.data_type = random.randrange(30)
    elif way == 2:
        tensor.raw_data = random.randbytes(len(tensor.raw_data))
    else:
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        places = ("../../home/notes.txt", "/etc/passwd", "data.npz", odd_text(random))
        tensor.external_data.add(key="location", value=random.choice(places))


def change_model(random: Random, proto: Any) -> None:
    """Give a model another opset, other inputs, or no output."""
    way = random.randrange(4)
    if way == 0:
        proto.opset_import[0].version = odd_number(random)
    elif way == 1:
        dims = proto.graph.input[0].type.tensor_type.shape.dim
        random.choice(dims).dim_value = odd_number(random)
    elif way == 2:
        proto.graph.input[0].type.tensor_type.elem_type = random.randrange(1, 20)
    else:
        proto.graph.output[0].name = odd_text(random)


@inputs("onnx")
def test_an_onnx_file_is_read_or_refused(sandbox: Sandbox, random: Random, index: int) -> None:
    sandbox.take("data.npz")
    (sandbox.work / "quantize.toml").write_text(QUANTIZE)
    proto = network()
    for _ in range(random.choice((0, 1, 1, 2))):
        random.choice((change_node, change_node, change_tensor, change_model))(random, proto)
    content = proto.SerializeToString()
    if random.random() < 0.25:
        content = damaged(random, content)
    elif random.random() < 0.1:
        content = foreign(random)
    (sandbox.work / FILE).write_bytes(content)
    sandbox.check(*(COMMANDS[0] if random.random() < 0.6 else random.choice(COMMANDS)))
