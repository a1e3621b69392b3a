"""What verify_integers calls proven, where it counts mismatches, and how it compares outputs."""

import pytest
import torch
from torch import nn

from chop.integers import LinearCodes, Requantize
from chop.passes.graph import verify_integers_analysis_pass

from .checking import Calls, quantised

INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5, "weight_width": 6}
INTEGER |= {"weight_frac_width": 5}
AFFINE = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.037, "weight_width": 8}
AFFINE |= {"weight_axis": 0}
LINEAR = {"by": "type", "linear": {"config": INTEGER}}
SCALED = {"by": "type", "linear": {"config": AFFINE}}


def stack(*after):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3), *after)


def verified(graph, **options):
    return verify_integers_analysis_pass(graph, num_samples=8, silent=True, **options)[1]


def wrong_requantisations(monkeypatch):
    run = Requantize.run
    monkeypatch.setattr(Requantize, "run", lambda self, x: run(self, x) - 1)


def test_what_takes_an_observed_value_is_observed():
    info = verified(quantised(stack(), (4,), SCALED))
    assert {name: row["equality"] for name, row in info["layers"].items()} == {
        "_0": "observed",
        "_1": "observed",
        "_2_in": "observed",
        "_2": "observed",
    }
    assert info["proven"] == 0


def test_mismatches_of_float_scales_are_counted_where_values_are_rounded(monkeypatch):
    graph = quantised(stack(), (4,), SCALED)
    info = verified(graph, strict=True)
    assert (info["mismatches"], info["output_mismatches"]) == (0, 0)
    assert info["layers"]["_2_in"]["values"] > 0
    wrong_requantisations(monkeypatch)
    assert verified(graph)["layers"]["_2_in"]["mismatches"] > 0
    with pytest.raises(TypeError, match="node '_2_in' differs from the float simulation"):
        verified(graph, strict=True)


def test_an_output_with_float_scales_is_compared_within_the_tolerance(monkeypatch):
    graph = quantised(nn.Sequential(nn.Linear(4, 3)), (4,), SCALED)
    assert verified(graph, strict=True)["mismatches"] == 0
    run = LinearCodes.run
    monkeypatch.setattr(LinearCodes, "run", lambda self, x: run(self, x) + 50)
    with pytest.raises(TypeError, match="node '_0' differs from the float simulation"):
        verified(graph, strict=True)


@pytest.mark.parametrize("layer", [nn.Softmax(1), nn.LogSoftmax(1)])
def test_outputs_are_compared_after_a_softmax_that_is_left_out(layer, monkeypatch):
    graph = quantised(stack(layer), (4,), LINEAR)
    assert verified(graph)["output_mismatches"] == 0
    wrong_requantisations(monkeypatch)
    assert verified(graph)["output_mismatches"] > 0


def test_outputs_that_cannot_be_compared_are_said_not_to_be(caplog, tmp_path):
    layers = {"fc": nn.Linear(4, 3)}
    graph = quantised(Calls(lambda m, x: m["fc"](x).softmax(1).argmax(1), **layers), (4,), LINEAR)
    file = tmp_path / "table.txt"
    info = verified(graph, strict=True, file_name=file)
    assert info["output_mismatches"] is None
    assert file.read_text().splitlines()[-1].split("  ")[0] == "whole network"
    assert "not compared" in file.read_text().splitlines()[-1]
    assert "the outputs are not compared" in caplog.text


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (torch.full((2, 4), torch.nan), "the input contains NaN, which has no code; remove these"),
        (torch.zeros(2, 5), r"the input 'input' has the shape \[batch, 4\], not \[2, 5\]"),
    ],
)
def test_data_that_have_no_codes_are_refused_by_the_pass(batch, said):
    graph = quantised(stack(), (4,), LINEAR)
    with pytest.raises(TypeError, match=f"pass 'verify_integers': {said}"):
        verified(graph, input_generator=iter([{"input": batch}]))


def test_a_generator_that_ends_early_is_warned_of(caplog):
    graph = quantised(stack(), (4,), LINEAR)
    verified(graph, input_generator=iter([{"input": torch.zeros(3, 4)}]))
    assert "The data ended after 3 of the 8 requested samples" in caplog.text
