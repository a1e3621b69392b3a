"""Every number format exports exactly, or is refused by name with what to use instead."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from chop.numerics import FORMATS, from_precision
from chop.onnx.targets import EXPORT_FORMATS
from chop.passes.graph.interface import export_onnx
from chop.passes.graph.interface.export_onnx import ExportError, onnx_model
from chop.passes.graph.interface.export_onnx.formats import EXPORTS, check_format, export_rows
from chop.passes.graph.interface.export_onnx.refusals import IN_FLOAT, REFUSALS, refusal_rows

NAMES = sorted({cls.name for cls in FORMATS.values()})
PRECISION = {
    "float": [32],
    "integer": [8, 4],
    "mixed_integer": [8, 4],
    "affine": [8],
    "scale_integer": [8],
    "minifloat_denorm": [8, 4, 7],
    "minifloat_ieee": [8, 4, 7],
    "log": [5, 7],
    "block_fp": [8, 8, 127, [4]],
    "block_minifloat": [8, 4, 8, [4]],
    "block_log": [5, 8, [4]],
    "binary": [1, False, True],
    "binary_residual": [32, False, True],
    "ternary": [2, False, None, None, None],
    "mxint": [8, [4]],
    "mxfp": [2, 1, [4]],
    "fp8": [4, 3],
}
QUANTISED = ("qdq", "qcdq", "qonnx")
README = Path(__file__).parents[3] / "docs" / "onnx.md"


def config_of(name, operand):
    keys = FORMATS[name].precision_keys()
    values = PRECISION[name]
    given = {f"{operand}_{key}": value for key, value in zip(keys, values, strict=True)}
    scale = {"data_in_scale": 0.05} if name == "affine" and operand == "data_in" else {}
    return {"name": name, **given, **scale}


class Looked(nn.Module):
    """Rounds nothing but its weights."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 16)

    def forward(self, x):
        return self.table(x)


class Passed(nn.Module):
    """Rounds nothing but its input, and hands it on."""

    def __init__(self):
        super().__init__()
        self.act = nn.LeakyReLU(1.0)

    def forward(self, x):
        return self.act(x)


def test_the_table_has_a_row_for_every_format_and_a_column_for_every_kind():
    assert EXPORTS.keys() == set(NAMES) == PRECISION.keys()
    assert all(row.keys() == EXPORT_FORMATS.keys() for row in EXPORTS.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_refusal_says_what_to_use_instead(name):
    for target, rule in EXPORTS[name].items():
        for operand, reason in (("data_in", rule.activations), ("weight", rule.weights)):
            fmt = from_precision(name, PRECISION[name])
            if not reason:
                check_format(fmt, target, operand)
                continue
            with pytest.raises(ExportError, match=f"rounds {operand} to {name}, which .*; use "):
                check_format(fmt, target, operand)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", QUANTISED)
def test_weights_come_out_bit_for_bit(name, kind, traced, run, package):
    package("onnx")
    x = torch.arange(12)
    quantize = {"by": "type", "embedding": {"config": config_of(name, "weight")}}
    graph = traced(Looked(), {"x": x[:2]}, ("quantize", quantize))
    if EXPORTS[name][kind].weights:
        with pytest.raises(ExportError, match=f"{name}, which"):
            onnx_model(graph, kind)
        return
    file = onnx_model(graph, kind)
    expected = graph.model(x)
    if kind == "qonnx":
        (found,) = executed(file, {"x": x}, package)
    else:
        package("onnxruntime")
        (found,) = run(file, {"x": x}, optimize=False)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", QUANTISED)
def test_activations_come_out_bit_for_bit(name, kind, traced, run, package):
    package("onnx")
    x = 3 * torch.randn(50, 16)
    quantize = {"by": "type", "leaky_relu": {"config": config_of(name, "data_in")}}
    graph = traced(Passed(), {"x": x[:2]}, ("quantize", quantize))
    if EXPORTS[name][kind].activations:
        with pytest.raises(ExportError, match=f"{name}, which"):
            onnx_model(graph, kind)
        return
    file = onnx_model(graph, kind)
    expected = graph.model(x)
    if kind == "qonnx":
        (found,) = executed(file, {"x": x}, package)
        assert torch.equal(found, expected)
        return
    package("onnxruntime")
    for optimize in (False, True):
        (found,) = run(file, {"x": x}, optimize=optimize)
        assert torch.equal(found, expected)


def executed(file, inputs, package):
    """Run a QONNX file by qonnx's own executor."""
    package("qonnx")
    import onnx
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.infer_shapes import InferShapes

    newest = onnx.IR_VERSION
    onnx.IR_VERSION = file.ir_version  # qonnx wraps single nodes in models of the newest version
    try:
        model = ModelWrapper(file)
        for name, tensor in inputs.items():
            model.set_tensor_shape(name, [*tensor.shape])
        model = model.transform(InferShapes())
        found = execute_onnx(model, {name: tensor.numpy() for name, tensor in inputs.items()})
    finally:
        onnx.IR_VERSION = newest
    return [torch.from_numpy(found["output"])]


def test_weights_in_blocks_have_one_scale_per_block(traced, package):
    onnx = package("onnx")
    for name, precision in (("mxint", [8, [4]]), ("mxfp", [2, 1, [4]])):
        config = config_of(name, "weight") | dict(
            zip((f"weight_{k}" for k in FORMATS[name].precision_keys()), precision, strict=True)
        )
        quantize = {"by": "type", "embedding": {"config": config}}
        graph = traced(Looked(), {"x": torch.arange(2)}, ("quantize", quantize))
        file = onnx_model(graph, "qdq")
        (node,) = (n for n in file.graph.node if n.op_type == "DequantizeLinear")
        settings = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        assert settings == {"axis": 1, "block_size": 4}
        shapes = {c.name: [*c.dims] for c in file.graph.initializer}
        assert shapes["table.weight_scale"] == [12, 4]


def test_the_documented_table_is_the_table_of_the_code():
    text = README.read_text(encoding="utf-8")
    rows = export_rows()
    header = list(rows[0])
    lines = [f"| {' | '.join(row[key] for key in header)} |" for row in rows]
    found = [
        line for line in text.splitlines() if re.match(r"\| \w+ \| (exact|weights|refused)", line)
    ]
    assert found == lines


def test_ch_lists_the_table():
    command = [sys.executable, "-m", "chop", "list", "exports", "--json"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    formats = {row["format"] for row in export_rows()}
    listed = [{"format": row["name"], **{t: row[t] for t in EXPORT_FORMATS}} for row in rows]
    assert [row for row in listed if row["format"] in formats] == export_rows()
    others = {row["name"]: row for row in rows if row["name"] not in formats}
    assert others.keys() == {each.what for each in REFUSALS.values()}
    for each in REFUSALS.values():
        refused = {kind for kind in EXPORT_FORMATS if others[each.what][kind] == "refused"}
        assert refused - {"onnx"} == set(each.kinds)
        assert others[each.what]["about"] == each.instead


def test_the_documented_refusals_are_those_of_the_code():
    text = README.read_text(encoding="utf-8")
    lines = [f"| {' | '.join(row.values())} |" for row in refusal_rows()]
    whats = tuple(f"| {each.what} |" for each in REFUSALS.values())
    assert [line for line in text.splitlines() if line.startswith(whats)] == lines


def test_every_refusal_is_raised_from_its_row():
    """A sentence elsewhere would be missing in the table."""
    folder = Path(export_onnx.__file__).parent
    code = "".join(file.read_text(encoding="utf-8") for file in folder.rglob("*.py"))
    named = {*re.findall(r'REFUSALS\["([^"]+)"\]', code), "symmetric", "width"}  # by `which`
    assert named | {IN_FLOAT} == REFUSALS.keys()
    for file in ("qdq.py", "qonnx.py", "quantized.py"):
        text = (folder / file).read_text(encoding="utf-8")
        assert not re.findall(r'call\.refusal\(\s*f?"', text)


def test_an_unknown_format_without_a_grid_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Own(type(from_precision("log", [5, 7]))):
        pass

    Own.name = "own"
    with pytest.raises(ExportError, match="own, which no file holds; use integer"):
        check_format(Own(5, 7), "qdq", "weight")
