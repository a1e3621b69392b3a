"""Calls that mean something else in ONNX than in torch are written exactly, or refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.layers import EdgeTable
from chop.passes.graph.interface.export_onnx import ExportError, onnx_model


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def images(size):
    torch.manual_seed(size)
    return {"x": torch.randn(size, 4, 7, 5)}


def writes_to_a_constant(x):
    table = torch.zeros(x.shape[3])
    before = x + table
    table.add_(1)
    return before, x + table


FIRST, SECOND = torch.tensor([0, 1]), torch.tensor([0, 3])
EXACT = {
    "roll by more than the size": lambda x: torch.roll(x, (9, -8), (1, 2)),
    "roll by the size": lambda x: torch.roll(x, 7, 2),
    "unbiased by place": lambda x: (x.var(1, False), x.std(1, False, True), x.var(1, True, True)),
    "narrow from the end": lambda x: (x.narrow(2, -2, 2), x.narrow(2, -4, 2)),
    "list as index": lambda x: x[:, [0, 2]],
    "number before tensors": lambda x: x[0, :, FIRST, SECOND],
    "number between slices": lambda x: x[:, 0, :, SECOND],
    "several tensors": lambda x: x[:, FIRST, :, SECOND],
    "argmax of all": lambda x: (x.argmax(), x.argmax(keepdim=True)),
    "bounds that cross": lambda x: torch.clamp(x, x.amax(1, keepdim=True), x.mean(1, keepdim=True)),
    "in-place fmod": lambda x: (x * 4).fmod_(3),
    "stack of dtypes": lambda x: torch.stack([x, x.long()], 1),
    "write to a constant": writes_to_a_constant,
    "resize by a recomputed factor": lambda x: F.interpolate(
        x, scale_factor=1.3, mode="bilinear", recompute_scale_factor=True
    ),
    "resize by a whole factor": lambda x: F.interpolate(x, scale_factor=(2, 3.0), mode="bicubic"),
    "norms of vectors": lambda x: (torch.linalg.vector_norm(x, 2, (2, 3)), torch.linalg.norm(x)),
    "batch as a divisor": lambda x: x.sum(0) / x.shape[0],
}


@pytest.mark.parametrize("name", EXACT)
def test_edge_cases_are_written_exactly(name, traced, assert_same_as_eager):
    model = Calls(EXACT[name])
    assert_same_as_eager(onnx_model(traced(model, images(2))), model, images)


def test_a_list_as_the_only_index_is_a_tensor(traced, run):
    model = Calls(lambda x: x[[1, 0]])
    given = images(2)
    (found,) = run(onnx_model(traced(model, given)), given)
    assert torch.equal(found, given["x"][[1, 0]])


def writes_behind(view):
    def function(x):
        y = x * 2
        z = view(y)
        z.add_(1)
        return y.sum() + z.sum()

    return function


REFUSED = {
    "var by place": (lambda x: x.flatten(1).var(False), "`unbiased` in the place of dim"),
    "odd lp pool": (lambda x: F.lp_pool2d(x, 3, 2), "order that is not even"),
    "resize by a factor": (
        lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
        "give a size, or recompute_scale_factor=True",
    ),
    "scatter with a sum": (
        lambda x: x.scatter(1, (x > 0).long(), x, reduce="add"),
        "write each place once",
    ),
    "even window": (lambda x: F.local_response_norm(x, 4), "window of an even size"),
    "norm of matrices": (lambda x: torch.linalg.norm(x, 2, (2, 3)), "norm of a matrix"),
    "matrix norm": (lambda x: torch.linalg.matrix_norm(x, 2), "norm of a matrix"),
    "out": (lambda x: torch.add(x, 1, out=x * 2), "writes to the tensor `out`"),
    "half of the batch": (lambda x: x[: x.shape[0] // 2], "'floordiv' computes a number from"),
    "part of the batch": (lambda x: x * (1 / x.shape[0]), "'truediv' computes a number from"),
    "write behind float": (writes_behind(lambda y: y.float()), "writes to the memory of 'mul'"),
    "write behind dropout": (
        writes_behind(lambda y: F.dropout(y, 0.5, False)),
        "writes to the memory of 'mul'",
    ),
    "write behind mT": (writes_behind(lambda y: y.mT), "writes to the memory of .mul."),
}


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize("name", REFUSED)
def test_calls_that_onnx_computes_otherwise_are_refused(name, traced):
    function, reason = REFUSED[name]
    with pytest.raises(ExportError, match=reason):
        onnx_model(traced(Calls(function), images(2)))


def test_a_write_behind_a_layer_that_returns_its_input_is_refused(traced):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.same, self.relu = nn.Identity(), nn.ReLU(inplace=True)

        def forward(self, x):
            y = x * 2
            return self.relu(self.same(y)) - y

    with pytest.raises(ExportError, match="'relu' writes to the memory of 'mul'"):
        onnx_model(traced(Model(), images(2)))


@pytest.mark.parametrize("kind", ["qdq", "qcdq", "qonnx"])
def test_a_network_of_tables_is_sent_to_the_format_that_holds_it(kind, traced):
    graph = traced(nn.Sequential(EdgeTable(4, 2)).eval(), {"input": torch.randn(2, 4)})
    with pytest.raises(ExportError, match=r"tables on edges: _0; use `format='integer'`"):
        onnx_model(graph, kind)
