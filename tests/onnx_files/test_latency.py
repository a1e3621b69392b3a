"""Latencies are quartiles of many runs, for every batch size."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.onnx import ModelBuilder
from chop.onnx.latency import BatchLatency, example_inputs, measure_latency
from chop.onnx.runtime import Runtime


def runtime(shape):
    builder = ModelBuilder("relu")
    x = builder.input("x", np.float32, shape)
    builder.output(builder.add("Relu", x), "y", np.float32, shape)
    return Runtime(builder.model())


class Counting:
    """A runtime that takes a millisecond more with every run, by a clock of its own."""

    def __init__(self, monkeypatch):
        self.batches, self.now = [], 0.0
        monkeypatch.setattr("chop.onnx.latency.time.perf_counter", lambda: self.now)

    def run(self, inputs):
        self.batches.append(len(inputs["x"]))
        self.now += len(self.batches) / 1e3


def test_quartiles_are_taken_after_the_warm_up(monkeypatch):
    counting = Counting(monkeypatch)
    sample = {"x": np.arange(3.0)}
    found = measure_latency(counting, batch_sizes=[2, 7], sample=sample, warm_up=4, runs=5)
    assert counting.batches == [2] * 9 + [7] * 9
    assert found[0].batch_size == 2
    quartiles = (found[0].lower, found[0].median, found[0].upper)
    assert quartiles == pytest.approx((6, 7, 8))  # of 5 to 9 ms
    assert found[1].per_sample == pytest.approx(16 / 7)


def test_random_batches_have_the_declared_shapes():
    batch = example_inputs(runtime(["batch", 3, 2]), 5)["x"]
    assert (batch.shape, batch.dtype) == ((5, 3, 2), np.float32)
    assert np.array_equal(batch, example_inputs(runtime(["batch", 3, 2]), 5)["x"])
    (found,) = measure_latency(runtime(["batch", 3]), batch_sizes=[4], warm_up=0, runs=3)
    assert isinstance(found, BatchLatency)
    assert 0 < found.lower <= found.median <= found.upper


@pytest.mark.parametrize(
    ("shape", "options", "said"),
    [
        (["batch", 3], {"batch_sizes": [0]}, "a batch has at least one sample, not 0"),
        (["batch", 3], {"runs": 0}, "runs must be at least 1, not 0"),
        (["batch", 3], {"warm_up": -1}, "warm_up must be at least 0, not -1"),
        ([2, 3], {"batch_sizes": [2, 8]}, "'x' has batches of 2 only; measure with that"),
        (["batch", "length"], {}, "more than the batch is free; give a sample"),
    ],
)
def test_wrong_settings_are_refused(shape, options, said):
    with pytest.raises(ValueError, match=said):
        measure_latency(runtime(shape), **options)
