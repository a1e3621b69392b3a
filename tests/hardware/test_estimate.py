"""Estimates of circuits: hand-computed costs, laws, and refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chop.hardware.estimate import estimate
from chop.hardware.estimate.cost import Cost, Estimate
from chop.hardware.estimate.formula import CodeRange, Target, requantized, table_luts
from chop.hardware.estimate.weights import effective_bits, inside_counts, signed_digits
from chop.hardware.unrolled import layers_of, unrolled_circuit
from chop.hardware.unrolled.limits import adder_estimate
from chop.integers import (
    AddCodes,
    ChannelAffine,
    ConvCodes,
    IntegerGraph,
    IntegerOp,
    LinearCodes,
    Lookup,
    QuantizeInput,
    ReluCodes,
    Requantize,
    Scale,
    Word,
)
from chop.ir import MaseGraph
from chop.numerics.integer import Integer
from chop.passes import Pipeline

codes = st.integers(-(2**20), 2**20)


def word(width, frac_width=0, **rule):
    return Word.of(Integer(width, frac_width, **rule).grid())


def network(weight, *, width=4, bias=None, shape=None, op=LinearCodes, **settings):
    """One layer of codes after an input of `width` bits."""
    weight = torch.tensor(weight)
    graph = IntegerGraph(inputs=["x"])
    shape = shape or (weight.shape[1],)
    graph.add("x_codes", QuantizeInput(word(width), shape), ["x"], "x")
    bias = None if bias is None else torch.tensor(bias)
    made = op(weight, bias, Scale.power(0), 8, **settings)
    graph.outputs.append(graph.add("fc", made, ["x_codes"], "fc"))
    return graph


def by_formula(graph, **options):
    return estimate(graph, fidelity="formula", **options)


def test_ebops_are_bits_of_inputs_times_bits_of_weights_and_the_bits_of_biases():
    # 3 has two bits, 4 one, 0 none and -5 three; the bias 6 has two
    assert by_formula(network([[3, 4], [0, -5]])).ebops == 4 * (2 + 1 + 0 + 3)
    assert by_formula(network([[3, 4]], bias=[6])).ebops == 4 * 3 + 2
    assert by_formula(network([[3, 4]], width=7)).ebops == 7 * 3


def test_a_convolution_counts_no_products_with_its_padding():
    settings = {"stride": (1,), "padding": (1,), "dilation": (1,)}
    graph = network([[[1, 1, 1]]], shape=(1, 4), op=ConvCodes, **settings)
    assert by_formula(graph).ebops == 4 * (3 * 4 - 2)  # both ends lack one


def test_a_layer_without_weights_other_than_zero_costs_no_logic():
    cost = by_formula(network([[0, 0], [0, 0]]))
    assert cost.ebops == cost.adder_bits == cost.lut == 0
    assert cost.latency_cycles == 1


def test_one_addition_of_two_inputs_is_one_adder_of_their_width():
    pytest.importorskip("alkaid")
    cost = estimate(network([[1, 1]], width=6), fidelity="adders")
    assert cost.adder_bits == 6
    assert cost.ff == 7 + 1  # the sum, and its valid bit
    assert cost.latency_cycles == 1


def test_a_shifted_addition_needs_no_adder_below_the_shifted_operand():
    pytest.importorskip("alkaid")
    assert estimate(network([[1, 8]], width=6)).adder_bits == 6  # places 3 to 8
    assert estimate(network([[1, 0], [0, 2]], width=6)).adder_bits == 0  # wires


def test_both_fidelities_count_the_same_products():
    pytest.importorskip("alkaid")
    torch.manual_seed(0)
    graph = network(torch.randint(-7, 8, (5, 6)).tolist(), bias=[1, 2, 3, 4, 5])
    assert estimate(graph, fidelity="adders").ebops == by_formula(graph).ebops > 0


def test_both_fidelities_count_the_products_of_a_norm_before_the_first_layer():
    pytest.importorskip("alkaid")
    graph = network([[3, 5]])
    norm = ChannelAffine(torch.tensor([3, 5]), torch.tensor([1, 0]), Scale.power(-2))
    both = IntegerGraph(inputs=["x"])
    both.add("x_codes", graph.nodes["x_codes"].op, ["x"], "x")
    both.add("bn", norm, ["x_codes"], "bn")
    both.outputs.append(both.add("fc", graph.nodes["fc"].op, ["bn"], "fc"))
    assert estimate(both, fidelity="adders").ebops == by_formula(both).ebops


def two_sums(*sources):
    """Sums of two pairs of layers, which belong to the layers `sources`."""
    graph = network([[3, 5]])
    for name in ("a", "b", "c", "d"):
        graph.add(name, graph.nodes["fc"].op, ["x_codes"], name)
    pairs = (("left", ["a", "b"]), ("right", ["c", "d"]))
    sums = [graph.add(n, AddCodes(), two, s) for (n, two), s in zip(pairs, sources, strict=True)]
    graph.outputs[:] = sums
    return graph


def test_the_modules_of_one_layer_are_added_up():
    pytest.importorskip("alkaid")
    apart, together = (estimate(two_sums(*names)) for names in (("s", "t"), ("s", "s")))
    assert together.layers["s"] == apart.layers["s"].plus(apart.layers["t"])
    assert together.lut == pytest.approx(apart.lut)  # another order of additions


def test_the_modules_of_one_layer_count_towards_the_limit_of_adders():
    total = sum(
        adder_estimate(two_sums("s", "t"), layer) for layer in layers_of(two_sums("s", "t"))
    )
    with pytest.raises(ValueError, match=f"about {total} adders"):
        unrolled_circuit(two_sums("s", "s"), max_adders=total - 1)


@given(codes, st.integers(0, 8))
def test_digits_and_bits_of_a_weight_depend_on_neither_sign_nor_shift(code, shift):
    both = np.array([code, -code << shift])
    for count in (signed_digits, effective_bits):
        one, other = count(both).tolist()
        assert one == other


@given(codes)
def test_signed_digits_are_no_more_than_the_ones_nor_than_half_of_the_bits(code):
    digits = int(signed_digits(np.array([code]))[0])
    assert digits <= abs(code).bit_count()
    assert digits <= (abs(code).bit_length() + 2) // 2
    assert (digits == 0) == (code == 0)


@given(st.data())
def test_places_of_a_kernel_are_counted_as_a_convolution_of_ones_does(data):
    size, kernel = data.draw(st.integers(3, 9)), data.draw(st.integers(1, 3))
    stride, padding = data.draw(st.integers(1, 3)), data.draw(st.integers(0, kernel - 1))
    counts, places = inside_counts([size], [kernel], [stride], [padding], [1])
    taps = torch.eye(kernel).unsqueeze(1)
    inside = nn.functional.conv1d(torch.ones(1, 1, size), taps, None, stride, padding)
    assert counts.tolist() == inside[0].sum(1).int().tolist()
    assert places == inside.shape[-1]


@given(st.integers(2, 7), st.integers(0, 5))
def test_wider_inputs_never_cost_less(width, seed):
    torch.manual_seed(seed)
    weight = torch.randint(-15, 16, (4, 6)).tolist()
    narrow, wide = (by_formula(network(weight, width=w)) for w in (width, width + 1))
    assert wide.ebops > narrow.ebops
    assert wide.adder_bits >= narrow.adder_bits
    assert wide.lut >= narrow.lut
    assert wide.ff >= narrow.ff


@given(st.integers(0, 20))
def test_removing_a_weight_never_adds_bit_operations(seed):
    torch.manual_seed(seed)
    weight = torch.randint(-15, 16, (4, 6))
    pruned = weight.clone()
    pruned[seed % 4, seed % 6] = 0
    assert by_formula(network(pruned.tolist())).ebops <= by_formula(network(weight.tolist())).ebops


@given(st.floats(0.5, 20), st.floats(1, 3))
def test_a_longer_clock_period_never_takes_more_cycles(period, factor):
    graph = network(torch.arange(48).reshape(4, 12).tolist())
    longer = period * factor
    fast, slow = (by_formula(graph, clock_period=p) for p in (period, longer))
    assert slow.latency_cycles <= fast.latency_cycles
    assert slow.latency_ns == slow.latency_cycles * longer


@given(
    st.integers(-300, 300),
    st.integers(-300, 300),
    st.integers(-4, 6),
    st.sampled_from(("even", "up", "floor")),
)
def test_the_range_of_a_rounded_value_is_that_of_the_integer_graph(a, b, shift, rounding):
    low, high = min(a, b), max(a, b)
    fmt = word(5, -shift, rounding=rounding)
    target = Target(fmt.low, fmt.high, shift, rounding, wraps=False)
    span, _ = requantized(CodeRange(low, high, 0, 1), target, 5.0)
    graph = IntegerGraph(inputs=["x"])
    graph.add("x_codes", QuantizeInput(word(12), ()), ["x"], "x")
    op = Requantize(fmt).fitted(graph.codes("x_codes"))
    assert [span.low, span.high] == op.run(torch.tensor([low, high])).tolist()


def test_a_full_table_costs_what_its_inputs_and_outputs_need():
    assert table_luts(6, 3) == 3  # a LUT6 for each output
    assert table_luts(5, 4) == 2  # two outputs in one
    assert table_luts(8, 2) == 8


def test_an_op_without_a_formula_is_refused_by_name():
    class Strange(IntegerOp):
        def run(self, *inputs):
            return inputs[0]

        def result(self, *codes):
            return codes[0]

    graph = network([[1, 1]])
    graph.outputs = [graph.add("odd", Strange(), ["fc"], "odd")]
    with pytest.raises(ValueError, match="'odd' is Strange, which has no formula"):
        by_formula(graph)


def test_the_costs_of_branches_tables_and_sums_are_finite_and_add_up():
    graph = network([[1, 2], [3, 4]])
    graph.add("relu", ReluCodes(), ["fc"], "relu")
    small = graph.add("small", Requantize(word(4)), ["relu"], "table")
    entries = torch.arange(16) % 5
    table = graph.add("table", Lookup(entries, 0, word(4)), [small], "table")
    graph.outputs = [graph.add("sum", AddCodes(), [table, small], "sum")]
    cost = by_formula(graph)
    assert cost.lut == pytest.approx(sum(part.lut for part in cost.layers.values()))
    assert cost.metrics["lut"] == cost.lut > 0
    assert "total" in str(cost)


def test_wrong_fidelities_and_clock_periods_are_refused_in_one_sentence():
    graph = network([[1, 1]])
    with pytest.raises(ValueError, match="fidelity must be 'formula' or 'adders', not 'guess'"):
        estimate(graph, fidelity="guess")
    for period in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="clock period must be a positive number of ns"):
            by_formula(graph, clock_period=period)


def test_an_estimate_adds_up_its_layers():
    made = Estimate({"a": Cost(1, 2, 3, 4), "b": Cost(10, 20, 30, 40)}, 3, 2.5, "formula")
    assert made.total == (11, 22, 33, 44)
    assert made.latency_ns == 7.5
    assert made.metrics["ebops"] == 11


NETWORKS = {
    "linear": ([nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)], (6,)),
    "conv": (
        [nn.Conv1d(1, 2, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(4, 2)],
        (1, 6),
    ),
    "table": ([nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)], (4,)),
}


@pytest.mark.rtl
@pytest.mark.parametrize("name", NETWORKS)
def test_what_yosys_packs_is_within_the_stated_error(name, tmp_path):
    from chop.hardware.synthesis import synthesize_circuit
    from chop.hardware.unrolled import unrolled_circuit

    layers, shape = NETWORKS[name]
    torch.manual_seed(3)
    for layer in layers:
        getattr(layer, "reset_parameters", lambda: None)()
    x = torch.randn(8, *shape)
    widths = {
        "data_in_width": 5,
        "data_in_frac_width": 3,
        "weight_width": 5,
        "weight_frac_width": 4,
    }
    prepare = Pipeline(
        [
            "init_metadata",
            ("add_common_metadata", {"dummy_in": {"input": x}}),
            ("quantize", {"by": "type", "default": {"config": {"name": "integer", **widths}}}),
        ]
    )
    graph, _ = prepare(MaseGraph(nn.Sequential(*layers).eval()))
    integers = graph.to_integers()
    circuit = unrolled_circuit(integers)
    made = synthesize_circuit(circuit, folder=tmp_path)
    cost = estimate(integers)
    assert cost.lut == pytest.approx(made.packed_luts, rel=0.25)
    assert cost.ff == pytest.approx(made.ffs, rel=0.1)
    assert cost.latency_cycles == circuit.latency
