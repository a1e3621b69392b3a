"""LogicNets and LUTNet layers in integers: equal to their simulation, bit for bit."""

import itertools

import pytest
import torch
from torch import nn

from chop.integers import AvgPoolCodes, Codes, IntegerGraph, NeuronTables, Scale
from chop.methods.lutnet.ops import ResidualSigns
from chop.passes.graph import logicnets_fusion_transform_pass, verify_integers_analysis_pass

from .checking import BY_NAME, cached, logicnets, lutnet, quantised

INTEGER = {"name": "integer", "data_in_width": 6, "data_in_frac_width": 3, "weight_width": 5}
INTEGER |= {"weight_frac_width": 4}
HALVES = Scale.power(-1)


def lived_in(model, shape):
    """Give batch norms statistics of their own."""
    torch.manual_seed(0)
    model.train()(2 * torch.randn(64, *shape))
    return model.eval()


def by_name(model, shape, **configs):
    tables = {name: {"config": config} for name, config in configs.items()}
    return quantised(model, shape, {"by": "name", **tables})


def verified(graph, count=256, **options):
    return verify_integers_analysis_pass(graph, num_samples=count, silent=True, **options)[1]


def jets(fused=True):
    """A network of the shape of the labs: the first norm takes the input of the network."""
    torch.manual_seed(0)
    layers = [nn.BatchNorm1d(16), nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU()]
    layers += [nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)]
    model = lived_in(nn.Sequential(*layers), (16,))
    first = logicnets(3, additional_layers_outputs=["_2", "_3"])
    middle = logicnets(4, additional_layers_outputs=["_5", "_6"])
    if fused:
        first["additional_layers_inputs"] = ["_0"]
    graph = by_name(model, (16,), _1=first, _4=middle, _7=logicnets(4))
    return logicnets_fusion_transform_pass(graph)[0]


@pytest.mark.parametrize("formats", [(1, 0, 2, 0), (2, 1, 3, 2), (3, 2, 2, -1)])
def test_a_logicnets_layer_equals_its_simulation_for_all_inputs(formats):
    width, frac, out, out_frac = formats
    config = logicnets(width, data_in_frac_width=frac, fan_in=3)
    config |= {"data_out_width": out, "data_out_frac_width": out_frac}
    layers = [nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh()]
    graph = by_name(lived_in(nn.Sequential(*layers), (4,)), (4,), _0=config)
    merged = {"config": {"additional_layers_outputs": ["_1", "_2"]}}
    logicnets_fusion_transform_pass(graph, _0=merged)
    codes = torch.arange(-(2 ** (width - 1)) - 1, 2 ** (width - 1) + 1).float()
    x = torch.cartesian_prod(*[codes * 2.0**-frac] * 4)
    with torch.no_grad():
        assert torch.equal(graph.to_integers()(x), graph.model(x))


def test_a_fused_network_of_logicnets_is_proven_and_equal_on_ten_thousand_vectors():
    graph = jets()
    info = verified(graph, 1000)
    assert (info["mismatches"], info["output_mismatches"], info["observed"]) == (0, 0, 0)
    x = 2 * torch.randn(10_000, 16)
    integers = graph.to_integers()
    with torch.no_grad():
        assert torch.equal(integers(x), graph.model(x))
    assert [type(node.op) for node in integers.nodes.values()].count(NeuronTables) == 3


def test_layers_that_take_the_input_of_the_network_stay_in_float_and_are_noted():
    integers = jets().to_integers()
    note = "_1: BatchNorm1d before it stays in float, as it takes the input of the network"
    assert integers.notes == [note]
    assert integers.codes(next(iter(integers.nodes))).kind == "s3"


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 3])
def test_a_lutnet_layer_equals_its_simulation_for_all_signs_and_is_proven(k, levels):
    torch.manual_seed(k + 4 * levels)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval()
    graph = by_name(model, (3,), _0=lutnet(k, levels), _1=INTEGER)
    layer = graph.modules["0"]
    nn.init.normal_(layer.weight)
    layer.pruning_masks[0, 1] = 0
    means = layer.means.detach()
    ends = [sum(s * m for s, m in zip(row, means, strict=True)) for row in signs(levels)]
    near = torch.stack([end + step for end in ends for step in (-0.01, 0.0, 0.01)])
    x = torch.cartesian_prod(*[near] * 3)
    integers = graph.to_integers()
    with torch.no_grad():
        assert torch.equal(integers(x), graph.model(x))
    info = verified(graph)
    assert (info["observed"], info["mismatches"]) == (0, 0)


def signs(levels):
    return list(itertools.product((-1, 1), repeat=levels))


@pytest.mark.parametrize("binarized", [0, 1])
def test_a_lutnet_layer_of_many_inputs_is_observed_and_equal(binarized):
    layers = [nn.Linear(6, 300), nn.Linear(300, 6), nn.BatchNorm1d(6), nn.Linear(6, 5)]
    model = lived_in(nn.Sequential(*layers, nn.Linear(5, 3)), (6,))
    tables = {"_1": lutnet(2, 2, binarized), "_3": lutnet(3, 2, binarized)}
    graph = by_name(model, (6,), _0=INTEGER, _4=INTEGER, **tables)
    info = verified(graph, 512)
    assert info["layers"]["_1"]["equality"] == "observed"
    assert (info["mismatches"], info["output_mismatches"]) == (0, 0)


def test_norms_and_activations_after_a_lutnet_layer_become_tables_of_its_sums():
    integers = cached(BY_NAME["lutnet with a norm"], "even", "saturate", 200).integers
    ops = [type(node.op) for node in integers.nodes.values()]
    assert ops.count(ResidualSigns) == 2
    assert ops.count(AvgPoolCodes) == 2
    assert not any(node.op.label == "Affine" for node in integers.nodes.values())
    assert all(node.proven for node in integers.nodes.values())


def tables_of(entries, reads, width=2):
    """Tables that are read by the result of the same number."""
    reads, entries = torch.tensor(reads), torch.tensor(entries, dtype=torch.int32)
    return NeuronTables(reads, torch.arange(len(reads)), entries, width, HALVES, (len(reads),))


def test_bounds_are_those_of_the_entries_that_inputs_can_reach():
    op = tables_of([[9, 1, 2, 3], [5, 9, 9, 7]], [[0], [1]])
    low, high = torch.tensor([0, -1]), torch.tensor([1, 0])
    result = op.result(Codes.reaching((2,), low, high, HALVES))
    assert (result.low.tolist(), result.high.tolist()) == ([1, 5], [9, 7])
    assert (result.kind, str(result.scale)) == ("u4", "2^-1")


def test_the_first_input_is_in_the_lowest_bits_and_none_has_the_code_zero():
    entries = list(range(16))
    op = tables_of([entries, entries, entries], [[0, 1], [1, 0], [1, -1]])
    assert op.run(torch.tensor([[1, -1]])).tolist() == [[1 + 3 * 4, 3 + 1 * 4, 3]]
    described = Codes.reaching((2,), torch.tensor(-2), torch.tensor(1), HALVES)
    assert op.result(described).high.tolist() == [15, 15, 3]


def test_signs_count_the_thresholds_that_a_code_reaches():
    op = ResidualSigns(torch.tensor([-3, 0, 3]))
    x = torch.tensor([[-4], [-3], [-1], [0], [2], [3]])
    assert op.run(x).squeeze(-1).tolist() == [[0, 0], [0, 1], [0, 1], [1, 0], [1, 0], [1, 1]]
    described = Codes.reaching((2,), torch.tensor([0, -1]), torch.tensor([9, 0]), HALVES)
    result = op.result(described)
    assert result.shape == (2, 2)
    assert result.low.tolist() == [[1, 0], [0, 0]]
    assert result.highest == 1


@pytest.mark.parametrize("name", ["logicnets conv2d", "logicnets fused", "lutnet conv2d"])
def test_codes_of_tables_stay_within_their_bounds(name):
    case = cached(BY_NAME[name], "even", "saturate", 200)
    for node, codes in case.integers.trace(case.inputs).items():
        described = case.integers.codes(node)
        assert (codes >= described.low).all()
        assert (codes <= described.high).all()


def test_the_layers_are_left_as_they_are():
    graph = jets()
    layer = graph.modules["1"].train()
    state = {name: tensor.clone() for name, tensor in graph.model.state_dict().items()}
    assert isinstance(graph.to_integers(), IntegerGraph)
    assert layer.training
    assert all(torch.equal(tensor, state[n]) for n, tensor in graph.model.state_dict().items())


def merged_wide():
    wide = {**INTEGER, "data_in_width": 16}
    layers = [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)]
    config = logicnets(2, additional_layers_inputs=["_1"])
    graph = by_name(lived_in(nn.Sequential(*layers), (4,)), (4,), _0=wide, _2=config)
    return logicnets_fusion_transform_pass(graph)[0]


def with_nan():
    graph = by_name(nn.Sequential(nn.Linear(4, 4)), (4,), _0=lutnet())
    graph.modules["0"].gamma.data.fill_(torch.nan)
    return graph


def after_sigmoid():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 2))
    return by_name(model, (4,), _0=INTEGER, _2=lutnet())


def with_soft_mask():
    graph = by_name(nn.Sequential(nn.Linear(4, 4)), (4,), _0=lutnet())
    graph.modules["0"].pruning_masks.fill_(0.5)
    return graph


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (merged_wide, "node '_2' merges layers that take codes of .* bits; quantise their input"),
        (with_nan, r"node '_0' has a gamma with NaN \(one value\); train or load it again"),
        (after_sigmoid, "node '_2' takes the signs of the result of sigmoid in float; give it"),
        (with_soft_mask, "node '_0' has a pruning mask with other numbers than 0 and 1; use"),
    ],
)
def test_what_has_no_table_is_refused_in_one_sentence(make, said):
    with pytest.raises(TypeError, match=said):
        make().to_integers()
