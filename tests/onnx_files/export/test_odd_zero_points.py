"""Ties of sums, products and means with an odd zero point, in onnxruntime and in our files."""

import numpy as np
import pytest
import torch
from torch import nn

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from chop.onnx.reading import read_network  # noqa: E402
from chop.passes.graph.interface.export_onnx import onnx_model  # noqa: E402

POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}
FUSED = {"Add": (2, {}), "Mul": (2, {}), "AveragePool": (1, POOL)}


def minimal(op, inputs, attributes, zero):
    """One op between codes, whose results are often in the middle of two codes."""
    made = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, ["b", 2, 4, 4])
            for i in range(inputs)]  # fmt: skip
    constants = {"step": np.float32(0.25), "middle": np.uint8(64)}
    constants |= {"wide": np.float32(0.5), "zero": np.uint8(zero)}
    nodes = []
    for i in range(inputs):
        nodes.append(helper.make_node("QuantizeLinear", [f"x{i}", "step", "middle"], [f"q{i}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{i}", "step", "middle"], [f"d{i}"]))
    nodes.append(helper.make_node(op, [f"d{i}" for i in range(inputs)], ["y"], **attributes))
    nodes.append(helper.make_node("QuantizeLinear", ["y", "wide", "zero"], ["q"]))
    nodes.append(helper.make_node("DequantizeLinear", ["q", "wide", "zero"], ["out"]))
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "g", made, [out], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("op", FUSED)
def test_onnxruntime_rounds_these_ties_to_even_codes_as_long_as_this_holds(op, run):
    """The fault that files avoid: once this fails, the module `ties` can go."""
    inputs, attributes = FUSED[op]
    source = torch.Generator().manual_seed(0)
    x = {f"x{i}": torch.randint(-40, 40, (64, 2, 4, 4), generator=source) / 4
         for i in range(inputs)}  # fmt: skip
    for zero, differ in ((60, False), (61, True)):
        model = minimal(op, inputs, attributes, zero)
        (fast,), (plain,) = (run(model, x, optimize=optimize) for optimize in (True, False))
        assert bool((fast != plain).any()) == differ


class Network(nn.Module):
    def __init__(self, op):
        super().__init__()
        self.conv, self.fc, self.op = nn.Conv2d(2, 3, 3), nn.LazyLinear(5), op

    def forward(self, x):
        return self.fc(self.op(self.conv(x)).flatten(1))


OPS = {
    "add": lambda v: v + torch.relu(v),
    "mul": lambda v: v * torch.relu(v),
    "avg_pool2d": lambda v: nn.functional.avg_pool2d(v, 2),
    "add, then max pool": lambda v: nn.functional.max_pool2d(v + torch.relu(v), 2),
}


def affine(step, zero):
    config = {"name": "affine", "data_in_width": 8, "data_in_scale": step, "data_in_signed": False}
    return {"config": {**config, "data_in_zero_point": zero}}


def quantised(traced, op, zero, step=0.25):
    torch.manual_seed(0)
    model, x = Network(OPS[op]), 3 * torch.randn(40, 2, 6, 6)
    model(x)
    weights = {"weight_width": 8, "weight_power_of_two": True}
    layer = {"config": affine(step, zero)["config"] | weights}
    tables = {"conv2d": layer, "linear": layer}
    name = op.partition(",")[0]
    tables[name] = affine(step / 2, zero)
    return traced(model, {"x": x[:2]}, ("quantize", {"by": "type", **tables})), x


@pytest.mark.parametrize("zero", [60, 61, 127])
@pytest.mark.parametrize("op", OPS)
def test_files_give_the_codes_of_the_integer_graph_for_any_zero_point(op, zero, traced, run):
    graph, x = quantised(traced, op, zero)
    integers = graph.to_integers()
    expected = integers(x)
    for kind in ("qdq", "qcdq"):
        for optimize in (True, False):
            (found,) = run(onnx_model(graph, kind), {"x": x}, optimize=optimize)
            assert torch.equal(found, expected), (kind, optimize)


@pytest.mark.parametrize(("zero", "step", "guarded"), [(60, 0.25, 0), (61, 0.25, 1), (61, 0.37, 0)])
def test_fast_kernels_stay_where_no_tie_can_go_wrong(zero, step, guarded, traced):
    graph, _ = quantised(traced, "add", zero, step)
    if step == 0.37:  # quotients of measured steps have no ties
        graph.model.get_submodule("fc").configure(
            affine(0.411, zero)["config"] | {"weight_width": 8}
        )
    model = onnx_model(graph, "qdq")
    assert [node.op_type for node in model.graph.node].count("Max") == guarded


def test_a_file_with_such_a_sum_is_read_as_the_network_it_was_made_from(traced, tmp_path):
    graph, x = quantised(traced, "add", 61)
    onnx.save(onnx_model(graph, "qdq"), tmp_path / "net.onnx")
    network = read_network(tmp_path / "net.onnx")
    again = traced(network.model, {"x": x[:2]}, ("quantize", network.quantize_options))
    assert torch.equal(again.to_integers()(x), graph.to_integers()(x))
    assert not any("maximum" in str(node.target) for node in network.model.graph.nodes)
