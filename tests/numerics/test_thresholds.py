"""Ranges chosen from histograms equal those of other packages within one bin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from chop.numerics.affine import Affine
from chop.numerics.histograms import Histogram
from chop.numerics.thresholds import entropy, minmax, mse, percentile, range_of, with_zeros


def samples(kind: str, number: int = 20_000) -> torch.Tensor:
    """Return values of a distribution that calibration meets."""
    x = torch.randn(number, generator=torch.Generator().manual_seed(3))
    return {
        "normal": x,
        "relu": x.relu() + 0.0,
        "heavy": x * x.abs() ** 2,
        "shifted": x + 2,
        "uniform": torch.linspace(-3, 5, number),
    }[kind]


KINDS = ["normal", "relu", "heavy", "shifted", "uniform"]


class TestRanges:
    def test_minmax_is_exact(self):
        assert minmax(Histogram.of(torch.tensor([-0.3, 0.1, 0.7]))) == pytest.approx((-0.3, 0.7))

    def test_a_percentile_leaves_out_the_largest_magnitudes(self):
        x = torch.cat([torch.linspace(-1, 1, 9900), torch.full((100,), 50.0)])
        low, high = percentile(Histogram.of(x, 4096), 98.9)
        assert -1 <= low < -0.9
        assert 0.9 < high < 1.1

    def test_percentiles_of_both_ends(self):
        histogram = Histogram.of(torch.linspace(0, 1, 10001))
        low, high = percentile(histogram, 90, symmetric=False)
        assert (low, high) == (pytest.approx(0.05, abs=0.002), pytest.approx(0.95, abs=0.002))

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("width", [4, 8])
    def test_no_other_range_has_a_smaller_squared_error(self, kind, width):
        x, signed = samples(kind, 4000), kind != "relu"
        histogram = Histogram.of(x, 512)
        size = 2 * histogram.limits.item() / 512
        chosen = mse(histogram, width, signed=signed)[1]
        most = 2 ** (width - signed) - 1
        values, weights = histogram.points()

        def error(threshold: float) -> float:
            fmt = Affine(width, signed=signed, scale=threshold / most)
            return float(((fmt.round(values) - values).square() * weights).sum())

        last = math.ceil(x.abs().max().item() / size)
        best = min(np.arange(1, last + 1) * size, key=error)
        assert error(chosen) <= error(best) * (1 + 1e-6)

    @pytest.mark.parametrize("method", ["minmax", "percentile", "mse", "entropy"])
    def test_zeros_alone_have_no_range(self, method):
        assert range_of(Histogram.of(torch.zeros(9)), method, 8) == (0.0, 0.0)

    @pytest.mark.parametrize("method", ["minmax", "percentile", "mse", "entropy"])
    def test_a_constant_is_covered(self, method):
        _, high = range_of(Histogram.of(torch.full((9,), 0.3), 64), method, 8)
        assert 0.29 < high <= 0.32


@pytest.mark.slow
class TestOnnxRuntime:
    """Its calibrators get the same counts and edges, and must choose the same bin or the next."""

    @pytest.fixture
    def calibrator(self, package) -> Any:
        package("onnxruntime")
        return package("onnxruntime.quantization.calibrate").HistogramCollector

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("symmetric", [True, False])
    @pytest.mark.parametrize("percent", [90.0, 99.0, 99.999])
    def test_percentile(self, calibrator, kind, symmetric, percent):
        histogram = Histogram.of(samples(kind))
        counts, edges = with_zeros(histogram).numpy(), histogram.edges().numpy()
        if symmetric:
            half = len(counts) // 2
            counts, edges = counts[half:] + counts[:half][::-1], edges[half:]
        theirs = calibrator("percentile", symmetric, len(counts), 128, percent, "same")
        theirs.histogram_dict = {"x": (counts, edges, *map(np.float64, minmax(histogram)))}
        low, high = theirs.compute_percentile()["x"][:2]
        size = 2 * histogram.limits.item() / histogram.bins
        ours = percentile(histogram, percent, symmetric)
        assert ours == (pytest.approx(low, abs=1.001 * size), pytest.approx(high, abs=1.001 * size))

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("levels", [16, 128])
    def test_entropy(self, calibrator, kind, levels):
        histogram = Histogram.of(samples(kind), 512)
        facts = (with_zeros(histogram).numpy(), histogram.edges().numpy())
        theirs = calibrator("entropy", False, 512, levels, 99.999, "same")
        ends = theirs.get_entropy_threshold((*facts, *map(np.float64, minmax(histogram))), levels)
        size = 2 * histogram.limits.item() / histogram.bins
        ours = entropy(histogram, levels)
        assert ours == tuple(pytest.approx(float(end), abs=1.001 * size) for end in ends)

    @pytest.mark.parametrize("kind", KINDS)
    def test_minmax(self, package, kind, tmp_path):
        onnx = package("onnx")
        runtime = package("onnxruntime.quantization.calibrate")
        file = tmp_path / "identity.onnx"
        helper, kind_of = onnx.helper, onnx.TensorProto.FLOAT
        ends = [helper.make_tensor_value_info(name, kind_of, [None]) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), file)
        batches = [{"x": part.numpy()} for part in samples(kind).split(5000)]
        reader = type(
            "R", (runtime.CalibrationDataReader,), {"get_next": lambda _: next(left, None)}
        )
        left = iter(batches)
        theirs = runtime.create_calibrator(file, ["Relu"], str(tmp_path / "augmented.onnx"))
        theirs.collect_data(reader())
        low, high = theirs.compute_data()["x"].range_value
        histogram = Histogram.empty()
        for batch in batches:
            histogram.add(torch.from_numpy(batch["x"]))
        assert minmax(histogram) == (low.item(), high.item())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestBrevitas:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("percent", [90.0, 99.0, 99.999])
    def test_percentile(self, package, kind, percent):
        stats = package("brevitas.core.stats")
        x = samples(kind)
        theirs = stats.AbsPercentile(percent, None)(x).item()
        histogram = Histogram.of(x)
        low, high = percentile(histogram, percent)
        size = 2 * histogram.limits.item() / histogram.bins
        wanted = min(theirs, max(-low, high))
        assert max(-low, high) == pytest.approx(wanted, abs=1.001 * size)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("width", [3, 4, 8])
    def test_mse(self, package, kind, width):
        stats = package("brevitas.core.stats.stats_op")
        views = package("brevitas.core.function_wrapper.shape")
        histogram = Histogram.of(samples(kind), 512)
        values, weights = histogram.points()
        x = values.repeat_interleave((weights * 2).long())  # the histogram itself as a tensor
        signed = kind != "relu"
        most = 2 ** (width - signed) - 1
        size = 2 * histogram.limits.item() / histogram.bins
        last = math.ceil(x.abs().max().item() / size)

        class Proxy(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                threshold = float(search.internal_candidate)
                return Affine(width, signed=signed, scale=threshold / most).round(x)

        largest = lambda x: torch.tensor(last * size, dtype=torch.float64)  # noqa: E731
        settings = (views.OverTensorView(), last, stats.MSEUniformStepBase(last))
        search = stats.MSE(Proxy(), largest, *settings, mse_search_method="grid")
        theirs = float(search(x))
        assert mse(histogram, width, signed=signed)[1] == pytest.approx(theirs, abs=1.001 * size)
