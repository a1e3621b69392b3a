"""Values whose bits differ by element: words, integer graphs, circuits and their estimates."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from chop.hardware.emit import EmitOptions, emit_circuit
from chop.hardware.estimate import estimate
from chop.integers import Codes, MixedWord, QuantizeInput, Requantize, Scale, Word
from chop.integers.vectors import boundary_inputs, random_inputs
from chop.ir import MaseGraph
from chop.numerics.learned import LearnsBits
from chop.numerics.mixed_integer import MixedInteger
from chop.numerics.mixed_rounding import MixedRounding
from chop.passes import PassArgsError
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    freeze_bits_transform_pass,
    init_metadata_analysis_pass,
    learn_bits_transform_pass,
)
from chop.passes.graph.transforms.integers import integer_graph

ROUNDINGS, OVERFLOWS = ("even", "up", "floor"), ("saturate", "symmetric", "wrap")
small = st.integers(-3, 6)
formats = st.builds(
    lambda signed, rounding, overflow: MixedInteger(
        8, 4, signed, rounding, overflow, granularity="element"
    ),
    st.booleans(),
    st.sampled_from(ROUNDINGS),
    st.sampled_from(OVERFLOWS),
)
pairs = st.lists(st.tuples(small, small), min_size=2, max_size=5)


def words_of(fmt, bits):
    i, f = (torch.tensor(part) for part in zip(*bits, strict=True))
    return MixedWord.with_bits(fmt.uniform().grid(), i, f), MixedRounding(fmt, f.char(), i.char())


@given(formats, pairs, st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_inputs_are_rounded_like_the_layer_rounds_them(fmt, bits, seed):
    word, rounding = words_of(fmt, bits)
    op = QuantizeInput(word, (len(bits),))
    source = torch.Generator().manual_seed(seed)
    inputs = [(op.shape, word)]
    for x in (*boundary_inputs(inputs), *random_inputs(inputs, 50, source)):
        codes = op.run(x)
        described = op.result()
        assert torch.equal(described.values(codes).float(), rounding(x))
        assert (described.low <= codes).all()
        assert (codes <= described.high).all()


@given(formats, pairs, st.integers(0, 6), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_codes_are_rounded_like_the_layer_rounds_their_values(fmt, bits, fraction, seed):
    word, rounding = words_of(fmt, bits)
    before = Codes.reaching(
        (len(bits),), torch.tensor(-(2**10)), torch.tensor(2**10), Scale.power(-fraction)
    )
    op = Requantize(word).fitted(before)
    source = torch.Generator().manual_seed(seed)
    codes = torch.randint(-(2**10), 2**10 + 1, (50, len(bits)), generator=source)
    result, described = op.run(codes), op.result(before)
    assert torch.equal(described.values(result), rounding(before.values(codes)))
    assert (described.low <= result).all()
    assert (result <= described.high).all()


def test_equal_bits_are_an_ordinary_word_and_none_are_zero():
    fmt = MixedInteger(8, 4, granularity="element")
    assert type(words_of(fmt, [(2, 3), (2, 3)])[0]) is Word
    word, _ = words_of(fmt, [(2, 3), (-4, 2)])
    assert word.low_codes.tolist() == [-32, 0]
    assert [(each.width, each.low) for each in word.each((2,))] == [(6, -32), (1, 0)]
    assert word.key != words_of(fmt, [(-4, 2), (2, 3)])[0].key


class Net(nn.Module):
    def __init__(self, act=None):
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
        self.act = act or nn.ReLU()

    def forward(self, x):
        return self.last(self.act(self.first(x.flatten(1))))


def learned(seed=0, act=None, **options):
    torch.manual_seed(seed)
    graph = MaseGraph(Net(act))
    init_metadata_analysis_pass(graph)
    add_common_metadata_analysis_pass(graph, dummy_in={"x": torch.randn(2, 2, 3)})
    chosen = {"width": 5, "data_in_granularity": "element"} | options
    learn_bits_transform_pass(graph, **chosen)
    with torch.no_grad():
        for layer in graph.model.modules():
            for bits in layer.width_parameters().values() if isinstance(layer, LearnsBits) else ():
                bits += torch.randn_like(bits)
        graph.model.first.data_in_frac_bits.view(-1)[:-1][:1] = -9  # one without bits, of several
    graph.model.eval()
    return graph


def frozen(seed=0, act=None, **options):
    return freeze_bits_transform_pass(learned(seed, act, **options))[0]


def layers(graph):
    return [layer for layer in graph.model.modules() if isinstance(layer, LearnsBits)]


def test_a_network_that_flattens_its_input_equals_its_simulation():
    graph = frozen()
    integers = integer_graph(graph)
    x = torch.randn(64, 2, 3) * 3
    assert torch.equal(integers(x), graph.model(x))
    assert integers.nodes["x_codes"].codes.low.shape == (2, 3)


def test_an_estimate_counts_the_bits_of_each_element():
    graph = frozen(overflow="wrap")
    integers = integer_graph(graph)
    cost = estimate(integers, fidelity="formula").total
    ours = sum(float(m.bit_cost("ebops", exact=True)) for m in layers(graph))
    assert 0.9 * ours < cost.ebops <= ours  # a sum may not reach all bits of its format
    assert (integers.codes("first_finer").width, integers.codes("x_codes").width) == (7, 6)


@pytest.mark.parametrize("seed", range(4))
def test_an_estimate_of_luts_is_near_the_cost_that_is_trained(seed):
    graph = learned(seed)
    trained = sum(float(m.bit_cost("lut", exact=True)) for m in layers(graph))
    freeze_bits_transform_pass(graph)
    formula = estimate(integer_graph(graph), fidelity="formula").total.lut
    assert trained == pytest.approx(formula, rel=0.35)  # of a very small network


def test_adder_graphs_count_the_same_products():
    pytest.importorskip("alkaid")
    integers = integer_graph(frozen(overflow="wrap"))
    costs = [estimate(integers, fidelity=name).total.ebops for name in ("formula", "adders")]
    assert costs[0] == costs[1]


def test_a_streaming_circuit_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="rounds to bits that differ by element") as refused:
        emit_circuit(integer_graph(frozen()), EmitOptions(backend="streaming"))
    assert "\n" not in str(refused.value)


def test_tables_have_one_format_for_all_elements():
    with pytest.raises(PassArgsError, match="node 'last' rounds the result of sigmoid to bits"):
        integer_graph(frozen(act=nn.Sigmoid()))
    graph = frozen(act=nn.LeakyReLU(0.5))
    x = torch.randn(64, 2, 3) * 3
    assert torch.equal(integer_graph(graph)(x), graph.model(x))


@pytest.mark.rtl
@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_an_unrolled_circuit_gives_the_same_codes(overflow, tmp_path):
    from chop.hardware.simulation import simulate_circuit

    integers = integer_graph(frozen(overflow=overflow))
    circuit = emit_circuit(integers, EmitOptions())
    x = torch.randn(300, 2, 3) * 3
    codes = integers.trace(x)
    result = simulate_circuit(circuit, [codes["x_codes"]], folder=tmp_path)
    assert torch.equal(result.outputs[0], codes[integers.outputs[0]])
