"""Whole networks: the integer graph, its report, its metadata and its verification."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.dataset import get_dataset_info
from chop.integers import IntegerGraph, Lookup, Requantize
from chop.ir.nested import separated
from chop.models import get_model
from chop.numerics import from_config
from chop.passes.graph import (
    conv_bn_fusion_transform_pass,
    to_integer_graph_transform_pass,
    verify_integers_analysis_pass,
)
from chop.passes.graph.transforms.integers.weights import weight_codes

from .checking import Calls, quantised

INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 5, "weight_width": 6}
INTEGER |= {"weight_frac_width": 5, "bias_width": 8, "bias_frac_width": 7}
DEFAULT = {"by": "type", "default": {"config": INTEGER}}
AFFINE = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.037, "weight_width": 8}


def trained(model, shape):
    """Give batch norms statistics of their own."""
    torch.manual_seed(0)
    model.train()(torch.randn(16, *shape))
    return model.eval()


def jsc_s():
    return trained(
        get_model("jsc-s", dataset_info=get_dataset_info("jsc"), pretrained=False), (16,)
    ), (16,)


def tiny():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval(), (4,)


def small_vgg():
    def pair(inputs, outputs):
        return [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        ]

    layers = [
        *pair(3, 8),
        *pair(8, 8),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 4),
    ]
    return trained(nn.Sequential(*layers), (3, 8, 8)), (3, 8, 8)


def residual():
    """Two paths that are added, joined, padded and averaged."""

    def forward(m, x):
        x = F.relu(m["stem"](F.pad(x, (1, 1, 1, 1))))
        x = F.relu(x + m["branch"](x))
        x = torch.cat([x, F.max_pool2d(m["side"](x), 3, 1, 1)], 1)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return F.log_softmax(m["head"](F.dropout(x, training=False)), -1)

    layers = {"stem": nn.Conv2d(3, 6, 3), "branch": nn.Conv2d(6, 6, 3, padding=1)}
    layers |= {"side": nn.Conv2d(6, 4, 1), "head": nn.Linear(10, 5)}
    return Calls(forward, **layers).eval(), (3, 6, 6)


NETWORKS = {"jsc-s": jsc_s, "small vgg": small_vgg, "residual": residual}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_its_simulation_layer_by_layer(name):
    torch.manual_seed(1)
    model, shape = NETWORKS[name]()
    graph = quantised(model, shape, DEFAULT)
    _, info = verify_integers_analysis_pass(graph, num_samples=32, silent=True)
    assert info["mismatches"] == 0
    assert info["proven"] > 3
    assert {row["equality"] for row in info["layers"].values()} <= {"proven", "observed"}
    assert all(row["values"] > 0 for row in info["layers"].values())


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_float_scales_equals_its_simulation_where_it_is_rounded(name):
    torch.manual_seed(1)
    model, shape = NETWORKS[name]()
    tables = {"by": "type", "default": {"config": AFFINE}}
    tables |= {op: {"config": {**AFFINE, "weight_axis": 0}} for op in ("linear", "conv2d")}
    _, info = verify_integers_analysis_pass(
        quantised(model, shape, tables), num_samples=256, silent=True
    )
    assert sum(row["values"] for row in info["layers"].values()) > 100_000
    assert info["mismatches"] == 0
    if name != "residual":  # its means have ties in integers that are none in float
        assert info["output_mismatches"] == 0


@pytest.mark.slow
def test_large_biases_with_float_scales_are_those_of_the_simulation():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 4))
    model[0].weight.data *= 0.1
    model[0].bias.data *= 20
    linear = {"config": {**AFFINE, "data_in_scale": 0.0137, "weight_axis": 0}}
    relu = {"config": {**AFFINE, "data_in_scale": 0.0193}}
    graph = quantised(model, (16,), {"by": "type", "linear": linear, "relu": relu})
    _, info = verify_integers_analysis_pass(graph, num_samples=4096, silent=True)
    assert info["layers"]["_1"]["values"] > 1_000_000
    assert info["mismatches"] <= 1  # so near to a tie that 31 bits of a quotient decide


def test_folded_networks_are_proven_as_a_whole_and_equal_in_float32():
    model, shape = small_vgg()
    graph = quantised(model, shape, {"by": "name"})
    conv_bn_fusion_transform_pass(graph)
    graph = quantised(graph.model, shape, DEFAULT)
    _, info = verify_integers_analysis_pass(graph, num_samples=32, silent=True)
    assert (info["observed"], info["mismatches"], info["output_mismatches"]) == (0, 0, 0)
    x = torch.randn(20, *shape)
    with torch.no_grad():
        assert torch.equal(graph.to_integers()(x), graph.model(x))


def test_a_wrong_interpreter_is_found_and_named(monkeypatch):
    graph = quantised(*tiny(), DEFAULT)
    run = Requantize.run
    monkeypatch.setattr(Requantize, "run", lambda self, x: run(self, x) - 1)
    _, info = verify_integers_analysis_pass(graph, num_samples=8, silent=True)
    assert info["mismatches"] > 0
    with pytest.raises(TypeError, match="node '_1' differs from the float simulation"):
        verify_integers_analysis_pass(graph, num_samples=8, silent=True, strict=True)


def test_sums_beyond_24_bits_are_observed_and_compared_in_float64():
    wide = {**INTEGER, "data_in_width": 16, "data_in_frac_width": 8, "weight_width": 16}
    wide |= {"weight_frac_width": 12}
    torch.manual_seed(0)
    graph = quantised(
        nn.Sequential(nn.Linear(30, 5)), (30,), {"by": "type", "linear": {"config": wide}}
    )
    _, info = verify_integers_analysis_pass(graph, num_samples=64, silent=True)
    row = info["layers"]["_0"]
    assert (row["equality"], row["mismatches"]) == ("observed", 0)
    assert row["accumulator_width"] > 25


def test_the_pass_keeps_the_graph_and_writes_widths_into_the_metadata():
    model, shape = jsc_s()
    graph = quantised(model, shape, DEFAULT)
    before = [(node.name, str(node.target)) for node in graph.nodes]
    same, info = to_integer_graph_transform_pass(graph)
    assert same is graph
    assert graph.meta["integers"] is info["integer_graph"]
    assert [(node.name, str(node.target)) for node in graph.nodes] == before
    entry = next(n for n in graph.nodes if n.name == "module_list_1_0").meta["mase"]["integers"]
    width = info["accumulator_widths"]["module_list_1_0"]
    assert entry["module_list_1_0"]["accumulator_width"] == width
    assert 10 < width < 24


def test_the_report_lists_every_node_with_its_bits():
    model, shape = residual()
    integers = quantised(model, shape, DEFAULT).to_integers()
    assert isinstance(integers, IntegerGraph)
    text = integers.report()
    assert text == str(integers)
    assert all(name in text for name in integers.nodes)
    assert "log_softmax at the end is left out" in text
    rows = {row["Node"]: row for row in integers.rows()}
    assert rows["x_codes"]["Type"] == "s8"
    assert rows["x_codes"]["Step"] == "2^-5"
    assert rows["layers_head"]["Accumulator"] == integers.codes("layers_head").width


def test_data_that_the_generator_yields_are_used():
    graph = quantised(*tiny(), DEFAULT)
    batches = [{"input": torch.randn(10, 4)}] * 3
    counts = []
    for count in (15, 20):
        data = iter(batches)
        options = {"input_generator": data, "num_samples": count, "silent": True}
        _, info = verify_integers_analysis_pass(graph, options)
        counts.append(info["layers"]["_2"]["values"])
    assert counts[1] - counts[0] == 5 * 2
    for wrong, said in (
        (iter([]), "yields no batches"),
        (3, "an iterator of dicts such as .*, not int"),
    ):
        with pytest.raises(TypeError, match=said):
            verify_integers_analysis_pass(graph, input_generator=wrong, silent=True)


def test_the_table_is_written_and_shown(tmp_path, caplog):
    file = tmp_path / "integers.txt"
    with caplog.at_level("INFO", logger="chop"):
        graph = quantised(*tiny(), DEFAULT)
        verify_integers_analysis_pass(graph, num_samples=4, file_name=file)
    assert "whole network" in file.read_text()
    assert "proven" in caplog.text


def test_a_softmax_at_the_end_keeps_the_classes_even_if_its_result_is_rounded():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Softmax(1))
    rounded = {**INTEGER, "data_out_width": 4, "data_out_frac_width": 3}
    tables = {"by": "type", "linear": {"config": INTEGER}, "softmax": {"config": rounded}}
    integers = quantised(model, (4,), tables).to_integers()
    plain = quantised(nn.Sequential(model[0]), (4,), {**tables, "softmax": {"config": INTEGER}})
    x = 4 * torch.randn(50, 4)
    logits = plain.to_integers()(x)
    in_format = from_config(INTEGER, "data_in")(logits.float())
    assert torch.equal(integers(x).float(), in_format)


@pytest.mark.parametrize("reciprocal", [lambda x: 2 / (x.abs() + 1), lambda x: x / 3])
def test_quotients_with_a_number_are_tables_that_can_be_verified(reciprocal):
    layers = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 2)}
    model = Calls(lambda m, x: m["two"](reciprocal(m["one"](x))), **layers)
    graph = quantised(model, (4,), DEFAULT)
    _, info = verify_integers_analysis_pass(graph, num_samples=8, silent=True)
    assert info["mismatches"] == 0


@dataclass
class Scores:
    probabilities: torch.Tensor
    rest: tuple[torch.Tensor, None]


@pytest.mark.parametrize(
    "result",
    [lambda p, y: {"probabilities": p, "rest": [y, None]}, lambda p, y: Scores(p, (y, None))],
)
def test_results_in_a_dict_or_a_dataclass_come_in_their_order(result):
    torch.manual_seed(0)
    layers = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 2)}
    model = Calls(lambda m, x: result(m["one"](x).softmax(1), m["two"](x)), **layers)
    x = torch.randn(5, 4)
    graph = quantised(model, (4,), {"by": "type", "linear": {"config": INTEGER}})
    logits, other = graph.to_integers()(x)
    _, (probabilities, rest) = separated(graph.model(x))
    assert torch.equal(logits.softmax(1), probabilities)
    assert torch.equal(other, rest)
    _, info = verify_integers_analysis_pass(graph, num_samples=32, silent=True)
    assert (info["mismatches"], info["output_mismatches"]) == (0, 0)


class Counting(nn.Module):
    """A network that counts its samples, and changes a value in place."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("samples", torch.zeros(()))

    def forward(self, x):
        self.samples.add_(x.shape[0])
        y = self.layer(x)
        y.add_(1.0)
        return y


def test_what_is_written_in_place_is_read_and_counters_are_left_out():
    graph = quantised(Counting(), (4,), DEFAULT)
    assert not any("samples" in name for name in graph.to_integers().nodes)
    _, info = verify_integers_analysis_pass(graph, num_samples=32, silent=True)
    assert (info["mismatches"], info["output_mismatches"]) == (0, 0)


def test_functions_in_a_row_are_one_table():
    layers = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 2)}
    model = Calls(lambda m, x: m["two"]((m["one"](x).abs() / 3).sqrt().cos()), **layers)
    graph = quantised(model, (4,), {"by": "type", "linear": {"config": INTEGER}})
    nodes = graph.to_integers().nodes.values()
    assert [node.name for node in nodes if isinstance(node.op, Lookup)] == ["cos"]
    _, info = verify_integers_analysis_pass(graph, num_samples=32, silent=True)
    assert (info["mismatches"], info["output_mismatches"]) == (0, 0)


@pytest.mark.parametrize("layer", [nn.PReLU(init=0.3), nn.RReLU(0.1, 0.4)])
def test_slopes_that_are_constants_are_tables(layer):
    model = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 2))
    graph = quantised(model, (4,), DEFAULT)
    _, info = verify_integers_analysis_pass(graph, num_samples=32, silent=True)
    assert (info["mismatches"], info["output_mismatches"]) == (0, 0)


def test_binary_ternary_and_mx_weights_have_codes():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(32, 4, bias=False))
    formats = {
        "binary": {"weight_width": 1, "weight_stochastic": False, "weight_bipolar": True},
        "mxint": {"weight_width": 6, "weight_block_size": [8]},
    }
    for name, keys in formats.items():
        fmt = from_config({"name": name, **keys}, "weight")
        values = fmt(layer[0].weight)
        codes, scale, width = weight_codes(values, fmt)
        along = scale.value.view(-1, 1) if scale.value.ndim else scale.value
        assert torch.equal((codes * along).float(), values.detach())
        assert int(codes.abs().max()) < 2**width
