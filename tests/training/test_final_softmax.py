"""A network that ends in softmax is trained and scored as the same network without it."""

import copy
import functools
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.ir.probabilities import KeepsScores, final_op
from chop.onnx.onnx_graph import OnnxGraph
from chop.onnx.runtime import Runtime
from chop.onnx.runtime_module import RuntimeModule
from chop.passes import Pipeline, run_pass
from chop.training.check import check_fit
from chop.training.evaluate import evaluate
from chop.training.options import TrainOptions
from chop.training.outputs import Predictor
from chop.training.steps import Mixed, Step
from chop.training.tasks import CLASSIFICATION, DENSE, REGRESSION

CPU = torch.device("cpu")


class Ends(nn.Module):
    """A network of a body and a function at its end."""

    def __init__(self, body, end):
        super().__init__()
        self.body, self.end = body, end

    def forward(self, x):
        return self.end(self.body(x))


ENDS = {
    "a layer": nn.Softmax(1),
    "a layer, last dimension": nn.Softmax(-1),
    "a function": lambda x: F.softmax(x, dim=1),
    "a function of torch": lambda x: torch.softmax(x, 1),
    "a method": lambda x: x.softmax(-1),
    "logarithms": nn.LogSoftmax(dim=-1),
    "a method of logarithms": lambda x: x.log_softmax(1),
    "one against the rest": nn.Sigmoid(),
    "in a dictionary": lambda x: {"logits": x.softmax(1)},
    "of one pixel": lambda x: x[:, :, None, None].softmax(1).flatten(1),
    "of one pixel, channels last": lambda x: x[:, None, None].softmax(-1).reshape(-1, 3),
    "squeezed": lambda x: F.softmax(x[:, None], dim=2).squeeze(1),
    "copied": lambda x: x.softmax(1).clone(),
}


def body():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.randn(16, 6), torch.randint(3, (16,))


def trained(model, batch, **options):
    chosen = TrainOptions(**options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = Step(model, model, optimizer, chosen, Mixed("32", CPU))
    outcomes = []
    for _ in range(5):
        outcomes.append(step.accumulate(*batch, 1))
        step.update()
    return [outcome.loss.item() for outcome in outcomes]


@pytest.mark.parametrize("end", ENDS)
def test_training_gives_the_losses_and_weights_of_the_network_without_it(end, batch):
    plain, whole = body(), Ends(body(), ENDS[end])
    assert trained(whole, batch) == trained(plain, batch)
    for ours, theirs in zip(whole.body.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("front_end", ["fx", "export"])
def test_a_graph_is_trained_like_its_model(front_end, batch):
    plain, whole = body(), Ends(body(), ENDS["a function"])
    graph = MaseGraph(whole, front_end=front_end, dummy_in={"x": batch[0]})
    assert trained(graph.model, batch) == trained(plain, batch)


@pytest.mark.slow  # torch compiles the step
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_compiled_steps_take_the_loss_of_the_scores(batch):
    plain, whole = body(), Ends(body(), ENDS["a function"])
    losses = trained(whole, batch, compile=True)
    assert losses == pytest.approx(trained(plain, batch), rel=1e-5)


class EndsWhenTested(nn.Module):
    """A network that returns scores in train mode, and probabilities in eval mode."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.drop = body(), nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = self.norm(self.drop(self.body(x)))
        return x if self.training else F.softmax(x, 1)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_compiled_steps_know_how_a_network_ends_in_the_mode_that_they_run_in(batch, monkeypatch):
    compiled = functools.partial(torch.compile, backend="eager")
    losses = []
    for options in ({}, {"compile": True}):
        model = EndsWhenTested()
        with monkeypatch.context() as patch:
            patch.setattr(torch, "compile", lambda function, **_: compiled(function))
            losses.append(trained(model, batch, **options))
        assert model.norm.num_batches_tracked == model.calls == 5
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_learning_how_a_network_ends_changes_nothing_of_it(training, batch):
    model = EndsWhenTested().train(training)
    model.drop.train(not training)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    Predictor(model, scores=True).learn_the_end(batch[0])
    assert torch.equal(torch.get_rng_state(), random)
    assert (model.training, model.drop.training, model.calls) == (training, not training, 0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("first", [True, False])
def test_how_a_network_ends_is_known_of_each_mode(first, batch):
    model = EndsWhenTested()
    model.drop.p = 0.0
    predict = Predictor(model, scores=True)
    for training in (first, not first):
        model.train(training)
        wanted = copy.deepcopy(model.norm)(model.body(batch[0]))
        assert torch.equal(predict(batch[0]), wanted)


@pytest.mark.parametrize("end", ENDS)
def test_the_loss_of_a_test_is_that_without_it_and_the_accuracy_stays(end, batch):
    plain, whole = body(), Ends(body(), ENDS[end])
    scores = [evaluate(model, [batch], mixed=Mixed("32", CPU)) for model in (plain, whole)]
    assert scores[0] == scores[1]


def test_pixels_are_classified_likewise():
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 4, 4), torch.randint(3, (2, 4, 4))
    conv = nn.Conv2d(3, 3, 1)
    models = (conv, Ends(conv, nn.Softmax2d()), Ends(conv, nn.Softmax(1)))
    first, *rest = [evaluate(m, [(x, y)], mixed=Mixed("32", CPU), task=DENSE) for m in models]
    assert rest == [first, first]


def test_predictions_and_regressions_keep_it(batch):
    whole = Ends(body(), nn.Sigmoid())
    assert torch.equal(Predictor(whole)(batch[0]), whole(batch[0]))
    targets = torch.rand(16, 3)
    score = evaluate(whole, [(batch[0], targets)], mixed=Mixed("32", CPU), task=REGRESSION)
    assert score.loss == pytest.approx(F.mse_loss(whole(batch[0]), targets).item())


@pytest.mark.parametrize(
    "end",
    [
        lambda x: x.softmax(0),  # over the batch
        lambda x: x.softmax(1) * 2,
        lambda x: x + x.softmax(1),
        lambda x: x[:, None, :].softmax(1).squeeze(1),  # over a dimension of one
        lambda x: x.softmax(1).reshape(8, 6),
        lambda x: x.softmax(1).flip(1),
        nn.Identity(),
    ],
)
def test_other_ends_stay(end, batch):
    whole = Ends(body(), end)
    assert torch.equal(Predictor(whole, scores=True)(batch[0]), whole(batch[0]))
    with KeepsScores() as kept:
        result = whole(batch[0])
    assert kept.origin(result) == (None, "")


def test_it_is_said_once_in_a_line(batch, caplog):
    caplog.set_level(logging.INFO)
    few = type("Few", (), {"few": lambda self: batch, "split": None})()
    for model in (body(), Ends(body(), nn.Softmax(1))):
        check_fit(model, few, CLASSIFICATION, learning=False)
    said = "The network ends in softmax or sigmoid: losses are taken of what enters it"
    assert [record.message for record in caplog.records] == [said]


# --- graphs


def described(end, x):
    graph = MaseGraph(nn.Sequential(*body(), *end))
    steps = ["init_metadata", ("add_common_metadata", {"dummy_in": {"input": x}})]
    return Pipeline([*steps, "add_software_metadata"])(graph)[0]


WIDTHS = {"name": "integer", "bias_width": 8, "bias_frac_width": 6}
WIDTHS |= {
    f"{o}_{k}": v
    for o in ("data_in", "weight")
    for k, v in (("width", 4), ("frac_width", "calibrated"))
}


# functions that are applied to (samples, classes) or (samples, classes, places)
OVER_CLASSES = {
    "a layer": (nn.Softmax(1), 2),
    "a layer, last dimension": (nn.LogSoftmax(-1), 2),
    "a function": (lambda x: F.softmax(x, dim=1), 3),
    "a function, by position": (lambda x: torch.log_softmax(x, -2), 3),
    "a method": (lambda x: x.softmax(-1), 2),
    "pixels": (nn.Softmax2d(), 4),
    "no dimension": (nn.Softmax(), 4),
}
OVER_OTHERS = {
    "samples": (nn.Softmax(0), 2),
    "samples, by a function": (lambda x: x.softmax(0), 2),
    "samples, from the end": (lambda x: F.log_softmax(x, -2), 2),
    "places": (nn.Softmax(-1), 3),
    "places, by number": (lambda x: torch.softmax(x, dim=2), 3),
    "no dimension": (lambda x: F.softmax(x), 3),
}


@pytest.mark.parametrize(
    ("end", "rank", "is_final"),
    [(*case, True) for case in OVER_CLASSES.values()]
    + [(*case, False) for case in OVER_OTHERS.values()],
    ids=[*OVER_CLASSES, *OVER_OTHERS],
)
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_a_graph_ends_in_softmax_if_it_is_over_the_classes(end, rank, is_final):
    graph = MaseGraph(Ends(nn.ReLU(), end))
    run_pass("init_metadata", graph)
    x = torch.randn(2, 3, 4, 5)[(..., *[0] * (4 - rank))]
    run_pass("add_common_metadata", graph, {"dummy_in": {"x": x}})
    assert (final_op(graph.model) is not None) == is_final
    with KeepsScores() as kept:
        result = graph.model(x)
    assert (kept.origin(result)[0] is not None) == is_final


ENDS_OF_GRAPHS = {
    "softmax": [nn.Softmax(1)],
    "logarithms": [nn.LogSoftmax(1)],
    "of one pixel": [nn.Unflatten(1, (3, 1, 1)), nn.Softmax(1), nn.Flatten()],
    "channels last": [nn.Unflatten(1, (1, 1, 3)), nn.Softmax(-1), nn.Identity(), nn.Flatten()],
}


@pytest.mark.parametrize("end", ENDS_OF_GRAPHS)
def test_calibration_chooses_the_ranges_of_the_network_without_it(end, batch):
    x, formats = batch[0], []
    for layers in ([], ENDS_OF_GRAPHS[end]):
        graph = described(layers, x)
        run_pass("calibrate", graph, {"input_generator": [{"input": x}], "silent": True})
        run_pass("quantize", graph, {"by": "type", "linear": {"config": WIDTHS}})
        quantized = [m for m in graph.model.modules() if hasattr(m, "formats")]
        formats.append([layer.formats for layer in quantized])
    assert len(formats[0]) == 2
    assert formats[0] == formats[1]


@pytest.mark.parametrize("end", ENDS_OF_GRAPHS)
def test_sensitivity_scores_the_network_without_it(end, batch):
    x, y = batch
    formats = {"int4": {**WIDTHS, "data_in_frac_width": 2, "weight_frac_width": 2}}
    options = {"formats": formats, "input_generator": [({"input": x}, y)], "silent": True}
    results = []
    for layers in ([], ENDS_OF_GRAPHS[end]):
        graph = described(layers, x)
        _, info = run_pass("sensitivity", graph, options)
        assert (final_op(graph.model) is None) == (not layers)  # the graph itself keeps it
        results.append(info)
    assert results[0]["layers"] == results[1]["layers"]
    assert results[0]["baseline"] == results[1]["baseline"]


def test_an_exported_file_still_has_it(package, batch, tmp_path):
    onnx = package("onnx")
    graph = described([nn.Softmax(1)], batch[0])
    trained(graph.model, batch)
    run_pass("export_onnx", graph, {"save_path": str(tmp_path / "net.onnx")})
    file = onnx.load(tmp_path / "net.onnx")
    assert "Softmax" in [node.op_type for node in file.graph.node]


@pytest.mark.parametrize("end", [nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid(), nn.Identity()])
def test_a_file_in_another_runtime_has_the_loss_of_its_network(end, package, batch, tmp_path):
    onnx, _ = package("onnx"), package("onnxruntime")
    graph = described([end], batch[0])
    run_pass("export_onnx", graph, {"save_path": str(tmp_path / "net.onnx")})
    final = OnnxGraph(onnx.load(tmp_path / "net.onnx").graph).final_op
    module = RuntimeModule(Runtime(tmp_path / "net.onnx"), final_op=final)
    scores = [evaluate(m, [batch], mixed=Mixed("32", CPU)) for m in (graph.model, module)]
    assert scores[1].loss == pytest.approx(scores[0].loss, rel=1e-5)
    assert scores[1].metrics == scores[0].metrics
