"""Average bits are exact: per layer, and over all elements of all layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph import add_common_metadata_analysis_pass, init_metadata_analysis_pass
from chop.passes.graph.analysis.quantization import calculate_avg_bits_mg_analysis_pass
from chop.passes.graph.transforms import quantize_transform_pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.fc1 = nn.Linear(16, 6)
        self.fc2 = nn.Linear(6, 5)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(self.conv(x).flatten(1))))


X = torch.randn(3, 2, 4, 4)
SIZES = {"conv": (72, 96), "fc1": (96, 48), "fc2": (30, 18)}  # of weights and inputs


def graph_of(model, x, *rounds):
    graph, _ = init_metadata_analysis_pass(MaseGraph(model), None)
    add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": x}, "add_value": False})
    for args in rounds:
        quantize_transform_pass(graph, args)
    return graph


def config(name, data_in, weight):
    data = {f"data_in_{key}": value for key, value in data_in.items()}
    return {"config": {"name": name, **data, **{f"weight_{k}": v for k, v in weight.items()}}}


def integer(data_in, weight):
    return config("integer", *({"width": w, "frac_width": w // 2} for w in (data_in, weight)))


def bits_of(graph, **options):
    return calculate_avg_bits_mg_analysis_pass(graph, options)[1]


def test_integers_count_with_their_width():
    args = {"by": "type", "linear": integer(8, 8), "conv2d": integer(8, 8)}
    info = bits_of(graph_of(Net(), X, args))
    assert (info["w_avg_bit"], info["data_avg_bit"]) == (8.0, 8.0)


def test_the_average_is_over_elements_and_float_counts_as_32():
    args = {"by": "name", "fc1": integer(8, 4), "fc2": integer(6, 2)}
    info = bits_of(graph_of(Net(), X, args))
    weights, data = {"conv": 32, "fc1": 4, "fc2": 2}, {"conv": 32, "fc1": 8, "fc2": 6}
    count = [sum(sizes[i] for sizes in SIZES.values()) for i in (0, 1)]
    assert info["w_avg_bit"] == sum(weights[n] * SIZES[n][0] for n in SIZES) / count[0]
    assert info["data_avg_bit"] == sum(data[n] * SIZES[n][1] for n in SIZES) / count[1]
    assert info["layers"] == {n: {"w_avg_bit": weights[n], "data_avg_bit": data[n]} for n in SIZES}


def test_half_precision_counts_as_16():
    assert bits_of(graph_of(Net().bfloat16(), X.bfloat16()))["w_avg_bit"] == 16


def test_the_predecessors_sum_is_there_on_request():
    args = {"by": "type", "linear": integer(8, 8), "conv2d": integer(8, 8)}
    info = bits_of(graph_of(Net(), X, args), legacy_sum=True)
    assert (info["w_avg_bit"], info["data_avg_bit"]) == (12.0, 12.0)


def test_blocks_share_their_exponent_and_ragged_ones_count_as_they_are():
    given = {"width": 8, "exponent_width": 8, "exponent_bias": None, "block_size": [1, 4]}
    args = {"by": "type", "linear": config("block_fp", given, given)}
    layers = bits_of(graph_of(Net(), X, args))["layers"]
    assert layers["fc1"] == {"w_avg_bit": 8 + 8 / 4, "data_avg_bit": 8 + 8 / 4}
    # rows of 6 are blocks of 4 and 2
    assert layers["fc2"] == {"w_avg_bit": 8 + 8 * 2 / 6, "data_avg_bit": 8 + 8 * 2 / 6}


def test_blocks_of_an_activation_never_span_the_batch():
    given = {"width": 4, "exponent_width": 8, "exponent_bias": None, "block_size": [-1, -1]}
    args = {"by": "type", "linear": config("block_fp", given, given)}
    layers = bits_of(graph_of(Net(), X, args))["layers"]
    assert layers["fc1"] == {"w_avg_bit": 4 + 8 / 96, "data_avg_bit": 4 + 8 * 3 / 48}


def test_microscaling_counts_its_scales():
    given = {"width": 4, "block_size": [16]}
    args = {"by": "name", "fc1": config("mxint", given, given)}
    assert bits_of(graph_of(Net(), X, args))["layers"]["fc1"]["w_avg_bit"] == 4 + 8 / 16


def test_options_beside_the_precision_count():
    given = {"width": 5, "exponent_bias": 7, "zero": True}
    args = {"by": "name", "fc1": config("log", given, given)}
    assert bits_of(graph_of(Net(), X, args))["layers"]["fc1"]["w_avg_bit"] == 6


def test_bypassed_layers_count_as_what_they_compute_in():
    bypassed = {"config": {**integer(4, 4)["config"], "bypass": True}}
    args = {"by": "type", "linear": bypassed, "conv2d": bypassed}
    assert bits_of(graph_of(Net(), X, args))["w_avg_bit"] == 32


def test_a_layer_that_is_called_twice_has_its_weights_once():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.second(self.first(self.first(x)))

    args = {"by": "regex_name", "first.*": integer(8, 4), "second": integer(8, 8)}
    info = bits_of(graph_of(Shared(), torch.randn(2, 4), args))
    assert info["w_avg_bit"] == 6
    assert info["layers"].keys() == {"first", "first_1", "second"}


def test_functional_layers_count_too():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(5, 4))

        def forward(self, x):
            return F.linear(x, self.w)

    args = {"by": "type", "linear": integer(6, 3)}
    info = bits_of(graph_of(Functional(), torch.randn(2, 4), args))
    assert (info["w_avg_bit"], info["data_avg_bit"]) == (3, 6)


@pytest.mark.parametrize("legacy_sum", [False, True])
def test_a_graph_without_such_layers_counts_as_float(legacy_sum):
    info = bits_of(relu_graph(), legacy_sum=legacy_sum)
    assert info == {"w_avg_bit": 32.0, "data_avg_bit": 32.0, "layers": {}}


def relu_graph():
    class Relu(nn.Module):
        def forward(self, x):
            return x.relu()

    return graph_of(Relu(), torch.ones(1))
