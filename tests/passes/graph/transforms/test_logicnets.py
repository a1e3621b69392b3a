"""Truth tables give what arithmetic gives, bit for bit."""

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chop.nn.quantized.modules.linear import LinearLogicNets
from chop.numerics.integer import Integer
from chop.passes import (
    calculate_avg_bits_mg_analysis_pass,
    logicnets_fusion_transform_pass,
    quantize_transform_pass,
    verify_metadata_analysis_pass,
)

SMALL = nn.Linear(4, 2)


def config(width=2, frac=1, out=3, out_frac=2, **others):
    numbers = {"data_in_width": width, "data_in_frac_width": frac}
    numbers |= {"data_out_width": out, "data_out_frac_width": out_frac}
    return {"name": "logicnets", **numbers, **others}


def sparse(out_features, in_features, fan_in, bias=True):
    """A layer whose neurons see different numbers of inputs, at most `fan_in`."""
    layer = nn.Linear(in_features, out_features, bias)
    with torch.no_grad():
        for i, row in enumerate(layer.weight):
            row[torch.randperm(in_features)[i % (fan_in + 1) :]] = 0
    return layer


def all_inputs(layer, in_features):
    """Every row of input values that there is."""
    values = Integer(*layer.input_format.precision).values().float()
    return torch.tensor(list(itertools.product(values.tolist(), repeat=in_features)))


def lived_in_norm(features):
    norm = nn.BatchNorm1d(features)
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    nn.init.uniform_(norm.weight, -2, 2)
    nn.init.normal_(norm.bias)
    return norm


@pytest.mark.parametrize("after", ["nothing", "relu", "norm tanh", "norm gelu"])
@pytest.mark.parametrize("formats", [(1, 0, 2, 0), (2, 1, 3, 2), (3, 2, 2, -1), (2, 0, 8, 6)])
def test_looking_up_gives_what_arithmetic_gives_for_all_inputs(formats, after):
    layer = LinearLogicNets.from_float(sparse(5, 4, fan_in=3), config(*formats)).eval()
    kinds = {"nothing": [], "relu": [nn.ReLU()]}
    kinds["norm tanh"] = [lived_in_norm(5), nn.Tanh()]
    kinds["norm gelu"] = [lived_in_norm(5), nn.GELU()]
    layer.merge([], kinds[after])
    layer.eval()
    x = all_inputs(layer, 4)
    looked_up = layer(x)
    layer.is_lut_inference = False
    assert torch.equal(looked_up, layer(x))
    some = x[:: max(1, len(x) // 50)]  # alone and in company
    assert torch.equal(layer(some), torch.cat([layer(row[None]) for row in some]))
    assert torch.equal(looked_up, layer.output_format(looked_up))


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.booleans(), st.randoms())
def test_any_small_layer_is_its_tables(width, fan_in, rows, bias, random):
    torch.manual_seed(random.randrange(2**31))
    layer = LinearLogicNets.from_float(sparse(6, 7, fan_in, bias), config(width)).eval()
    x = torch.randn(rows, 7) * 2
    assert torch.equal(layer.lut_forward(x), layer.math_forward(x))


def test_arithmetic_is_that_of_the_linear_layer():
    """Sums of three products may be rounded otherwise: a few units in the last place."""
    linear = sparse(5, 4, fan_in=3)
    layer = LinearLogicNets.from_float(linear, config(3, 1, 31, 20))
    x = torch.randn(9, 4)
    expected = nn.functional.linear(Integer(3, 1)(x), linear.weight, linear.bias)
    torch.testing.assert_close(layer.math_forward(x), expected, rtol=1e-6, atol=2e-6)


def test_codes_of_inputs_and_results_have_widths_of_their_own():
    layer = LinearLogicNets.from_float(sparse(5, 4, fan_in=2), config(2, 1, 5, 3))
    codes = torch.arange(4)
    assert layer.decode(codes).tolist() == [0.0, 0.5, -1.0, -0.5]
    assert torch.equal(layer.encode(layer.decode(codes)), codes)
    assert layer.tables.numel() == 0
    layer.calculate_truth_tables()
    assert layer.tables.shape == (5, 2 ** (2 * 2))
    assert layer.tables.min() >= -16
    assert layer.tables.max() <= 15


def test_the_tables_of_each_neuron_can_be_read():
    linear = sparse(5, 4, fan_in=2)
    layer = LinearLogicNets.from_float(linear, config()).eval()
    for neuron, (seen, rows, values, codes) in enumerate(layer.neuron_truth_tables):
        assert seen.tolist() == linear.weight[neuron].nonzero().flatten().tolist()
        assert rows.shape == (4 ** len(seen), len(seen))
        x = torch.zeros(len(rows), 4)
        x[:, seen] = layer.decode(rows)
        assert torch.equal(layer.math_forward(x)[:, neuron], values)
        assert torch.equal(codes * 2.0**-2, values)


def test_tables_follow_the_weights():
    layer = LinearLogicNets.from_float(sparse(5, 4, fan_in=3), config()).eval()
    x = torch.randn(20, 4)
    before = layer(x)
    layer.weight.data.mul_(-3)
    assert torch.equal(layer(x), layer.math_forward(x))
    assert not torch.equal(layer(x), before)
    copied = copy.deepcopy(layer)
    assert torch.equal(copied(x), layer(x))


def test_saved_layers_see_the_same_inputs_again():
    layer = LinearLogicNets.from_float(sparse(5, 4, fan_in=3), config()).eval()
    other = LinearLogicNets.from_float(sparse(5, 4, fan_in=3), config()).eval()
    other.load_state_dict(layer.state_dict())
    x = torch.randn(20, 4)
    assert torch.equal(other(x), layer(x))


def test_only_the_weights_that_a_neuron_sees_are_trained():
    linear = sparse(5, 4, fan_in=3)
    layer = LinearLogicNets.from_float(linear, config(2, 1, 8, 4))
    layer.train()(torch.randn(50, 4)).pow(2).sum().backward()
    assert (layer.weight.grad[linear.weight == 0] == 0).all()
    assert (layer.weight.grad[linear.weight != 0] != 0).any()


def test_fan_in_keeps_the_largest_weights():
    linear = nn.Linear(6, 5)
    layer = LinearLogicNets.from_float(linear, config(fan_in=2))
    kept = linear.weight.abs().topk(2).indices.sort().values
    assert torch.equal(layer.indices.sort().values, kept)


def test_weights_may_be_rounded_too():
    layer = LinearLogicNets.from_float(
        sparse(5, 4, fan_in=3), config(weight_width=3, weight_frac_width=1)
    ).eval()
    x = torch.randn(20, 4)
    assert torch.equal(layer.lut_forward(x), layer.math_forward(x))
    assert layer.formats["weight"] == Integer(3, 1)


def test_batches_may_have_more_dimensions():
    layer = LinearLogicNets.from_float(sparse(5, 4, fan_in=3), config()).eval()
    x = torch.randn(2, 3, 4)
    assert torch.equal(layer(x), layer(x.reshape(6, 4)).reshape(2, 3, 5))


def test_a_layer_can_be_built_by_hand():
    layer = LinearLogicNets(4, 3, config=config(), activation_module=nn.ReLU()).eval()
    assert layer.is_fused
    assert (layer(torch.randn(9, 4)) >= 0).all()
    with pytest.raises(TypeError, match="needs config"):
        LinearLogicNets(4, 3)


@pytest.mark.parametrize(
    ("layer", "given", "message"),
    [
        (nn.Linear(9, 2), config(2), r"sees 9 inputs of 2 bits: its table would have 2\^18 entr"),
        (nn.Linear(8, 1025), config(2), r"1025 tables of 2\^16 entries are 67174400 .at most 6"),
        (SMALL, {"name": "logicnets"}, "logicnets needs data_in_width"),
        (SMALL, config(fan_in=0), "fan_in is 0; give an integer of at least 1"),
        (SMALL, config(fanin=2), "unknown key of logicnets 'fanin'; did you mean 'fan_in"),
        (SMALL, config(out=32), "data_out_width of logicnets is 32; give at most 31"),
    ],
)
def test_what_would_be_too_large_or_is_not_known_is_refused(layer, given, message):
    with pytest.raises((ValueError, KeyError), match=message):
        LinearLogicNets.from_float(layer, given)


def jets(row):
    layers = [lived_in_norm(6), nn.ReLU(), nn.Linear(6, 5), lived_in_norm(5), nn.ReLU()]
    return row(*layers, nn.Linear(5, 3), nn.ReLU())


INTEGER = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
INTEGER |= {"weight_width": 8, "weight_frac_width": 4}
AROUND = {
    "additional_layers_inputs": ["layers_0", "layers_1"],
    "additional_layers_outputs": ["layers_3", "layers_4"],
}


def merging(side, *names):
    return {"layers_2": {"config": {f"additional_layers_{side}": list(names)}}}


class TestPasses:
    @pytest.fixture
    def graph(self, ready, row):
        graph = ready(jets(row).eval(), torch.randn(4, 6))
        given = {"config": config(fan_in=3, weight_width="NA", **AROUND)}
        quantize_transform_pass(graph, by="name", layers_2=given)
        return graph

    def test_quantize_makes_the_layer_and_notes_its_formats(self, graph):
        assert isinstance(graph.modules["layers.2"], LinearLogicNets)
        node = next(node for node in graph.nodes if node.name == "layers_2")
        common = node.meta["mase"]["common"]
        assert common["mase_op"] == "linear"
        assert common["args"]["data_in_0"]["precision"] == [2, 1]
        assert common["args"]["weight"]["type"] == "float"
        assert common["results"]["data_out_0"]["precision"] == [3, 2]
        assert verify_metadata_analysis_pass(graph)[1] == {}
        calculate_avg_bits_mg_analysis_pass(graph)

    @pytest.mark.parametrize("table", [{"config": AROUND}, {"config": config(**AROUND)}, {}])
    def test_fusion_merges_the_layers_around_it(self, graph, table):
        x = torch.randn(50, 6)
        _, info = logicnets_fusion_transform_pass(graph, {"layers_2": table})
        assert info["fused"] == ["layers_2"]
        assert [n.name for n in graph.nodes] == ["x", "layers_2", "layers_5", "layers_6", "output"]
        assert verify_metadata_analysis_pass(graph)[1] == {}
        layer = graph.modules["layers.2"]
        assert torch.equal(layer.lut_forward(x), layer.math_forward(x))
        assert torch.equal(graph.clone().model(x), graph.model(x))

    def test_the_fused_layer_rounds_what_its_parts_computed(self, graph):
        x = torch.randn(50, 6)
        layers = graph.modules["layers"]
        parts = [copy.deepcopy(layers.get_submodule(str(i))) for i in range(5)]
        weight = parts[2].weight.gather(1, parts[2].indices)
        x_in = Integer(2, 1)(parts[1](parts[0](x)))
        wide = (x_in[:, parts[2].indices] * weight).sum(-1) + parts[2].bias
        expected = Integer(3, 2)(parts[4](parts[3](wide)))
        logicnets_fusion_transform_pass(graph, {"layers_2": {"config": AROUND}})
        assert torch.equal(graph.modules["layers.2"](x), expected)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"layers_9": {"config": AROUND}}, "layers_9"),
            ({"layers_5": {"config": AROUND}}, "node 'layers_5' is not a LogicNets layer"),
            ({"layers_2": 3}, "'layers_2' needs a table"),
            (merging("outputs", "layers_4"), "'layers_4' does not follow 'layers_2' alone"),
            (merging("inputs", "x", "layers_0"), "'layers_2' does not follow 'layers_0'"),
            ({"layers_2": {"config": {"additional_layers": []}}}, "unknown key of logicnets"),
            (
                merging("outputs", "layers_3", "layers_4", "layers_5"),
                "LinearLogicNets|Linear cannot be merged",
            ),
        ],
    )
    def test_what_cannot_be_merged_is_refused(self, graph, given, message):
        before = [node.name for node in graph.nodes]
        with pytest.raises((TypeError, KeyError), match=message):
            logicnets_fusion_transform_pass(graph, given)
        assert [node.name for node in graph.nodes] == before

    def test_a_layer_of_tables_is_no_start_for_another_format(self, graph):
        with pytest.raises(TypeError, match="the layer is logicnets already; start from"):
            quantize_transform_pass(graph, by="name", layers_2={"config": INTEGER})

    def test_other_ops_are_refused(self, graph):
        with pytest.raises(TypeError, match="logicnets is for linear, conv2d, not for relu"):
            quantize_transform_pass(graph, by="name", layers_6={"config": config()})

    def test_tables_that_would_be_too_large_are_refused_by_the_pass(self, ready, row):
        graph = ready(row(nn.Linear(16, 5)), torch.randn(2, 16))
        message = r"node 'layers_0': neuron 0 sees 16 inputs.*fan_in = 8"
        with pytest.raises(TypeError, match=message):
            quantize_transform_pass(graph, by="name", layers_0={"config": config()})


class TestByType:
    """Layers that are chosen by type find what follows them."""

    @pytest.fixture
    def net(self, row):
        layers = [nn.Linear(6, 5), lived_in_norm(5), nn.Dropout(0.1), nn.Tanh(), nn.ReLU()]
        return row(*layers, nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).eval()

    @pytest.fixture
    def graph(self, ready, net):
        return ready(net, torch.randn(4, 6))

    @staticmethod
    def quantized(graph, **options):
        given = {"config": config(fan_in=3)}
        return quantize_transform_pass(graph, by="type", linear=given, **options)

    @staticmethod
    def found(graph, number):
        return graph.modules[f"layers.{number}"].config["additional_layers_outputs"]

    def test_norm_and_activation_are_found_and_fused(self, graph):
        x = torch.randn(50, 6)
        self.quantized(graph)
        assert self.found(graph, 0) == ["layers_1", "layers_2", "layers_3"]
        assert self.found(graph, 5) == ["layers_6"]
        assert self.found(graph, 7) == []
        by_name = graph.clone()
        _, info = logicnets_fusion_transform_pass(graph, {})
        assert info["fused"] == ["layers_0", "layers_5"]
        names = [node.name for node in graph.nodes]
        assert names == ["x", "layers_0", "layers_4", "layers_5", "layers_7", "output"]
        assert verify_metadata_analysis_pass(graph)[1] == {}
        logicnets_fusion_transform_pass(by_name, {"layers_0": {}, "layers_5": {}})
        assert torch.equal(by_name.model(x), graph.model(x))
        assert logicnets_fusion_transform_pass(graph, {})[1]["fused"] == []  # they are already

    def test_expressions_find_them_too_and_names_that_are_given_stay(self, ready, net):
        graph = ready(net, torch.randn(4, 6))
        given = {"config": config(fan_in=3, additional_layers_outputs=["layers_1"])}
        table = {"by": "regex_name", "layers_0": given, "layers_[57]": {"config": config(fan_in=3)}}
        quantize_transform_pass(graph, table)
        assert self.found(graph, 0) == ["layers_1"]
        assert self.found(graph, 5) == ["layers_6"]

    def test_what_is_no_layer_of_its_own_is_left(self, ready):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
                self.norm, self.act = nn.BatchNorm1d(3), nn.ReLU()

            def forward(self, x):
                x = self.act(self.b(torch.relu(self.a(x))))  # `act` is called twice
                y = self.norm(self.c(x))  # channels of sequences
                return self.act(y) + x

        graph = ready(Net().eval(), torch.randn(2, 3, 4))
        self.quantized(graph)
        for name in "abc":
            assert graph.modules[name].config["additional_layers_outputs"] == []

    def test_a_baseline_graph_says_what_follows(self, graph, tmp_path):
        graph.export(tmp_path / "baseline")
        relu = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 4}
        quantize_transform_pass(graph, by="type", relu={"config": relu})
        self.quantized(graph, baseline_weight_path=str(tmp_path / "baseline"), load_type="mz")
        assert self.found(graph, 0) == ["layers_1", "layers_2", "layers_3"]
        assert self.found(graph, 5) == ["layers_6"]

    def test_a_baseline_of_another_graph_is_refused(self, ready, row, graph, tmp_path):
        other = row(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).eval()
        ready(other, torch.randn(4, 6)).export(tmp_path / "short")
        before = [type(module) for module in graph.model.modules()]
        with pytest.raises(TypeError, match="no layer 'layers_5' that is called once; give the"):
            self.quantized(graph, baseline_weight_path=tmp_path / "short")
        graph.export(tmp_path / "baseline")
        alone = ready(row(nn.Linear(6, 5)), torch.randn(4, 6))
        with pytest.raises(TypeError, match="'layers_1' follows 'layers_0' in the baseline graph"):
            self.quantized(alone, baseline_weight_path=tmp_path / "baseline")
        assert [type(module) for module in graph.model.modules()] == before

    def test_what_cannot_be_read_is_refused_and_nothing_runs(self, graph, tmp_path):
        file = tmp_path / "graph_module.mz"
        torch.save(graph.model, file)
        for path, load_type, message in [
            (file, "mz", "not a saved graph: it has no graph.json"),
            (tmp_path / "nothing", "mz", "baseline_weight_path: there is no directory"),
            (file, "pt", "load_type of a baseline is mz, not 'pt': only a saved graph says"),
        ]:
            with pytest.raises(TypeError, match=message):
                self.quantized(graph, baseline_weight_path=path, load_type=load_type)

    def test_other_formats_and_names_do_not_read_it(self, graph):
        path = {"baseline_weight_path": "nowhere", "load_type": "mz"}
        quantize_transform_pass(graph.clone(), by="type", linear={"config": INTEGER}, **path)
        given = {"config": config(fan_in=3)}
        quantize_transform_pass(graph, by="name", layers_0=given, **path)
