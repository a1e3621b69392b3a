"""A format that says its grid goes all the way: to integers, ONNX files, estimates and circuits."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from chop.hardware.emit import EmitOptions, emit_circuit
from chop.integers.digest import graph_digest
from chop.ir.graph.mase_graph import MaseGraph
from chop.numerics import FORMATS, NumberFormat
from chop.numerics.grid import Grid
from chop.numerics.integer import Integer
from chop.passes import Pipeline
from chop.passes.graph.transforms.quantize.variants import LAYER_VARIANTS

KEYS = ("data_in", "weight")


@pytest.fixture
def shares(monkeypatch):
    """A new format, in the registry for one test: from -8 to 7 parts of a number."""
    for registry in (FORMATS, LAYER_VARIANTS):
        monkeypatch.setattr(registry, "_items", dict(registry._load()))

    @dataclass(frozen=True)
    class Shares(NumberFormat, name="shares", suffix="Shares"):
        parts: int

        def round(self, x):
            step = torch.full((), self.smallest, dtype=x.dtype, device=x.device)
            return (x / step).round().clamp(-8, 7) * step

        def grid(self):
            return Grid(-8, 7, (self.smallest,))

        @property
        def bits(self):
            return 4

        @property
        def largest(self):
            return 7 * self.smallest

        @property
        def smallest(self):
            return (1 / torch.tensor(float(self.parts))).item()

    return Shares


def quantized(config):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)).eval()
    common = ("add_common_metadata", {"dummy_in": {"input": torch.randn(4, 6)}, "add_value": False})
    quantize = ("quantize", {"by": "type", "linear": {"config": config}})
    return Pipeline(["init_metadata", common, quantize])(MaseGraph(model))[0]


def config_of(parts):
    return {"name": "shares"} | {f"{key}_parts": parts for key in KEYS}


X = torch.randn(50, 6, generator=torch.Generator().manual_seed(1)) * 2


def test_a_step_that_is_a_power_of_two_gives_the_integers_of_fixed_point(shares):
    fixed = {"name": "integer"} | {f"{key}_width": 4 for key in KEYS}
    fixed |= {f"{key}_frac_width": 2 for key in KEYS} | {"bias_width": 4, "bias_frac_width": 2}
    ours, theirs = quantized(config_of(4)), quantized(fixed)
    assert shares(4).grid() == Integer(4, 2).grid()
    assert torch.equal(ours.model(X), theirs.model(X))
    assert graph_digest(ours.to_integers()) == graph_digest(theirs.to_integers())


@pytest.mark.parametrize("parts", [3, 4])
def test_the_integer_graph_gives_the_numbers_of_the_simulation(parts, shares):
    graph = quantized(config_of(parts))
    assert torch.allclose(graph.to_integers()(X), graph.model(X), atol=1e-5)


@pytest.mark.parametrize("kind", ["qdq", "qcdq", "qonnx", "integer"])
@pytest.mark.parametrize("parts", [3, 4])
def test_all_kinds_of_files_are_written_and_run(parts, kind, shares, package):
    onnxruntime, _ = package("onnxruntime"), package("onnx")
    from chop.passes.graph.interface.export_onnx import ExportError, onnx_model

    graph = quantized(config_of(parts))
    if kind == "qdq":  # codes of 4 bits are bytes with a Clip
        with pytest.raises(ExportError, match="4 bits"):
            onnx_model(graph, kind)
        return
    file = onnx_model(graph, kind)
    if kind == "qonnx":
        assert sum(node.op_type == "Quant" for node in file.graph.node) == 4
        return
    session = onnxruntime.InferenceSession(
        file.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    results = dict(zip(names, session.run(None, {"input": X.numpy()}), strict=True))
    integers = graph.to_integers()
    if kind == "integer":
        assert torch.equal(torch.from_numpy(results["output_codes"]).long(), integers.run(X))
    else:
        assert torch.allclose(torch.from_numpy(results["output"]), graph.model(X), atol=1e-5)


@pytest.mark.parametrize("backend", ["unrolled", "streaming"])
def test_circuits_are_emitted(backend, shares, package):
    package("alkaid")
    circuit = emit_circuit(quantized(config_of(4)).to_integers(), EmitOptions(backend=backend))
    assert [(port.width, port.signed) for port in circuit.inputs] == [(4, True)]


@pytest.mark.rtl
@pytest.mark.parametrize("backend", ["unrolled", "streaming"])
@pytest.mark.parametrize("parts", [3, 4])
def test_circuits_give_the_codes_of_the_integer_graph(parts, backend, shares, tmp_path):
    from chop.hardware.simulation import check_circuit

    integers = quantized(config_of(parts)).to_integers()
    circuit = emit_circuit(integers, EmitOptions(backend=backend))
    assert check_circuit(integers, circuit, [X], folder=tmp_path).mismatches == 0
