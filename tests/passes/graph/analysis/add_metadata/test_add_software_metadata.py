"""A place for statistics beside every tensor, as the seeds print it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.passes import (
    Pipeline,
    add_software_metadata_analysis_pass,
    verify_metadata_analysis_pass,
)

PREPARE = Pipeline(["init_metadata", "add_common_metadata", "add_software_metadata"])
EMPTY = {"stat": {}}


class Calls(nn.Module):
    def __init__(self, fn, **layers):
        super().__init__()
        self.fn = fn
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.fn(self, x)


def software(fn, x=None, at=-2, **layers):
    graph = MaseGraph(Calls(fn, **layers))
    x = torch.ones(2, 3) if x is None else x
    PREPARE(graph, {"add_common_metadata": {"dummy_in": {"x": x}}})
    assert verify_metadata_analysis_pass(graph)[1] == {}
    return list(graph.nodes)[at].meta["mase"]["software"]


def entries(*names):
    return dict.fromkeys(names, EMPTY)


def test_batch_norm_lists_its_statistics_but_not_its_counter():
    assert software(lambda m, x: m.bn(x), bn=nn.BatchNorm1d(3)) == {
        "args": entries("data_in_0", "weight", "bias", "running_mean", "running_var"),
        "results": entries("data_out_0"),
    }


def test_a_convolution_lists_its_parameters():
    image = torch.ones(1, 3, 8, 8)
    assert software(lambda m, x: m.conv(x), image, conv=nn.Conv2d(3, 4, 3)) == {
        "args": entries("data_in_0", "weight", "bias"),
        "results": entries("data_out_0"),
    }


def test_a_layer_without_bias_lists_none():
    found = software(lambda m, x: m.fc(x), fc=nn.Linear(3, 2, bias=False))
    assert found["args"] == entries("data_in_0", "weight")


def test_an_input_has_results_only_and_the_output_arguments_only():
    assert software(lambda m, x: x * 2, at=0) == {"results": entries("data_out_0")}
    assert software(lambda m, x: x * 2, at=-1) == {"args": entries("data_in_0")}
    assert software(lambda m, x: (x, x * 2), at=-1) == {"args": entries("data_in_0", "data_in_1")}


def test_an_attribute_has_results_only():
    found = software(lambda m, x: x * m.scale, at=1, scale=nn.Parameter(torch.ones(3)))
    assert found == {"results": entries("data_out_0")}


def test_a_number_has_no_statistics():
    assert software(lambda m, x: x.size(0)) == {"args": entries("data_in_0"), "results": {}}


@pytest.mark.parametrize(
    ("fn", "names"),
    [
        (lambda m, x: F.linear(x, m.w, m.b), ("data_in_0", "weight", "bias")),
        (lambda m, x: F.layer_norm(x, (3,), m.b, m.b), ("data_in_0", "weight", "bias")),
        (
            lambda m, x: F.batch_norm(x, m.b, m.b, m.b, m.b),
            ("data_in_0", "running_mean", "running_var", "weight", "bias"),
        ),
        (lambda m, x: x + x, ("data_in_0", "data_in_1")),
        (lambda m, x: torch.cat([x, x, x]), ("data_in_0", "data_in_1", "data_in_2")),
        (lambda m, x: x * 2, ("data_in_0",)),
    ],
)
def test_functions_list_what_they_take_under_the_names_of_common(fn, names):
    layers = {"w": nn.Parameter(torch.ones(3, 3)), "b": nn.Parameter(torch.ones(3))}
    assert software(fn, **layers) == {"args": entries(*names), "results": entries("data_out_0")}


def test_every_stat_is_a_dict_of_its_own():
    graph = MaseGraph(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    PREPARE(graph, {"add_common_metadata": {"dummy_in": {"input": torch.ones(1, 3)}}})
    parts = [node.meta["mase"]["software"] for node in graph.nodes]
    stats = [entry["stat"] for part in parts for table in part.values() for entry in table.values()]
    assert len({id(stat) for stat in stats}) == len(stats)


def test_running_it_again_starts_with_empty_statistics():
    graph = MaseGraph(nn.Sequential(nn.ReLU()))
    PREPARE(graph, {"add_common_metadata": {"dummy_in": {"input": torch.ones(1, 3)}}})
    relu = list(graph.nodes)[1].meta["mase"]["software"]
    relu["args"]["data_in_0"]["stat"]["mean"] = 1
    relu["mine"] = 2
    add_software_metadata_analysis_pass(graph)
    assert list(graph.nodes)[1].meta["mase"]["software"] == {
        "args": entries("data_in_0"),
        "results": entries("data_out_0"),
    }
