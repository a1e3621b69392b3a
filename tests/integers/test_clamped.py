"""Bounds that are no codes of a measured step hold in integers as they do in the network."""

import pytest
import torch
from torch import nn

from chop.integers import ClampCodes
from chop.passes import PassArgsError
from chop.passes.graph import verify_integers_analysis_pass

from .checking import Calls, quantised

SCALE = 0.565  # 6 is 10.6 of its steps
BOUNDED = {
    "relu6": nn.functional.relu6,
    "hardtanh": lambda x: nn.functional.hardtanh(x, -2.0, 1.7),
    "clamp": lambda x: x.clamp(-0.9, 4.4),
    "clamp above": lambda x: x.clamp(max=4.4),
}
ZERO = {"data_in_zero_point": 61, "data_in_signed": False}


def affine(**others):
    config = {"name": "affine", "data_in_width": 8, "data_in_scale": SCALE, "weight_width": 8}
    return {"config": {**config, "weight_axis": 0, **others}}


def network(act, between=None):
    torch.manual_seed(0)
    layers = {"one": nn.Linear(4, 6), "last": nn.Linear(6, 3)}
    return Calls(lambda m, x: m["last"]((between or _same)(act(m["one"](x)))), **layers)


def _same(x):
    return x


def vectors(count=500):
    return 5 * torch.randn(count, 4, generator=torch.Generator().manual_seed(1))


def graph_of(model, **others):
    return quantised(model, (4,), {"by": "type", "linear": affine(**others)})


def clamps(integers):
    return [node for node in integers.nodes.values() if isinstance(node.op, ClampCodes)]


@pytest.mark.parametrize("others", [{}, {"weight_axis": None}, ZERO], ids=["rows", "one", "zero"])
@pytest.mark.parametrize("name", BOUNDED)
def test_the_integers_equal_the_network(name, others):
    graph, x = graph_of(network(BOUNDED[name]), **others), vectors()
    integers = graph.to_integers()
    assert clamps(integers)
    assert torch.allclose(integers(x), graph.model(x), atol=1e-5)
    _, info = verify_integers_analysis_pass(graph, strict=True, silent=True)
    assert info["mismatches"] == info["output_mismatches"] == 0


def test_a_bound_is_rounded_as_the_reader_rounds_it():
    (clamp,) = clamps(graph_of(network(nn.functional.relu6)).to_integers())
    assert (clamp.op.low, clamp.op.high) == (0, 11)


def test_readers_with_other_steps_have_bounds_of_their_own():
    torch.manual_seed(0)
    layers = {"one": nn.Linear(4, 6), "a": nn.Linear(6, 3), "b": nn.Linear(6, 3)}

    def forward(m, x):
        x = nn.functional.relu6(m["one"](x))
        return m["a"](x), m["b"](x)

    steps = {"one": 0.5, "a": 0.7, "b": 0.3}
    tables = {f"layers_{name}": affine(data_in_scale=step) for name, step in steps.items()}
    graph = quantised(Calls(forward, **layers), (4,), {"by": "name", **tables})
    integers, x = graph.to_integers(), vectors()
    assert [(node.op.low, node.op.high) for node in clamps(integers)] == [(0, 9), (0, 20)]
    for ours, theirs in zip(integers(x), graph.model(x), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    _, info = verify_integers_analysis_pass(graph, strict=True, silent=True)
    assert info["mismatches"] == info["output_mismatches"] == 0


@pytest.mark.parametrize("between", [lambda x: x + x, lambda x: x.view(-1, 2, 3).flatten(1)])
def test_a_clamped_value_may_be_added_and_moved_before_it_is_rounded(between):
    graph, x = graph_of(network(nn.functional.relu6, between), weight_axis=None), vectors()
    assert torch.allclose(graph.to_integers()(x), graph.model(x), atol=1e-5)


def test_a_clamp_at_the_end_is_near_to_the_bound():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU6())
    graph, x = graph_of(model, weight_axis=None), vectors()
    found = graph.to_integers()(x)
    assert torch.allclose(found, graph.model(x), atol=1e-6)
    assert float(found.max()) == pytest.approx(6.0, abs=1e-6)


def test_a_table_after_a_clamp_takes_the_bounds_of_the_network():
    config = affine(data_in_scale=0.11)["config"]

    def forward(m, x):
        return m["last"](torch.sigmoid(m["cut"](x).clamp(-0.2, 1.7)))

    layers = {"cut": nn.ReLU(), "last": nn.Linear(4, 3)}
    tables = {key: {"config": config} for key in ("linear", "relu")}
    graph, x = quantised(Calls(forward, **layers), (4,), {"by": "type", **tables}), vectors()
    assert torch.allclose(graph.to_integers()(x), graph.model(x), atol=1e-5)


TENSOR_BOUNDS = {
    "both": lambda x, low, high: torch.clamp(x, low, high),
    "min": lambda x, low, high: x.clamp(min=low),
    "max": lambda x, low, high: x.clamp(max=high),
    "clamp_min": lambda x, low, high: torch.clamp_min(x, low),
    "clamp_max": lambda x, low, high: x.clamp_max(high),
}


class Bounded(nn.Module):
    """A clamp between buffers, as networks with learnt bounds have it."""

    def __init__(self, act, low, high):
        super().__init__()
        self.act, self.one, self.last = act, nn.Linear(4, 6), nn.Linear(6, 3)
        self.low, self.high = nn.Buffer(low), nn.Parameter(high)

    def forward(self, x):
        return self.last(self.act(self.one(x), self.low, self.high))


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("name", TENSOR_BOUNDS)
def test_a_bound_that_is_a_tensor_of_one_number_holds_in_integers(name, shape):
    torch.manual_seed(0)
    low, high = torch.full(shape, -0.9), torch.full(shape, 0.4)
    graph, x = graph_of(Bounded(TENSOR_BOUNDS[name], low, high)), vectors()
    assert torch.allclose(graph.to_integers()(x), graph.model(x), atol=1e-5)
    _, info = verify_integers_analysis_pass(graph, strict=True, silent=True)
    assert info["mismatches"] == info["output_mismatches"] == 0


@pytest.mark.parametrize(
    "act",
    [
        lambda x, low, high: x.clamp(low, torch.arange(6.0)),
        lambda x, low, high: x.clamp_max(x.mean(1, keepdim=True)),
        lambda x, low, high: torch.clamp(x, max=low.expand(6)),
        lambda x, low, high: torch.clamp(x, low, low + 1),
    ],
    ids=["one for each channel", "of the data", "expanded", "computed"],
)
def test_other_bounds_that_are_tensors_are_refused(act):
    model = Bounded(act, torch.tensor(-0.9), torch.tensor(0.4))
    graph = graph_of(model, weight_axis=None)
    reasons = "clamps between tensors; use numbers|no integer meaning|computes with constants only"
    with pytest.raises(PassArgsError, match=reasons):
        graph.to_integers()


def test_a_result_that_nobody_rounds_needs_one_step_for_all_channels():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU6())
    with pytest.raises(PassArgsError, match="node '_1' returns the result of relu6 without round"):
        graph_of(model).to_integers()


@pytest.mark.parametrize("others", [{}, ZERO], ids=["plain", "zero point"])
@pytest.mark.parametrize("name", BOUNDED)
def test_files_of_integers_have_the_same_bounds(name, others, package):
    onnxruntime, _ = package("onnxruntime"), package("onnx")
    from chop.passes.graph.interface.export_onnx import onnx_model

    graph, x = graph_of(network(BOUNDED[name]), **others), vectors()
    expected = graph.to_integers().run(x)
    model = onnx_model(graph, "integer").SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"x": x.numpy()}), strict=True))
    assert torch.equal(torch.from_numpy(found["output_codes"]).long(), expected)


@pytest.mark.rtl
@pytest.mark.parametrize("others", [{}, ZERO], ids=["plain", "zero point"])
def test_circuits_have_the_same_bounds(others, tmp_path):
    from chop.hardware.simulation import check_circuit
    from chop.hardware.streaming import streaming_circuit
    from chop.hardware.unrolled import unrolled_circuit

    integers = graph_of(network(nn.functional.relu6), **others).to_integers()
    for circuit in (unrolled_circuit(integers), streaming_circuit(integers)):
        folder = tmp_path / type(circuit).__name__
        result = check_circuit(integers, circuit, [vectors(60)], folder=folder)
        assert result.mismatches == 0
