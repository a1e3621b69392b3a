"""`runtime_latency`: what onnxruntime takes for the ONNX file of a design."""

import pytest

pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.actions.search.metrics.base import RUNNERS, check_options
from chop.passes.graph import quantize_transform_pass

from .conftest import make_trial

CONFIG = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
CONFIG |= {"weight_width": 6, "weight_frac_width": 4}


@pytest.fixture
def design(jets):
    graph = jets.graph.clone()
    quantize_transform_pass(graph, {"by": "type", "default": {"config": CONFIG}})
    return make_trial(graph)


def test_the_median_lies_between_the_quartiles_for_every_batch_size(jets, design):
    runner = RUNNERS["runtime_latency"](jets, batch_sizes=(1, 8), repeats=5, warmup=1, threads=2)
    found = runner(design)
    assert found.keys() == runner.metrics.keys()
    for name in ("runtime_latency", "runtime_latency_8"):
        assert 0 < found[f"{name}_lower"] <= found[name] <= found[f"{name}_upper"]


def test_a_parent_in_float_has_no_such_latency(jets):
    assert RUNNERS["runtime_latency"](jets).parent_metrics(make_trial(jets.graph)) == {}


def test_metrics_of_further_batch_sizes_are_known_before_the_search():
    runner = RUNNERS["runtime_latency"]
    options = {"batch_sizes": [1, 32]}
    for metric in ("runtime_latency", "runtime_latency_upper", "runtime_latency_32_lower"):
        assert runner.direction_of(metric, options) == "minimize"
    for metric in ("runtime_latency_1", "runtime_latency_64", "latency"):
        assert runner.direction_of(metric, options) is None


@pytest.mark.parametrize(
    "given", [{"batch_sizes": [0]}, {"threads": 0}, {"repeats": 0}, {"export_format": "qonnx"}]
)
def test_wrong_options_are_refused(given):
    with pytest.raises(ValueError, match=r"hw_runner\.runtime_latency\."):
        check_options(RUNNERS["runtime_latency"], given, "hw_runner.runtime_latency")
    check_options(RUNNERS["runtime_latency"], {"batch_sizes": [1, 4]}, "hw_runner.runtime_latency")
