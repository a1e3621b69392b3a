"""Calibrate: histograms of all activations in one pass, and refusals that change nothing."""

from __future__ import annotations

import logging
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

from chop.ir import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.numerics.histograms import Histogram
from chop.passes import PassArgsError, Pipeline
from chop.passes.graph import calibrate_analysis_pass, quantize_transform_pass
from chop.passes.graph.analysis.calibrate import budget

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(3))
ENTRY = "calibration"


class Net(nn.Module):
    """A layer, an in-place ReLU, a sum and a product with a constant."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.5)

    def forward(self, x):
        y = self.relu(self.a(x))
        return self.b(self.drop(y + x) * 0.3)


def graph_of(model=None, x=X):
    graph = MaseGraph(model or Net())
    options = {"dummy_in": {graph.inputs[0].target: x}, "add_value": False}
    steps = ["init_metadata", ("add_common_metadata", options), "add_software_metadata"]
    return Pipeline(steps)(graph)[0]


def batches(x=X, size=10):
    return [{"x": part} for part in x.split(size)]


def run(graph, data=None, **options):
    given = {"input_generator": batches() if data is None else data, "silent": True}
    return calibrate_analysis_pass(graph, {**given, **options})[1]


def entry(graph, node, operand="data_in_0", part="args"):
    nodes = {n.name: n for n in graph.nodes}
    return mase(nodes[node]).software[part][operand].get(ENTRY)


def histogram(graph, node, operand="data_in_0", part="args"):
    return Histogram.from_plain(entry(graph, node, operand, part)["histogram"])


class TestHistograms:
    def test_every_operand_and_result_has_that_of_all_batches(self):
        graph = graph_of()
        run(graph)
        model = graph.model.eval()
        with torch.no_grad():
            hidden = model.a(X).relu()
            summed = hidden + X
        wanted = {("a", "data_in_0"): X, ("add", "data_in_0"): hidden, ("add", "data_in_1"): X}
        wanted[("mul", "data_in_0")] = summed
        for (node, operand), values in wanted.items():
            found = histogram(graph, node, operand)
            assert found.total == values.numel()
            assert found.high.item() == pytest.approx(values.max().item(), rel=1e-6)
            assert torch.equal(found.counts, Histogram.of(values).counts)
        assert histogram(graph, "add", "data_out_0", "results").total == summed.numel()

    def test_dropout_is_off_and_the_model_and_random_numbers_stay(self):
        graph = graph_of()
        graph.model.train()
        weights = [p.clone() for p in graph.model.parameters()]
        state = torch.get_rng_state()
        run(graph)
        assert graph.model.training
        assert torch.equal(torch.get_rng_state(), state)
        same = zip(weights, graph.model.parameters(), strict=True)
        assert all(torch.equal(old, new) for old, new in same)
        assert histogram(graph, "mul").zeros.item() == 0

    def test_channels_have_histograms_of_their_own(self):
        graph = graph_of()
        run(graph, per_channel=True, bins=64)
        found = histogram(graph, "a")
        assert (found.axis, found.counts.shape) == (1, (6, 64))
        assert torch.equal(found.high, X.double().amax(0))

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize(
        ("options", "samples"),
        [
            ({"num_samples": 25}, 25),
            ({"num_batches": 3}, 30),
            ({"num_samples": 4}, 4),
        ],
    )
    def test_as_many_samples_as_wanted(self, options, samples):
        graph = graph_of()
        run(graph, **options)
        assert histogram(graph, "a").total == samples * 6

    def test_memory_does_not_grow_when_later_batches_are_larger(self):
        graph = graph_of()
        run(graph, [{"x": X * 10.0**k} for k in range(4)], num_samples=160)
        found = histogram(graph, "a")
        assert found.counts.shape == (1, 2048)
        assert found.total == 160 * 6

    @pytest.mark.slow
    def test_a_second_run_replaces_the_first(self):
        graph = graph_of()
        run(graph, method="mse")
        run(graph, batches(X[:10]), method="minmax", num_samples=10)
        assert entry(graph, "a")["method"] == "minmax"
        assert histogram(graph, "a").total == 60

    def test_saving_keeps_them(self, tmp_path):
        graph = graph_of()
        run(graph, method="mse")
        again = MaseGraph.from_checkpoint(graph.export(tmp_path / "graph"))
        assert torch.equal(histogram(again, "a").counts, histogram(graph, "a").counts)
        config = {"name": "integer"}
        for operand in ("data_in", "weight"):
            config |= {f"{operand}_width": 6, f"{operand}_frac_width": "calibrated"}
        options = {"by": "type", "linear": {"config": config}}
        found = [quantize_transform_pass(g, options)[1]["calibrated"] for g in (graph, again)]
        assert found[0] == found[1]


class Words(nn.Module):
    """A table of words, and a mask of those at the end."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(9, 6), nn.Linear(6, 3)

    def forward(self, x):
        words = self.table(x)
        return self.last(torch.where((x > 1).unsqueeze(-1), words, torch.zeros_like(words)))


@pytest.mark.parametrize("name", ["integer", "affine"])
def test_indices_and_masks_are_left_alone(name):
    words = torch.randint(9, (12, 5))
    graph = graph_of(Words(), words)
    rows = run(graph, [{"x": words}], num_samples=12, method="mse")["calibrated"]
    operands = {(row["Node"], row["Operand"]) for row in rows}
    assert {("table", "weight"), ("last", "data_in")} <= operands
    assert ("table", "data_in") not in operands
    fractions = {"data_in_frac_width": "calibrated", "weight_frac_width": "calibrated"}
    config = {"name": name, "data_in_width": 8, "weight_width": 8}
    config |= fractions if name == "integer" else {}
    quantize_transform_pass(graph, {"by": "type", "default": {"config": config}})
    assert graph.model.table.formats["weight"].bits == 8
    assert graph.model(words).isfinite().all()


class TestTable:
    def test_it_has_each_operand_at_each_width(self, caplog):
        graph = graph_of()
        with caplog.at_level(logging.INFO, logger="chop"):
            rows = run(graph, widths=[4, 8], silent=False, method="mse")["calibrated"]
        chosen = {(row["Node"], row["Operand"], row["Width"]): row for row in rows}
        assert {("a", "data_in", 4), ("a", "weight", 8), ("b", "bias", 4)} <= chosen.keys()
        row = chosen["a", "data_in", 8]
        assert (row["Min"], row["Max"]) == (X.min().item(), X.max().item())
        assert row["Signed"]
        assert row["To"] == pytest.approx((2**7 - 1) * 2.0 ** -row["Fraction"])
        assert "| a      | data_in   |" in caplog.text

    def test_the_picture_shows_what_is_clipped(self, tmp_path):
        data = torch.cat([X, torch.full((1, 6), 60.0)])
        run(
            graph_of(), batches(data, 41), picture=str(tmp_path / "c.svg"), widths=[3], method="mse"
        )
        root = ET.parse(tmp_path / "c.svg").getroot()
        fills = {rect.get("fill") for rect in root.iter("{http://www.w3.org/2000/svg}rect")}
        assert {"#3b6fb6", "#d1495b"} <= fills
        texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        assert "a data_in, 3 bits" in texts


def poisoned(value):
    x = X.clone()
    x[13, 2] = value
    return x


class TestBadInput:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (7, r"pass 'calibrate' needs an input_generator to .* not int"),
            ([], "input_generator yields no batches; it must yield at least one"),
            (iter(()), "input_generator yields no batches; it must yield at least one"),
            ([{"x": X[:0]}], "input_generator yields an empty batch"),
            ([X], "input_generator yields dicts such as"),
            ([{"y": X}], "unknown input 'y'"),
            (batches(poisoned(float("nan"))), "data_in_0 of node 'a' .* NaN or infinite values"),
            (batches(poisoned(float("inf"))), "data_in_0 of node 'a' .* NaN or infinite values"),
        ],
        ids=["no-data", "none", "exhausted", "empty", "tensor", "name", "nan", "inf"],
    )
    def test_one_sentence_and_nothing_changed(self, data, text):
        graph = graph_of()
        with pytest.raises(PassArgsError, match=text) as caught:
            run(graph, data)
        assert "\n" not in str(caught.value)
        assert entry(graph, "a") is None

    def test_without_data(self):
        with pytest.raises(PassArgsError, match=r"needs an input_generator to .* not NoneType"):
            calibrate_analysis_pass(graph_of())

    def test_nothing_of_an_earlier_run_is_lost_when_the_next_one_fails(self):
        graph = graph_of()
        run(graph)
        with pytest.raises(PassArgsError):
            run(graph, batches(poisoned(float("nan"))))
        assert histogram(graph, "a").total == X.numel()

    def test_fewer_samples_than_a_batch_are_all_used(self, caplog):
        graph = graph_of()
        run(graph, [{"x": X[:3]}])
        assert histogram(graph, "a").total == 18
        assert "The data ended after 3 of the 512 requested samples" in caplog.text

    @pytest.mark.slow
    def test_fewer_batches_than_wanted(self, caplog):
        run(graph_of(), batches(), num_batches=9)
        assert "The data ended after 4 of the 9 requested batches" in caplog.text

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("method", ["output", "mse", "minmax", "percentile", "entropy"])
    @pytest.mark.parametrize("value", [0.0, 0.7])
    def test_a_constant_channel_has_a_sensible_range(self, method, value):
        x = X.clone()
        x[:, 2] = value
        graph = graph_of()
        run(graph, batches(x), method=method, per_channel=True, bins=256)
        by_name = {"data_in_width": 8, "data_in_axis": 1, "weight_width": 8, "bias_width": 8}
        table = {"config": {"name": "affine", **by_name}}
        quantize_transform_pass(graph, {"by": "name", "a": table})
        scale = graph.model.a.data_in_scale
        assert scale.shape == (6,)
        assert scale.isfinite().all()
        assert (scale > 0).all()
        assert graph.model.a.q("data_in", x)[:, 2].numpy() == pytest.approx(value, abs=0.01)

    def test_a_graph_without_anything_to_quantise_is_refused(self):
        class Plain(nn.Module):
            def forward(self, x):
                return x.flatten()

        with pytest.raises(PassArgsError, match="no node that can be quantized"):
            run(graph_of(Plain()))

    def test_a_quantised_graph_is_refused(self):
        graph = graph_of()
        numbers = {"data_in_width": 8, "data_in_frac_width": 4}
        numbers |= {"weight_width": 8, "weight_frac_width": 6}
        quantize_transform_pass(
            graph, {"by": "name", "a": {"config": {"name": "integer"} | numbers}}
        )
        rule = "needs a float graph, but node 'a' is quantised; calibrate first, then quantise"
        with pytest.raises(PassArgsError, match=rule):
            run(graph)
        assert entry(graph, "b") is None

    def test_a_share_in_place_of_a_percentage(self):
        rule = r"percentile must be a percentage from 50 to 100, not 0.99; did you mean 99\?$"
        with pytest.raises(PassArgsError, match=rule):
            calibrate_analysis_pass.check({"percentile": 0.99})
        with pytest.raises(PassArgsError, match=r"from 50 to 100, not 9$"):
            calibrate_analysis_pass.check({"percentile": 9})

    def test_samples_and_batches_together(self):
        rule = "num_samples and num_batches cannot both be given; leave out one of them"
        with pytest.raises(PassArgsError, match=rule):
            calibrate_analysis_pass.check({"num_samples": 20, "num_batches": 1})


def test_calibration_in_inference_mode_counts_the_same():
    graph, other = graph_of(), graph_of()
    other.model.load_state_dict(graph.model.state_dict())
    run(graph)
    with torch.inference_mode():
        run(other, batches(X.clone()))
    for name in ("a", "relu", "b"):
        assert torch.equal(histogram(graph, name).counts, histogram(other, name).counts)


def test_what_was_calibrated_is_returned_in_silence_too(caplog):
    graph = graph_of()
    with caplog.at_level(logging.INFO):
        rows = run(graph, batches(), num_samples=40, widths=[6])["calibrated"]
    assert {(row["Node"], row["Operand"]) for row in rows} >= {("a", "data_in"), ("b", "weight")}
    assert not caplog.messages


def test_the_list_of_options_shows_the_number_of_samples():
    written = calibrate_analysis_pass.written_options()
    assert any(line.startswith("num_samples") and line.endswith("= 512") for line in written)


class TestCostOfTheMethodOutput:
    """The number of samples that are kept is bounded by the operations that they cost."""

    def kept(self, graph):
        return len(graph.meta["calibration_inputs"]["inputs"][0])

    def test_a_small_network_has_all_samples(self):
        graph = graph_of()
        run(graph)
        assert self.kept(graph) == len(X)

    def test_a_larger_one_has_fewer(self, monkeypatch):
        graph = graph_of()
        monkeypatch.setattr(budget, "MAX_OPERATIONS", 50_000)
        run(graph)
        assert budget.MIN_SAMPLES <= self.kept(graph) < len(X)
        assert entry(graph, "a")["method"] == "output"

    def test_one_that_is_too_large_gets_mse_in_one_sentence(self, monkeypatch, caplog):
        graph = graph_of()
        monkeypatch.setattr(budget, "MAX_OPERATIONS", 1000)
        with caplog.at_level(logging.INFO, logger="chop"):
            run(graph, num_samples=len(X))
        assert len(caplog.messages) == 1
        assert "too large for the method 'output'; using 'mse'" in caplog.text
        assert entry(graph, "a")["method"] == "mse"
        assert "calibration_inputs" not in graph.meta
