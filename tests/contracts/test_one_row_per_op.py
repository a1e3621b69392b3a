"""A pointwise activation is one row of the table: every room reads what it needs from there."""

import ast
import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

import chop
from chop import integers
from chop.hardware.streaming import streaming_circuit
from chop.hardware.unrolled import unrolled_circuit
from chop.ir import MaseGraph, op_spec
from chop.ir.ops import OPS, TABLE, define
from chop.passes import Pipeline, run_pass
from chop.passes.graph.analysis.cost import Call, count
from chop.passes.graph.interface.export_onnx import onnx_model
from chop.passes.graph.transforms.integers import rule_of
from chop.passes.graph.transforms.quantize.quantized_modules import LAYERS, activation

FILES = {
    str(file.relative_to(Path(chop.__file__).parent)): file
    for file in Path(chop.__file__).parent.rglob("*.py")
}
# rows without a function of their own in any room
WHOLE = ("elu", "celu", "gelu", "mish", "softsign", "tanh", "hardswish")
HOMES = {
    "ir/ops.py": "the table",
    "testing/aten_formulas.py": "audits the cost pass, and shares nothing with it",
    "methods/logicnets/layers.py": "what tables never merged stays outside",
    "models/vision/mobilenet.py": "an option of the model",
    "ir/graph/aten_names.py": "its operator has a keyword",
    "passes/graph/interface/export_onnx/ops/attention.py": "part of a layer",
    "onnx/reading/ops/recurrent.py": "part of a layer",
}
CONFIG = {
    "name": "integer",
    **{f"{operand}_width": 8 for operand in ("data_in", "weight", "bias")},
    **{f"{operand}_frac_width": 4 for operand in ("data_in", "weight", "bias")},
}


class Arctan(nn.Module):
    """An activation that the table does not have."""

    def forward(self, x):
        return torch.atan(x)


def arctan_row():
    return define(
        "arctan_layer",
        "module_related_func",
        Arctan,
        names="",
        traits="pointwise activation",
        quantized="data_in",
        flops=(1, 4),
        onnx="Atan",
    )


@pytest.fixture
def row():
    """The row of a new activation, which is gone after the test."""
    tables = (OPS._items, op_spec._BY_MODULE, op_spec._BY_FUNCTION, op_spec._BY_NAME)
    tables = (*tables, op_spec._BY_ONNX, LAYERS._items)
    before = [dict(table) for table in tables]
    yield arctan_row()
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)
    op_spec.module_op.cache_clear()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), Arctan(), nn.Linear(5, 3)).eval()


def graph_of(*steps):
    common = ("add_common_metadata", {"dummy_in": {"input": torch.zeros(2, 4)}})
    graph = MaseGraph(network(), custom_ops={"modules": {Arctan: {}}})
    return Pipeline(["init_metadata", common, *steps])(graph)[0]


def quantised():
    tables = {op: {"config": CONFIG} for op in ("linear", "arctan_layer")}
    return graph_of(("quantize", {"by": "type", **tables}))


def computed(model, x):
    """Return what onnxruntime computes."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


X = 4 * torch.randn(50, 4, generator=torch.Generator().manual_seed(1))


def test_its_row_gives_an_activation_its_metadata_and_its_cost(row):
    graph = graph_of("add_hardware_metadata", "add_software_metadata")
    node = next(node for node in graph.nodes if node.meta["mase"].common.mase_op == row.name)
    assert node.meta["mase"]["hardware"]["module"] == "fixed_lookup"
    found = count(Call(row.name, {"data_in_0": (2, 3)}, [(2, 3)]))
    assert (found.other, found.other_backward) == (6, 24)


def test_its_row_gives_an_activation_its_quantised_layer_and_its_table_in_integers(row):
    graph = quantised()
    layer = graph.model.get_submodule("1")
    assert isinstance(layer, Arctan)
    assert type(layer).__name__ == "ArctanInteger"
    assert type(layer).layer.float_class is Arctan
    assert activation.ArctanLog.float_class is Arctan
    converted = graph.to_integers()
    assert [type(node.op) for node in converted.nodes.values()].count(integers.Lookup) == 1
    assert torch.equal(converted(X), graph.model(X))


def test_a_row_takes_no_operator_of_an_earlier_one_even_if_it_is_run_again(row):
    arctan_row()
    assert op_spec.op_of_onnx("Atan").name == "atan"


def test_its_row_lets_an_activation_be_saved_quantised(row, tmp_path):
    graph = quantised()
    run_pass("save_mase_graph", graph, {"save_dir": tmp_path / "graph"})
    loaded = MaseGraph.from_checkpoint(tmp_path / "graph", custom_ops={"modules": {Arctan: {}}})
    assert torch.equal(loaded.model(X), graph.model(X))


def test_its_row_gives_an_activation_its_circuits(row, package):
    package("alkaid")
    converted = quantised().to_integers()
    for circuit in (unrolled_circuit(converted), streaming_circuit(converted)):
        assert circuit.outputs


@pytest.mark.parametrize("kind", ["onnx", "qdq", "qonnx", "integer"])
def test_its_row_gives_an_activation_its_place_in_onnx_files(row, kind, tmp_path):
    onnx = pytest.importorskip("onnx")
    from chop.onnx.integers import integer_model
    from chop.onnx.reading import read_model

    graph = graph_of() if kind == "onnx" else quantised()
    if kind == "integer":
        model = integer_model(graph.to_integers())
    else:
        model = onnx_model(graph, kind)
        assert "Atan" in {node.op_type for node in model.graph.node}
        onnx.save(model, tmp_path / "network.onnx")
        read = read_model(tmp_path / "network.onnx")
        assert torch.allclose(read(X), network()(X), atol=1e-5 if kind == "onnx" else 0.5)
    if kind != "qonnx":
        torch.testing.assert_close(computed(model, X), graph.model(X))


@pytest.mark.parametrize("name", [op.name for op in TABLE if op.onnx and op.modules])
def test_an_operator_is_read_as_the_layer_that_was_written(name, tmp_path):
    onnx = pytest.importorskip("onnx")
    from chop.onnx.reading import read_model

    layer = OPS[name].modules[0]()
    common = ("add_common_metadata", {"dummy_in": {"input": torch.zeros(2, 4)}})
    graph = Pipeline(["init_metadata", common])(MaseGraph(nn.Sequential(layer)))[0]
    onnx.save(onnx_model(graph, "onnx"), tmp_path / "network.onnx")
    read = read_model(tmp_path / "network.onnx")
    assert [type(module) for module in read.children()] == [type(layer)]
    assert torch.equal(read(X), layer(X))


@pytest.mark.parametrize("op", [op for op in TABLE if op.onnx], ids=lambda op: op.name)
def test_attributes_of_an_operator_are_settings_of_the_layer(op):
    onnx = pytest.importorskip("onnx")
    schema = onnx.defs.get_schema(op.onnx.name)
    for attribute, setting in op.onnx.settings:
        default = inspect.signature(op.modules[0]).parameters[setting].default
        standard = onnx.helper.get_attribute_value(schema.attributes[attribute].default_value)
        standard = standard.decode() if isinstance(standard, bytes) else standard
        assert default == pytest.approx(standard), attribute


@pytest.mark.parametrize("op", [op for op in TABLE if op.integer], ids=lambda op: op.name)
def test_every_op_in_integers_that_a_row_names_has_a_rule(op):
    assert issubclass(getattr(integers, op.integer), integers.IntegerOp)
    assert rule_of(op.name) is not None


def test_an_activation_that_is_one_row_is_named_nowhere_else():
    named = {
        f"{path}: {node.value}"
        for path, file in FILES.items()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in WHOLE and path not in HOMES
    }
    assert not named
