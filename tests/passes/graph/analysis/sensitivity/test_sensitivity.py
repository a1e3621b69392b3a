"""Sensitivity: the same numbers as rounding layer by layer, with far less work."""

import json
import math
import xml.etree.ElementTree as ET

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.passes import PassArgsError, Pipeline, sensitivity_analysis_pass
from chop.passes.graph.transforms import quantize_transform_pass


def integer(width, frac):
    about = {"name": "integer"}
    for operand in ("data_in", "weight", "bias"):
        about |= {f"{operand}_width": width, f"{operand}_frac_width": frac}
    return about


INT8, INT6 = integer(8, 4), integer(6, 3)
X = torch.randn(16, 8, generator=torch.Generator().manual_seed(3))
Y = torch.arange(16) % 4


class Net(nn.Module):
    """A branch, a sum, an operation in place, and a product of activations."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.a(x))
        z = self.b(y) + y
        z += x
        return self.c(z) @ torch.ones(4, 4).tril()


def graph_of(model, x=X):
    graph = MaseGraph(model)
    options = {"dummy_in": {graph.inputs[0].target: x}, "add_value": False}
    return Pipeline(["init_metadata", ("add_common_metadata", options)])(graph)[0]


def run(graph, data=((X, Y),), formats=None, **options):
    options = {"silent": True, **options}
    given = {"formats": formats or {"int8": INT8, "int6": INT6}, "input_generator": list(data)}
    return sensitivity_analysis_pass(graph, {**given, **options})[1]


def quantized(graph, *names, config=INT8):
    copy = graph.clone()
    table = {"config": config}
    quantize_transform_pass(copy, {"by": "name", **dict.fromkeys(names, table)})
    return copy.model.eval()


def sqnr(expected, got):
    noise = (got.double() - expected.double()).square().sum()
    return 10 * math.log10(expected.double().square().sum() / noise)


@torch.no_grad()
def test_it_is_what_rounding_each_layer_by_itself_gives():
    graph = graph_of(Net())
    info = run(graph)
    expected = graph.clone().model.eval()(X.clone())
    for name, others in (("a", "bc"), ("b", "ac"), ("c", "ab")):
        found = info["layers"][name]["int8"]
        alone = quantized(graph, name)(X.clone())
        rest = quantized(graph, *others)(X.clone())
        assert found["alone"]["sqnr"] == pytest.approx(sqnr(expected, alone), rel=1e-6)
        assert found["all_but"]["sqnr"] == pytest.approx(sqnr(expected, rest), rel=1e-6)
        assert found["alone"]["loss"] == pytest.approx(F.cross_entropy(alone, Y).item())
        change = F.cross_entropy(alone, Y) - F.cross_entropy(expected, Y)
        assert found["alone"]["loss_change"] == pytest.approx(change.item(), abs=1e-6)
        accuracy = (rest.argmax(1) == Y).double().mean().item()
        assert found["all_but"]["accuracy"] == pytest.approx(accuracy)


@torch.no_grad()
def test_batches_count_together():
    graph = graph_of(Net())
    whole = run(graph)
    parts = run(graph, [({"x": X[:4]}, Y[:4]), ({"x": X[4:]}, Y[4:])], num_batches=2)
    for name in "abc":
        one, two = (info["layers"][name]["int6"]["alone"] for info in (whole, parts))
        assert two == pytest.approx(one, rel=1e-4, abs=1e-6)


class Planted(nn.Module):
    """Layers that int8 suits, but for one, whose weights are so small that they round to zero."""

    def __init__(self, bad, depth=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(depth))
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight)
        self.bad = bad
        with torch.no_grad():
            self.layers[bad].weight.div_(100)

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x) * 100 if i == self.bad else layer(x)
        return x


@pytest.mark.parametrize("bad", [0, 2, 5])
def test_a_planted_bad_layer_is_found(bad):
    info = run(graph_of(Planted(bad)), [{"x": X}])
    assert {entry["node"] for entry in info["ranking"][:2]} == {f"layers_{bad}"}
    assert info["ranking"][0]["sqnr"] == 0.0  # nothing of the signal is left
    assert info["ranking"][-1]["sqnr"] > 20
    spared = info["layers"][f"layers_{bad}"]["int8"]["all_but"]["sqnr"]
    assert spared > info["rounded"]["int8"]["sqnr"] + 10  # all is well once it stays in float


def test_it_takes_about_one_forward_for_each_layer_and_format():
    depth = 12
    info = run(graph_of(nn.Sequential(*(nn.Linear(8, 8) for _ in range(depth)))), [{"input": X}])
    assert len(info["ranking"]) == 2 * depth
    assert info["forwards"] <= 2 * (depth + 3)  # twice half a forward for each


def test_what_costs_nothing_has_no_noise(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU())
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(8))
    info = run(graph_of(model), [{"input": X.round()}], file_name=tmp_path / "s.json")
    assert info["layers"]["_0"]["int8"]["alone"]["sqnr"] == math.inf
    written = json.loads((tmp_path / "s.json").read_text())
    assert written["layers"]["_0"]["int8"]["alone"]["sqnr"] is None


def test_nodes_are_chosen_as_everywhere_functions_too():
    info = run(graph_of(Net()), by="name", nodes=["matmul", "b"])
    assert set(info["layers"]) == {"b", "matmul"}
    assert all(row["int8"]["alone"]["sqnr"] < math.inf for row in info["layers"].values())


def test_loss_may_be_yours_and_rank():
    def off_by(output, target):
        return (output[:, 0] - target).abs().mean()

    data = [(X, torch.zeros(16))]
    info = run(graph_of(Net()), data, loss=off_by, rank_by="loss")
    losses = [entry["loss"] for entry in info["ranking"]]
    assert losses == sorted(losses, reverse=True)
    assert "accuracy" not in info["baseline"]


def test_the_report_is_a_table_and_a_picture(caplog, tmp_path):
    with caplog.at_level("INFO", "chop"):
        info = run(graph_of(Net()), silent=False, picture=tmp_path / "s.svg", rank_by="accuracy")
    rows = caplog.messages[1].strip().splitlines()
    assert len(rows) == 2 + 6
    assert [cell.strip() for cell in rows[2].split("|")][1] == info["ranking"][0]["node"]
    root = ET.fromstring((tmp_path / "s.svg").read_text())
    shown = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "int6: decrease of the accuracy, %" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"formats": {}}, "formats is empty; give"),
        ({"num_batches": 0}, "option 'num_batches' is 0"),
        ({"input_generator": []}, "yields no batch"),
        ({"input_generator": 3}, "a int does not"),
        ({"input_generator": ["x"]}, "input_generator gave str"),
        ({"input_generator": [{"y": X}]}, "unknown input 'y'"),
        ({"input_generator": [X], "rank_by": "loss"}, "rank_by = 'loss' needs targets"),
        ({"input_generator": [(X, X)], "rank_by": "accuracy"}, "needs classes as targets"),
        ({"input_generator": [X, (X, Y)], "num_batches": 2}, "targets with some batches only"),
        ({"nodes": ["conv2d"]}, "no node of the graph matches conv2d; name others"),
        ({"formats": {"int8": {"name": "integr"}}}, "did you mean 'integer'"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(options, message, caplog):
    given = {"formats": {"int8": INT8}, "input_generator": [X], "silent": True}
    with pytest.raises(PassArgsError, match=message):
        sensitivity_analysis_pass(graph_of(Net()), {**given, **options})
    assert not caplog.messages


class Hidden(nn.Module):
    """Writes through a view into what is read later."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        y[:, :4].add_(1)
        return y * 2


def test_a_graph_whose_activations_cannot_be_remembered_is_refused():
    with pytest.raises(PassArgsError, match="cannot be remembered"):
        run(graph_of(Hidden()))
