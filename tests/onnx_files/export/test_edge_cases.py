"""Calls that mean something else in ONNX than in torch are written exactly, or refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.methods.edge_tables import EdgeTable
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
    "indices that are broadcast": lambda x: (
        torch.take_along_dim(x, FIRST[None, None, :, None], 2),
        torch.take_along_dim(x[:, :1], SECOND[None, None, :, None].expand(1, 4, 2, 1), 2),
        torch.take_along_dim(x, x.argmax(1, keepdim=True), 1),
    ),
    "corrections": lambda x: (
        x.var(1, correction=0.3),
        x.std((1, 2), correction=1.5),
        torch.std_mean(x, 1, correction=2.5),
    ),
    "softmax of nothing": lambda x: torch.ops.aten._safe_softmax(
        torch.where(x.amax(-1, keepdim=True) > 1, x, -torch.inf), -1
    ),
    "softmax of nothing, one overload": lambda x: torch.ops.aten._safe_softmax.default(
        torch.where(x.amax(-1, keepdim=True) > 1, x, -torch.inf), -1
    ),
    "truths in place": lambda x: (
        *((x * 1).eq_(0), (x * 1).gt_(0.5), (x * 1).ne_(1), (x * 1).le_(x.mean())),
        *((x * 1).logical_and_(x > 0), (x * 1).logical_not_(), (x * 1).logical_xor_(x)),
    ),
    "no dimensions": lambda x: [
        *(y := x[0, 0, 0, 0], y.permute(()), y.sum(0), y.mean(-1, keepdim=True), y.amax(0)),
        *(y.logsumexp(0), y.cumsum(0), y.softmax(0), y.log_softmax(-1), y.sort(0), y.topk(1, 0)),
        *(y.argmax(0), y.max(0), y.var(0, correction=0), y.any(0), y.transpose(0, -1), y.t()),
        *(y.movedim(0, 0), y.gather(0, torch.tensor([0])), y.index_select(0, torch.tensor([0]))),
        *(y.argsort(0), F.prelu(y, torch.tensor([0.3])), y.norm(), y.flip(0), y.prod(0)),
    ],
    "weight of prelu without dimensions": lambda x: F.prelu(x, torch.tensor(0.3)),
    "norm across channels": lambda x: (
        F.local_response_norm(x[:, :, 0], 3),
        F.local_response_norm(x[:, :, None], 3),
    ),
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


UNBATCHED = {
    "split": lambda x: torch.split(x, 2),
    "chunk": lambda x: x.chunk(3)[2],
    "unbind": lambda x: x.unbind(),
}


@pytest.mark.parametrize("name", UNBATCHED)
def test_calls_whose_results_depend_on_the_batch_are_for_one_batch(name, traced, run):
    model, given = Calls(UNBATCHED[name]), images(5)
    file = onnx_model(traced(model, given))
    assert [dim.dim_value for dim in file.graph.input[0].type.tensor_type.shape.dim] == [5, 4, 7, 5]
    found, expected = run(file, given), model(**given)
    expected = expected if isinstance(expected, list | tuple) else [expected]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_a_file_that_drops_a_batch_of_one_is_for_one(traced, run):
    model, given = Calls(torch.squeeze), images(1)
    (found,) = run(onnx_model(traced(model, given)), given)
    assert torch.equal(found, given["x"][0])


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
    "split at computed places": (
        lambda x: x.tensor_split(torch.ones(1).long() + x.long().sum(), 1)[0],
        "place to split at that is computed",
    ),
    "random slopes": (lambda x: F.rrelu(x, training=True), "'rrelu' .* draws slopes in eval mode"),
    "cut and reflected": (
        lambda x: F.pad(x, (-1, 2, 0, 0), "reflect"),
        "cuts and pads by 'reflect'",
    ),
    "output padding": (
        lambda x: F.conv_transpose2d(x, torch.ones(4, 1, 2, 2), output_padding=1, dilation=2),
        "'conv_transpose2d' .* output_padding that is not below the stride",
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


class SafetyLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.safety = nn.Softmax(dim=-1)

    def forward(self, x):
        return self.safety(torch.where(x.amax(-1, keepdim=True) > 1, x, -torch.inf))


def test_the_name_of_a_softmax_does_not_change_what_it_computes(traced, run):
    model, given = SafetyLayer(), images(2)
    (found,) = run(onnx_model(traced(model, given)), given)
    expected = model(given["x"])
    assert expected.isnan().any()
    assert torch.equal(found.isnan(), expected.isnan())
