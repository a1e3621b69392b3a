"""`latency` and `sqnr`."""

import time

import pytest
import torch
from torch import nn

from chop.actions.search.metrics.base import RUNNERS, check_options
from chop.actions.search.metrics.sqnr import LIMIT
from chop.passes.graph import quantize_transform_pass

from .conftest import graph_of, make_trial, with_splits


class Sleeper(nn.Module):
    """Takes its time, and notes for how many samples."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.sizes = seconds, []

    def forward(self, x):
        self.sizes.append(len(x))
        time.sleep(self.seconds)
        return x


def sleeping(jets, seconds, **options):
    trial = make_trial(jets.graph)
    trial.model = Sleeper(seconds)
    return RUNNERS["latency"](jets, **options)(trial), trial.model


def test_latency_is_in_milliseconds(jets):
    found, _ = sleeping(jets, 0.002, repeats=5)
    assert 2 <= found["latency"] < 1000  # as long as it sleeps, however busy the machine is


def test_latency_has_a_warm_up_and_as_many_repeats_as_asked_for(jets):
    _, model = sleeping(jets, 0, warmup=2, repeats=4, batch_size=7)
    assert model.sizes == [7] * 6


def test_one_slow_call_moves_neither_latency_nor_its_spread(jets, monkeypatch):
    calls = iter([0.0, 0.05] + [0.0] * 20)
    monkeypatch.setattr(Sleeper, "forward", lambda self, x: time.sleep(next(calls)))
    found, _ = sleeping(jets, 0, warmup=0, repeats=21)
    assert found["latency"] < 25
    assert found["latency_spread"] < 25


def test_a_batch_may_be_larger_than_the_split(jets):
    split = jets.data_module.val_dataset
    few = with_splits(jets, val_dataset=type(split)(split.x[:3], split.y[:3]))
    _, model = sleeping(few, 0, repeats=1, batch_size=8)
    assert set(model.sizes) == {8}


@pytest.mark.parametrize("given", [{"repeats": 0}, {"warmup": -1}, {"batch_size": 0}])
def test_latency_refuses_numbers_that_make_no_sense(given):
    with pytest.raises(ValueError, match=r"hw_runner\.latency\..*greater than or equal"):
        check_options(RUNNERS["latency"], given, "hw_runner.latency")


def test_sqnr_by_hand(jets, trial):
    class Louder(nn.Module):
        def forward(self, x):
            return 1.1 * jets.model(x)

    trial.model = Louder()
    assert RUNNERS["sqnr"](jets)(trial)["sqnr"] == pytest.approx(20, abs=1e-4)  # of float32


def test_the_parent_itself_has_all_the_signal_that_float_can_tell(jets, trial):
    assert RUNNERS["sqnr"](jets)(trial) == {"sqnr": LIMIT}
    assert pytest.approx(138.47, abs=0.01) == LIMIT


def test_a_network_that_gives_nothing_has_as_much_noise_as_signal(jets):
    model = nn.Linear(16, 5)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    trial = make_trial(graph_of(model, torch.ones(2, 16)))
    assert RUNNERS["sqnr"](jets)(trial)["sqnr"] == pytest.approx(0, abs=1e-9)


def test_more_bits_mean_more_signal(jets):
    found = []
    for width in (5, 7, 10, 14):
        graph = jets.graph.clone()
        config = {"name": "integer"} | {
            f"{operand}_{key}": value
            for operand in ("data_in", "weight", "bias")
            for key, value in (("width", width), ("frac_width", width - 4))
        }
        quantize_transform_pass(graph, {"by": "type", "linear": {"config": config}})
        found.append(RUNNERS["sqnr"](jets)(make_trial(graph))["sqnr"])
    assert found == sorted(found)
    assert found[-1] > found[0] + 20


def test_the_output_of_the_parent_is_computed_once(jets, trial):
    calls = []
    handle = jets.model.register_forward_hook(lambda *_: calls.append(1))
    runner = RUNNERS["sqnr"](jets, num_samples=64)
    runner(trial), runner(trial)
    handle.remove()
    assert calls == [1]
